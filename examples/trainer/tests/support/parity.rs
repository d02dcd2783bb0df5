//! The same numbers as PyTorch and MindSpore: one epoch of MNIST from the same first weight, in
//! file order.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The results of another system: tests/parity/expected.json.
#[derive(serde::Deserialize)]
struct Run {
    system: String,
    test_accuracy: f64,
    loss: BTreeMap<usize, f32>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity")
}

/// The initial weight of all systems.
pub fn first_weight() -> PathBuf {
    folder().join("w0.f32")
}

/// The results of the other systems with `one_rank` or `two_ranks`.
fn runs(ranks: &str) -> Vec<Run> {
    let mut all: serde_json::Value =
        serde_json::from_slice(&fs::read(folder().join("expected.json")).unwrap()).unwrap();
    serde_json::from_value(all[ranks].take()).unwrap()
}

/// Asserts that rank 0's losses and the accuracy match those of every other system.
#[track_caller]
pub fn assert_alike(
    ranks: &str,
    losses: &BTreeMap<usize, f32>,
    test_accuracy: f64,
    tolerance: f32,
    what: &str,
) {
    let runs = runs(ranks);
    assert_eq!(runs.len(), 2);
    for Run { system, test_accuracy: expected, loss } in runs {
        assert_eq!(test_accuracy, expected, "{what}, {ranks}, {system}");
        assert_eq!(loss.len(), 11);
        for (step, loss) in loss {
            let own = losses[&step];
            assert!(
                (own - loss).abs() <= tolerance,
                "{what}, {ranks}, step {step}: {own}, {system} {loss}"
            );
        }
    }
}

/// Runs `job`, which starts two ranks of `mnist`, for one epoch on MNIST in the folder `data`, and
/// compares the results.
#[track_caller]
pub fn assert_job_is_alike(job: &mut Command, data: &Path, what: &str) {
    let folder = tempfile::tempdir().unwrap();
    let metrics = folder.path().join("metrics.jsonl");
    job.args(["--epochs", "1", "--order", "file", "--weights"]).arg(first_weight());
    let output = job.arg("--data").arg(data).arg("--metrics").arg(&metrics).output().unwrap();
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&metrics).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (epoch, steps) = lines.split_last().unwrap();
    let loss = |line: &serde_json::Value| {
        (line["step"].as_u64().unwrap() as usize, line["loss"].as_f64().unwrap() as f32)
    };
    let losses = steps.iter().map(loss).collect();
    assert_alike("two_ranks", &losses, epoch["test_accuracy"].as_f64().unwrap(), 2e-5, what);
}
