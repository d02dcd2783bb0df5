//! Whether rank 0 has answered the hellos of ranks, as the kernel knows it.

use std::thread;
use std::time::{Duration, Instant};

use super::clock::SLACK;
use super::tool::clean;

/// The length of the greeting, which rank 0 sends before it has read anything: see the guide's page
/// of the wire format.
const GREETING: u64 = 53;

/// Waits until `ranks` ranks that connected to `port` have received more than the greeting, as `ss`
/// tells.
pub fn wait_for_welcomes(ranks: usize, port: u16) {
    let begun = Instant::now();
    loop {
        let to = format!(":{port}");
        let asked = ["-tinH", "state", "established", "dport", "=", &to];
        let output = clean("ss").args(asked).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        let received =
            said.split_whitespace().filter_map(|word| word.strip_prefix("bytes_received:"));
        let welcomed = received.filter(|bytes| bytes.parse::<u64>().unwrap() > GREETING);
        if welcomed.count() == ranks {
            return;
        }
        assert!(begun.elapsed() < SLACK, "rank 0 has not answered {ranks} ranks: {said}");
        thread::sleep(Duration::from_millis(10));
    }
}
