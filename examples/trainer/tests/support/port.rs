//! Ports for ranks to meet at.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// A free port below those that systems give to outgoing connections, so that none of these takes it meanwhile.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Test programs that run side by side begin far from each other.
        let offset = (std::process::id() * 97 + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        let port = u16::try_from(20_000 + offset).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
