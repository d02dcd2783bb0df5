//! How long it takes to find a process's place: on every recording, and with simulated jobs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use divan::{Bencher, black_box};
use mpienv::{ClusterInfo, Environment};
use serde::Deserialize;

#[derive(Deserialize)]
struct Recording {
    ranks: Vec<Process>,
}

#[derive(Deserialize)]
struct Process {
    env: BTreeMap<String, String>,
}

fn main() {
    divan::main();
}

/// The environments of the first ranks of all recordings, by name.
fn recordings() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let mut names = Vec::new();
    for version in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        for file in fs::read_dir(version.path()).unwrap().map(Result::unwrap) {
            names.push(file.path().to_str().unwrap().to_owned());
        }
    }
    names.sort();
    names
}

#[divan::bench(args = recordings())]
fn recording(bencher: Bencher, path: &str) {
    let recording: Recording = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let environment = Environment::from_vars(recording.ranks[0].env.clone());
    bencher.bench(|| ClusterInfo::from_environment(black_box(&environment)).unwrap());
}

/// Includes the snapshot: all that `from_vars` does.
#[divan::bench(args = recordings())]
fn recording_from_vars(bencher: Bencher, path: &str) {
    let recording: Recording = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let vars: Vec<_> = recording.ranks[0].env.clone().into_iter().collect();
    bencher.with_inputs(|| vars.clone()).bench_values(|vars| ClusterInfo::from_vars(vars).unwrap());
}
