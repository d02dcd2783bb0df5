//! Ports for tests that run at the same time, in one process or in several.

use std::net::{TcpListener, TcpStream};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports of outgoing connections and those that `mpienv` chooses by itself.
const FIRST: u16 = 10_000;
/// As many ports as a test process has for itself.
const BLOCK: u16 = 400;
const BLOCKS: u16 = 25;
/// The process that listens on port `GUARDS` + n owns block n until it exits.
const GUARDS: u16 = 9_900;

/// A port that no other test uses, and on which nothing listens.
pub fn free_port() -> u16 {
    static OWN: LazyLock<(u16, TcpListener)> = LazyLock::new(claim_block);
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let port = FIRST + OWN.0 * BLOCK + NEXT.fetch_add(1, Ordering::Relaxed) % BLOCK;
        // Connecting leaves nothing behind; a listener would live on for a moment in a process that another thread starts.
        if ["127.0.0.1", "::1"].iter().all(|host| TcpStream::connect((*host, port)).is_err()) {
            return port;
        }
    }
}

fn claim_block() -> (u16, TcpListener) {
    let claim = |block| Some((block, TcpListener::bind(("127.0.0.1", GUARDS + block)).ok()?));
    (0..BLOCKS).find_map(claim).unwrap_or_else(|| panic!("{BLOCKS} test processes run already"))
}
