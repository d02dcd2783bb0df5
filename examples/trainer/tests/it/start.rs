//! How soon `mnist` starts to train, and how much memory it needs.

use crate::support::mnist::mnist;
use crate::support::start::start;
use crate::support::timeout::PATIENT;
use crate::support::tool::inherited;

/// In bytes, of each rank.
const PEAK: u64 = 150_000_000;

#[test]
fn a_rank_needs_little_memory() {
    for what in [&[][..], &["--ranks", "2", "--timeout", PATIENT, "--backend", "tcp"]] {
        let mut command = mnist();
        command.args(what).envs(inherited("DATA_PATH").map(|folder| ("DATA_PATH", folder)));
        let start = start(&mut command);
        let seconds = start.first_step.as_secs_f64();
        eprintln!("{what:?}: {seconds:.3} s to the first step, {} bytes at most", start.peak);
        assert!(start.peak > 1_000_000 && start.peak <= PEAK, "{what:?}: {start:?}");
    }
}
