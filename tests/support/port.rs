//! Ports for tests that run side by side.

use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};

/// A port that nobody listens on, below those of outgoing connections, so that none of another test takes it meanwhile.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Test programs that run side by side begin far from each other.
        let offset = (std::process::id() * 97 + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        let port = u16::try_from(20_000 + offset).unwrap();
        // Tried by connecting: a listener would live on for a moment in what another test is about to start.
        if ["127.0.0.1", "::1"].iter().all(|host| TcpStream::connect((*host, port)).is_err()) {
            return port;
        }
    }
}
