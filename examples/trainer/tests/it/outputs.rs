//! The targets of --metrics, --plot and similar options are checked before training, and changed
//! only once a run begins.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;

use crate::support::files::files;
use crate::support::mnist::{mnist, rank};
use crate::support::port::free_port;
use crate::support::regular_files::{assert_writes_only_regular_files, make_pipe};
use crate::support::running::Running;
use crate::support::timeout::PATIENT;

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_picture_and_metrics_replace_regular_files_alone() {
    for option in ["--plot", "--metrics"] {
        assert_writes_only_regular_files(&|path| {
            let mut command = mnist();
            command.args(["--epochs", "1", option]).arg(path);
            command
        });
    }
}

#[test]
fn fetch_leaves_what_is_not_a_regular_file_alone() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("train-images-idx3-ubyte");
    make_pipe(&pipe);
    let output = mnist().arg("fetch").arg(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("is a pipe and not a regular file"), "{}", said(&output));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn links_stay_and_the_files_that_they_lead_to_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("there")).unwrap();
    fs::write(at("there/m.jsonl"), "of a run before").unwrap();
    for (link, target) in [("m.jsonl", "there/m.jsonl"), ("run.svg", "there/run.svg")] {
        symlink(target, at(link)).unwrap();
    }
    let mut command = mnist();
    let output = command
        .args(["--epochs", "1", "--metrics"])
        .arg(at("m.jsonl"))
        .arg("--plot")
        .arg(at("run.svg"))
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", said(&output));
    for link in ["m.jsonl", "run.svg"] {
        assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink());
    }
    assert!(fs::read_to_string(at("there/m.jsonl")).unwrap().starts_with("{\"epoch\":0,"));
    assert!(fs::read_to_string(at("there/run.svg")).unwrap().starts_with("<svg "));
}

/// A folder with the metrics and picture of an earlier run, and the arguments that name them.
fn earlier(folder: &Path) -> Vec<String> {
    let arguments = [("--metrics", "m.jsonl"), ("--plot", "run.svg")].map(|(option, name)| {
        fs::write(folder.join(name), "of a run before\n").unwrap();
        [option.to_owned(), folder.join(name).to_str().unwrap().to_owned()]
    });
    arguments.concat()
}

#[test]
fn a_run_that_is_refused_leaves_the_files_of_the_run_before() {
    let (folder, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let arguments = earlier(folder.path());
    let before = files(folder.path());
    let checkpoints = ["--checkpoint-dir", kept.path().to_str().unwrap()];
    assert!(
        mnist()
            .args(["--epochs", "1", "--quiet"])
            .args(checkpoints)
            .output()
            .unwrap()
            .status
            .success()
    );
    let other_seed = [&checkpoints[..], &["--resume", "--seed", "2"]].concat();
    for more in [
        &checkpoints[..],
        &other_seed,
        &["--data", "/no/such/folder"],
        &["--strategy", "((2,1),(1,1))"],
        &["--ranks", "0"],
    ] {
        let output = mnist().args(&arguments).args(more).output().unwrap();
        assert!(!output.status.success(), "{more:?}");
        assert_eq!(files(folder.path()), before, "{more:?}: {}", said(&output));
    }
}

#[test]
fn a_rank_that_does_not_come_leaves_the_files_of_the_run_before() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = earlier(folder.path());
    let before = files(folder.path());
    let output =
        rank(0, 2, free_port()).args(&arguments).args(["--timeout", "0.3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{}", said(&output));
    assert_eq!(files(folder.path()), before);
}

#[test]
fn a_rank_with_other_options_leaves_the_files_of_the_run_before() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = earlier(folder.path());
    let before = files(folder.path());
    let port = free_port();
    let ranks = [0, 1].map(|index| {
        let seed = index.to_string();
        Running::start(rank(index, 2, port).args(&arguments).args([
            "--timeout",
            PATIENT,
            "--seed",
            &seed,
        ]))
    });
    for (code, said) in ranks.map(Running::end) {
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("rank 1 has seed 1, rank 0 has 0"), "{said}");
    }
    assert_eq!(files(folder.path()), before);
}

#[test]
fn one_file_for_two_things_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [weights, other] = ["w.svg", "other.svg"].map(|name| folder.path().join(name));
    fs::write(&weights, vec![0; 7840 * 4]).unwrap();
    symlink("w.svg", &other).unwrap();
    let before = files(folder.path());
    for [a, b] in [["--weights", "--metrics"], ["--weights", "--plot"], ["--metrics", "--plot"]] {
        let output = mnist()
            .args(["--epochs", "1"])
            .arg(a)
            .arg(&weights)
            .arg(b)
            .arg(&other)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(
            said(&output).contains(&format!("is named by {a} and by {b}: ")),
            "{}",
            said(&output)
        );
        assert_eq!(files(folder.path()), before);
    }
}

#[test]
fn a_picture_of_another_format_is_a_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = mnist()
        .args(["--epochs", "1", "--plot", "x.png"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(
        said(&output).contains("the picture is an SVG: give a name that ends in .svg"),
        "{}",
        said(&output)
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
