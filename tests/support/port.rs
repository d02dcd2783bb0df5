//! Ports for tests that run at the same time, in one process or in several.

use std::net::{TcpListener, TcpStream};
use std::process;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

/// Below the ports of outgoing connections and those that `mpienv` chooses by itself.
const FIRST: u16 = 10_000;
/// As many ports as a test process has for itself.
const BLOCK: u16 = 1000;
const BLOCKS: u16 = 10;
/// The process that listens on port `GUARDS` + n owns block n until it exits. No port is used twice where a process
/// takes fewer than a block has: what a test has closed lives on for a moment in a process that another test starts.
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
    // Not always the first one: ranks that the last process left may still try to reach its ports.
    let first = (process::id() % u32::from(BLOCKS)) as u16;
    loop {
        if let Some(own) = (0..BLOCKS).map(|n| (first + n) % BLOCKS).find_map(claim) {
            return own;
        }
        // Other test processes will end.
        thread::sleep(Duration::from_millis(100));
    }
}
