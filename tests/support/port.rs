//! Ports for tests that run side by side.

use std::net::TcpStream;
use std::sync::atomic::{AtomicU16, Ordering};

/// A port that nobody listens on, below those of outgoing connections, so that none of another test takes it meanwhile.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed) + u16::try_from(std::process::id() % 9000).unwrap();
        let port = 20_000 + offset % 10_000;
        // Tried by connecting: a listener would live on for a moment in what another test is about to start.
        if ["127.0.0.1", "::1"].iter().all(|host| TcpStream::connect((*host, port)).is_err()) {
            return port;
        }
    }
}
