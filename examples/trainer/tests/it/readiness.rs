//! A rank that cannot start tells all others at once, and only rank 0 reads the first weights.

use std::path::Path;
use std::process::Output;
use std::time::Instant;

use crate::support::clock::SLACK;
use crate::support::mnist::rank;
use crate::support::port::free_port;
use crate::support::running::Running;
use mpienv::host_name;

/// So long that a test that waits for it fails.
const TIMEOUT: [&str; 2] = ["--timeout", "3000"];

#[test]
fn a_rank_without_its_data_ends_all_at_once_and_all_say_why() {
    for odd in [0, 1, 2] {
        let (port, begun) = (free_port(), Instant::now());
        let ranks = [0, 1, 2].map(|index| {
            let mut command = rank(index, 3, port);
            command.args(TIMEOUT).args((index == odd).then_some("--data=/no/such/folder"));
            Running::start(&mut command)
        });
        for ((code, said), index) in ranks.map(Running::end).into_iter().zip(0..) {
            assert_eq!(code, Some(1), "{said}");
            let own =
                "mnist: /no/such/folder is not a folder: --data or DATA_PATH must name".to_owned();
            let host = host_name().unwrap_or_default();
            let other = format!(
                "mnist: rank {odd} on {host} cannot start: /no/such/folder is not a folder: "
            );
            assert!(said.contains(if index == odd { &own } else { &other }), "{index}: {said}");
            assert_eq!(said.matches("/no/such/folder").count(), 1, "{said}");
        }
        assert!(begun.elapsed() < SLACK, "they waited for the timeout");
    }
}

#[test]
fn first_weights_are_read_by_rank_0_alone() {
    let weights = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity/w0.f32");
    let train = |inits: [&Path; 2]| -> Vec<String> {
        let port = free_port();
        let ranks: Vec<_> = [0, 1]
            .into_iter()
            .zip(inits)
            .map(|(index, init)| {
                let mut command = rank(index, 2, port);
                command.args(TIMEOUT).args(["--epochs", "1", "--log-steps", "--weights"]).arg(init);
                std::thread::spawn(move || command.output().unwrap())
            })
            .collect();
        let outputs = ranks.into_iter().map(|rank| rank.join().unwrap());
        outputs
            .map(|output| stdout(&output).lines().next().unwrap_or_default().to_owned())
            .collect()
    };
    let both = train([&weights, &weights]);
    assert_eq!(train([&weights, Path::new("/no/such/file")]), both);
}

#[track_caller]
fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}
