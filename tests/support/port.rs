//! Ports for tests that run at the same time, in one process or in several.

use std::net::{TcpListener, TcpStream};
use std::process;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

/// Below the ports of outgoing connections and those that `mpienv` chooses itself.
const FIRST: u16 = 10_000;
/// The number of ports reserved for one test process.
const BLOCK: u16 = 1000;
const BLOCKS: u16 = 10;
/// The process that listens on port `GUARDS` + n owns block n until it exits. No port is used
/// twice, if a process uses fewer ports than a block has: a socket that a test has closed stays
/// open for a moment in a process that another test starts.
const GUARDS: u16 = 9_900;

/// A port that no other test uses, and on which nothing listens.
pub fn free_port() -> u16 {
    static OWN: LazyLock<(u16, TcpListener)> = LazyLock::new(claim_block);
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let port = FIRST + OWN.0 * BLOCK + NEXT.fetch_add(1, Ordering::Relaxed) % BLOCK;
        // Connecting leaves nothing behind; a listener would stay open for a moment in a process
        // that another thread starts.
        if ["127.0.0.1", "::1"].iter().all(|host| TcpStream::connect((*host, port)).is_err()) {
            return port;
        }
    }
}

fn claim_block() -> (u16, TcpListener) {
    let claim = |block| Some((block, TcpListener::bind(("127.0.0.1", GUARDS + block)).ok()?));
    // Not always the first one: ranks that the last process left behind may still try to reach its
    // ports.
    let first = (process::id() % u32::from(BLOCKS)) as u16;
    loop {
        if let Some(own) = (0..BLOCKS).map(|n| (first + n) % BLOCKS).find_map(claim) {
            return own;
        }
        // Other test processes will exit.
        thread::sleep(Duration::from_millis(100));
    }
}
