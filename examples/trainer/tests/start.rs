//! How soon `mnist` trains, and how much memory it needs.
#![cfg(target_os = "linux")]

#[path = "support/living.rs"]
mod living;
#[path = "support/mnist.rs"]
mod mnist;
#[path = "support/start.rs"]
mod start;
#[path = "../../../tests/support/tool.rs"]
#[expect(dead_code, reason = "the data is the person's who runs the tests, or the program's own")]
mod tool;

use mnist::mnist;
use start::start;
use tool::inherited;

/// In bytes, of each rank.
const PEAK: u64 = 150_000_000;

#[test]
fn a_rank_needs_little_memory() {
    for what in [&[][..], &["--ranks", "2", "--backend", "tcp"]] {
        let mut command = mnist();
        command.args(what).envs(inherited("DATA_PATH").map(|folder| ("DATA_PATH", folder)));
        let start = start(&mut command);
        let seconds = start.first_step.as_secs_f64();
        eprintln!("{what:?}: {seconds:.3} s to the first step, {} bytes at most", start.peak);
        assert!(start.peak > 1_000_000 && start.peak <= PEAK, "{what:?}: {start:?}");
    }
}
