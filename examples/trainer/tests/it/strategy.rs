//! `mnist --strategy` and `mnist plan`, as their users run them.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::support::files::files;
use crate::support::launcher::job;
use crate::support::mnist::rank;
use crate::support::port::free_port;
use crate::support::timeout::PATIENT;
use crate::support::tool::is_there;

/// `mnist` with arguments, and without any variable that it reads.
fn mnist(arguments: &[&str]) -> Output {
    crate::support::mnist::mnist().args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[track_caller]
fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn assert_fails(output: &Output, code: i32, text: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", said(output));
    assert!(said(output).contains(text), "{}", said(output));
    assert!(output.stdout.is_empty());
}

/// The test accuracy of the last epoch.
#[track_caller]
fn accuracy(output: &Output) -> f64 {
    let text = stdout(output);
    let line = text.lines().last().unwrap();
    line.split("test accuracy is ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap()
}

#[test]
fn blocks_on_eight_ranks_are_as_accurate_as_data_parallel() {
    let words = "--ranks 8 --model mlp --epochs 2 --lr 0.05 --quiet --timeout";
    let common: Vec<&str> = words.split(' ').chain([PATIENT]).collect();
    let blocks = ["--strategy", "((2,4),(4,1))", "--strategy", "matmul2=((2,4),(4,1))"];
    let data_parallel = accuracy(&mnist(&common));
    assert!(data_parallel > 0.85, "{data_parallel}");
    for collectives in ["compat", "min"] {
        let found =
            accuracy(&mnist(&[&common[..], &blocks, &["--collectives", collectives]].concat()));
        // Rounding differs, and may change the class of an image or two of the 2000 that lie
        // between classes.
        assert!((found - data_parallel).abs() <= 0.001, "{found} instead of {data_parallel}");
    }
}

#[test]
fn lines_and_metrics_are_those_of_data_parallel_training() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, more: &[&str]| {
        let file = folder.path().join(name);
        let file_name = file.to_str().unwrap();
        let common = [
            "--ranks=2",
            "--epochs=1",
            "--log-steps",
            "--timeout",
            PATIENT,
            "--metrics",
            file_name,
        ];
        let text = stdout(&mnist(&[&common[..], more].concat()));
        let lines: Vec<serde_json::Value> = fs::read_to_string(file)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        (text, lines)
    };
    let (text, lines) = run("a.jsonl", &["--strategy", "((2,1),(1,1))"]);
    let (expected_text, expected) = run("b.jsonl", &[]);
    assert_eq!(text.lines().count(), expected_text.lines().count());
    assert_eq!(lines.len(), expected.len());
    for (line, expected) in lines.iter().zip(&expected) {
        for name in ["epoch", "step"] {
            assert_eq!(line[name], expected[name]);
        }
        for name in ["loss", "train_loss", "test_loss", "test_accuracy"] {
            let (found, expected) = (line[name].as_f64(), expected[name].as_f64());
            assert_eq!(found.is_some(), expected.is_some(), "{name}");
            assert!(
                (found.unwrap_or(0.0) - expected.unwrap_or(0.0)).abs() < 1e-5,
                "{name}: {found:?} {expected:?}"
            );
        }
    }
}

#[test]
fn mpirun_trains_under_a_strategy() {
    if !is_there("mpirun") {
        return;
    }
    let mut command = job(Path::new("mpirun"), &[], 4, env!("CARGO_BIN_EXE_mnist"));
    command.args(["--epochs=1", "--quiet", "--timeout", PATIENT]);
    command.args(["--strategy=((2,2),(2,1))", "--collectives=min"]);
    let found = accuracy(&command.output().unwrap());
    let expected = accuracy(&mnist(&["--batch-size", "128", "--epochs", "1", "--quiet"]));
    assert!((found - expected).abs() <= 0.001, "{found} instead of {expected}");
}

#[test]
fn a_run_that_goes_on_ends_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, more: &[&str]| {
        let folder = folder.path().join(name);
        let common = ["--ranks=4", "--timeout", PATIENT, "--quiet", "--checkpoint-every=50"];
        mnist(&[&common[..], &["--checkpoint-dir", folder.to_str().unwrap()], more].concat())
    };
    let strategy = ["--strategy", "((2,2),(2,1))"];
    stdout(&run("whole", &[&strategy[..], &["--epochs", "2"]].concat()));
    stdout(&run("half", &[&strategy[..], &["--epochs", "1"]].concat()));
    // 94 steps per epoch: the checkpoints after 50 and 100 steps are in the middle of an epoch.
    fs::remove_file(folder.path().join("half/checkpoint-000000094.safetensors")).unwrap();
    stdout(&run("half", &[&strategy[..], &["--epochs", "2", "--resume"]].concat()));
    let (whole, half) = (files(&folder.path().join("whole")), files(&folder.path().join("half")));
    assert_eq!(whole.keys().collect::<Vec<_>>(), half.keys().collect::<Vec<_>>());
    assert!(whole == half);

    let error = "is of another run: it has strategy matmul ((2,2),(2,1)), bias ((2,2),(2,)), relu ((2,2),), loss \
        ((4,1),(4,)), this run has data parallel";
    assert_fails(&run("half", &["--epochs", "3", "--resume"]), 1, error);
    let data_parallel = run("other", &["--epochs", "1"]);
    assert!(data_parallel.status.success());
    let error = "it has strategy data parallel, this run has matmul ((1,4),(4,1))";
    let arguments = ["--epochs", "2", "--resume", "--strategy", "((1,4),(4,1))"];
    assert_fails(&run("other", &arguments), 1, error);
}

#[test]
fn an_illegal_strategy_is_refused_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let metrics = folder.path().join("m.jsonl");
    for (strategy, text) in [
        ("((3,1),(1,1))", "input 0 dim 0 of size 128 cannot be divided by 3"),
        ("((1,1),(1,4))", "input 1 dim 1 of size 10 cannot be divided by 4"),
        (
            "loss=((2,2),(2,))",
            "loss: strategy ((2,2),(2,)): SoftmaxXent: the class dimension must not be cut",
        ),
        (
            "matmul2=((2,2),(2,1))",
            "there is no operator matmul2: the network has matmul, bias, relu, loss",
        ),
    ] {
        let metrics = metrics.to_str().unwrap();
        let arguments = ["--ranks=4", "--timeout", PATIENT, "--metrics", metrics];
        assert_fails(&mnist(&[&arguments[..], &["--strategy", strategy]].concat()), 1, text);
    }
    assert!(!metrics.exists());
    assert_fails(&mnist(&["--strategy", "(2,4)"]), 2, "is not a strategy");
}

#[test]
fn a_rank_with_another_strategy_is_named_by_all() {
    let port = free_port();
    let start = |index: u32, arguments: &[&str]| {
        let mut command = rank(index, 2, port);
        command.args(["--timeout", PATIENT]).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for child in [start(0, &[]), start(1, &["--strategy", "((1,2),(2,1))"])] {
        let output = child.wait_with_output().unwrap();
        assert_fails(&output, 1, "rank 1 has strategy \"matmul ((1,2),(2,1))");
        assert!(said(&output).contains(", rank 0 has \"data parallel\": "), "{}", said(&output));
    }
}

#[test]
fn a_plan_is_printed_without_running() {
    let plan = |arguments: &[&str]| stdout(&mnist(&[&["plan"], arguments].concat()));
    let text = plan(&["-n", "8"]);
    assert!(text.starts_with(
        "# network on 8 ranks, mesh (8)\n%0 = Input() {name: samples} : () -> f32[256,784]\n"
    ));
    // One sum for the loss and both gradients: 7850 numbers plus 1, times 7/4.
    assert!(text.ends_with("# bytes/step/rank: 54957\n# collectives/step: 1 (compat)\n"), "{text}");
    let blocks =
        ["--model", "mlp", "--batch-size", "8", "--rank", "1", "--strategy", "((2,4),(4,1))"];
    let text = plan(&[&["-n", "8", "--collectives", "min"], &blocks[..]].concat());
    assert!(text.contains(
        "{in_strategy: ((2, 4), (4, 1)); name: matmul} : (f32[64,784], f32[784,128]) -> f32[64,128]"
    ));
    assert!(text.contains("# rank 1 of 8, mesh (2,4)\n"), "{text}");
    assert!(text.contains("ReduceScatter"), "{text}");
    assert_fails(
        &mnist(&["plan", "--rank", "8"]),
        1,
        "rank 8 of 8 does not exist: --rank must be below the number of ranks",
    );
    assert_fails(
        &mnist(&["plan", "-n", "3", "--strategy", "((2,1),(1,1))"]),
        1,
        "3 devices can not be divided by it",
    );
}
