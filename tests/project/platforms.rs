//! Platforms that start one process on each node: `launch` turns these processes into one job,
//! which trains.

use std::collections::BTreeSet;

use crate::support::timeout::PATIENT;
use crate::support::tool::clean;
use crate::support::trainer::with_trainer;

/// The result of an epoch, up to its time; `None` for other lines.
fn result(line: &str) -> Option<String> {
    let at = line.find("epoch: 0, train loss")?;
    Some(line[at..].split(", ").take(4).collect::<Vec<_>>().join(", "))
}

/// The output lines of a command of the trainer.
fn lines(program: &str, words: &[&str]) -> Option<Vec<String>> {
    let mut command = with_trainer(clean(program))?;
    let output = command.args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

#[test]
fn two_nodes_with_two_workers_each_train_as_one_job_of_four_ranks() {
    let Some(four) =
        lines("mnist", &["--ranks", "4", "--timeout", PATIENT, "--epochs", "1", "--quiet"])
    else {
        return;
    };
    let expected: Vec<_> = four.iter().filter_map(|line| result(line)).collect();
    assert_eq!(expected.len(), 1, "{four:?}");
    let script = "echo place: $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE; exec mnist --epochs 1 --quiet";
    let places = ["0 of 4, 0 of 2", "1 of 4, 1 of 2", "2 of 4, 0 of 2", "3 of 4, 1 of 2"];
    for platform in ["skypilot", "leader-worker-set", "dstack", "kubernetes", "lepton", "runpod"] {
        let words = ["simulate", "--launcher", platform, "--nodes", "2", "--", "mpienv", "launch"];
        let words = [&words[..], &["--nproc-per-node", "2", "--", "sh", "-c", script]].concat();
        let Some(found) = lines("mpienv", &words) else { return };
        let found_places: BTreeSet<_> =
            found.iter().filter_map(|line| Some(line.split_once("place: ")?.1)).collect();
        assert_eq!(found_places, BTreeSet::from(places), "{platform}: {found:?}");
        // There is only one result, which is that of four ranks.
        let results: Vec<_> = found.iter().filter_map(|line| result(line)).collect();
        assert_eq!(results, expected, "{platform}: {found:?}");
    }
}
