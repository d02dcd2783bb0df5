//! The `quickstart` program, as its users run it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::files::files;
use crate::support::port::free_port;
use crate::support::published::assert_published;
use crate::support::rank::rank_of;

/// `quickstart` with arguments, in a folder, and without variables.
pub fn quickstart(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quickstart"));
    command.args(arguments).env_clear().current_dir(folder).output().unwrap()
}

#[track_caller]
pub fn stdout(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
pub fn assert_fails(output: &Output, code: i32, text: &str) {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(text), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_batch_script_that_would_train_alone_is_refused_and_one_that_starts_threads_warns_once() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str], quiet: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quickstart"));
        command.args(["--epochs", "1"]).args(arguments).env_clear().current_dir(folder.path());
        command.envs([("SLURM_JOB_ID", "5"), ("SLURM_NTASKS", "4"), ("MPIENV_QUIET", quiet)]);
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (has_trained, said) = run(&[], "");
    assert!(!has_trained && said.contains("srun did not start this process"), "{said}");
    let (has_trained, said) = run(&["--threads", "2"], "");
    assert!(has_trained, "{said}");
    assert_eq!(said.matches("warning [slurm-not-a-task]: ").count(), 1, "{said}");
    assert_eq!(run(&["--threads", "2"], "1"), (true, String::new()));
}

/// The losses of one step, one for each rank that printed a line.
pub fn losses(text: &str, moment: &str) -> Vec<f64> {
    let start = format!("{moment}, loss is ");
    text.lines()
        .filter_map(|line| line.strip_prefix(&start))
        .map(|loss| loss.parse().unwrap())
        .collect()
}

const SEED: [&str; 6] = ["--threads", "8", "--lr", "0.4", "--init", "mindspore-1.x"];

#[test]
fn the_published_losses_come_out_on_all_ranks() {
    let [compat, min] = ["compat", "min"].map(|collectives| {
        let folder = tempfile::tempdir().unwrap();
        stdout(quickstart(folder.path(), &[&SEED[..], &["--collectives", collectives]].concat()))
    });
    assert_published(&compat);
    // To the last bit.
    assert_eq!(min, compat);
}

#[test]
fn the_saved_graph_is_the_published_one() {
    let folder = tempfile::tempdir().unwrap();
    stdout(quickstart(folder.path(), &[&SEED[..], &["--epochs", "1"]].concat()));
    let read =
        |name: &str| fs::read_to_string(folder.path().join("saved_graph").join(name)).unwrap();
    let graph = read("rank_0/step_parallel_begin_0000.ir");
    let mut rest = graph.as_str();
    for fact in [
        "MatMul(%0, %1) {in_strategy: ((2, 4), (4, 1)); name: matmul} : (f32[16,32], f32[32,16]) -> f32[16,16]",
        "ReLU(%2) {in_strategy: ((2, 4),); name: relu}",
        "MatMul(%3, %4) {in_strategy: ((2, 4), (4, 1)); name: matmul2}",
    ] {
        rest = rest.split_once(fact).unwrap_or_else(|| panic!("{fact} is not in {graph}")).1;
    }
    let graph = read("rank_0/18_execute_0000.ir");
    let mut rest = graph.as_str();
    for fact in [
        "{in_strategy: ((2, 4), (4, 1)); name: matmul} : (f32[8,8], f32[8,16]) -> f32[8,16]\n",
        "AllReduce(%4) {group: 0-1-2-3, op: sum} : (f32[8,16]) -> f32[8,16]\n",
        "StridedSlice(%5) {begin: (0, 0), end: (8, 4)} : (f32[8,16]) -> f32[8,4]\n",
        "ReLU(%6) {in_strategy: ((2, 4),); name: relu} : (f32[8,4]) -> f32[8,4]\n",
        "{in_strategy: ((2, 4), (4, 1)); name: matmul2} : (f32[8,4], f32[4,16]) -> f32[8,16]\n",
    ] {
        rest = rest.split_once(fact).unwrap_or_else(|| panic!("{fact} is not in {graph}")).1;
    }
    assert!(read("rank_7/18_execute_0000.ir").contains("group: 4-5-6-7"));
}

#[test]
fn the_newest_five_checkpoints_of_each_rank_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    // Left by a longer, earlier run.
    fs::create_dir_all(folder.path().join("device/3")).unwrap();
    fs::write(folder.path().join("device/3/CKP-9_9.safetensors"), "old").unwrap();
    fs::write(folder.path().join("device/3/notes"), "mine").unwrap();
    stdout(quickstart(folder.path(), &["--threads", "8"]));
    for rank in 0..8 {
        let mut names: Vec<String> =
            files(&folder.path().join(format!("device/{rank}"))).into_keys().collect();
        names.retain(|name| name != "notes");
        let expected =
            ["4_4", "5_1", "5_2", "5_3", "5_4"].map(|moment| format!("CKP-{moment}.safetensors"));
        assert_eq!(names, expected);
    }
    assert!(folder.path().join("device/3/notes").exists());
}

#[test]
fn the_same_run_writes_the_same_bytes() {
    let runs: Vec<_> = (0..2)
        .map(|_| {
            let folder = tempfile::tempdir().unwrap();
            let text = stdout(quickstart(folder.path(), &["--threads", "8", "--epochs", "2"]));
            (text, files(folder.path()))
        })
        .collect();
    assert_eq!(runs[0].1.len(), 8 * (5 + 2));
    assert!(runs[0] == runs[1]);
}

#[test]
fn losses_do_not_depend_on_strategy_or_ranks() {
    let last = |arguments: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        losses(&stdout(quickstart(folder.path(), arguments)), "epoch: 5 step: 4")[0]
    };
    // The first weights of `normal` do not depend on the number of ranks; `alone` is a single
    // process without options.
    let alone = last(&[]);
    assert!((0.2..0.37).contains(&alone), "{alone}");
    for arguments in [
        &["--threads", "8"][..],
        &["--threads", "8", "--strategy", "((8,1),(1,1))"],
        &["--threads", "8", "--strategy", "((2,1),(1,4))", "--collectives", "min"],
        &["--threads", "8", "--strategy", "matmul2=((2,2),(2,2))"],
        &["--threads", "8", "--strategy", "((2,2),(2,1))"],
        &["--threads", "4", "--strategy", "((1,4),(4,1))"],
        &["--threads", "3"],
        &["--threads", "16"],
    ] {
        let loss = last(arguments);
        assert!((loss - alone).abs() < 1e-6, "{arguments:?}: {loss} instead of {alone}");
    }
}

#[test]
fn a_plan_is_printed_without_running() {
    let folder = tempfile::tempdir().unwrap();
    let plan =
        |arguments: &[&str]| stdout(quickstart(folder.path(), &[&["plan"], arguments].concat()));
    let text = plan(&["-n", "8"]);
    assert!(text.ends_with("# bytes/step/rank: 3847\n# collectives/step: 7 (compat)\n"), "{text}");
    assert!(
        plan(&["-n", "8", "--collectives", "min"])
            .ends_with("# bytes/step/rank: 2503\n# collectives/step: 7 (min)\n")
    );
    assert!(plan(&["-n", "8", "--rank", "1"]).contains("{begin: (0, 4), end: (8, 8)}"));
    // Each group of a repeated strategy contains every other rank.
    assert!(
        plan(&["-n", "8", "--strategy", "((2,2),(2,1))"])
            .contains("AllReduce(%5) {group: 0-2, op: sum}")
    );
    assert!(files(folder.path()).is_empty());
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let plan = |arguments: &[&str]| quickstart(folder.path(), &[&["plan"], arguments].concat());
    for (strategy, text) in [
        ("((2,4),(2,1))", "first input's columns are cut in 4, second input's rows in 2"),
        ("((4,4),(4,1))", "requires 16 devices, but 8 devices can not be divided by it"),
        ("gelu=((8,1))", "there is no operator gelu: the network has matmul, relu, matmul2, loss"),
    ] {
        assert_fails(&plan(&["--strategy", strategy]), 1, text);
    }
    assert_fails(&plan(&["--rank", "8"]), 1, "rank 8 of 8 does not exist");
    assert_fails(&plan(&["--strategy", "(2,4)"]), 2, "is not a strategy");
}

#[test]
fn a_loss_that_is_not_a_number_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let output = quickstart(folder.path(), &["--threads", "8", "--lr", "1e30"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("training diverged"), "{said}");
}

#[test]
fn an_output_that_cannot_be_written_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let output = quickstart(folder.path(), &["--threads", "2", "--output", "file"]);
    assert_fails(&output, 1, "file/device/");
}

#[test]
fn the_help_says_what_a_run_prints_and_writes_and_how_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let help = stdout(quickstart(path, &["--help"]));
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for promise in [
        "Every rank uses the same 2 samples and prints the loss of every step.",
        "Checkpoints go to device/RANK, the graph with its strategies and each rank's instructions \
         to saved_graph/rank_RANK.",
        "Exit codes: 0 success, 1 wrong environment, strategy or file, 2 invalid command line, 3 \
         the training failed, 124 a rank timed out.",
        "Number of epochs of 4 steps each",
    ] {
        assert!(help.contains(promise), "{help}");
    }
    let text = stdout(quickstart(path, &["--threads", "2", "--epochs", "1"]));
    assert_eq!(text.lines().count(), 2 * 4, "{text}");
    for rank in 0..2 {
        assert!(path.join(format!("device/{rank}/CKP-1_4.safetensors")).is_file());
        for name in ["step_parallel_begin_0000.ir", "18_execute_0000.ir"] {
            assert!(path.join(format!("saved_graph/rank_{rank}/{name}")).is_file());
        }
    }
    let two = ["--threads", "2"];
    for (more, code) in
        [(["--strategy", "((3,1),(1,1))"], 1), (["--lr", "0"], 2), (["--lr", "1e30"], 3)]
    {
        let output = quickstart(path, &[two, more].concat());
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
    let mut alone = rank_of(env!("CARGO_BIN_EXE_quickstart"), 1, 2, free_port());
    let output = alone.current_dir(path).args(["--timeout", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{output:?}");
}

#[test]
fn the_readme_shows_what_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let readme = include_str!("../../README.md");
    let mut blocks = 0;
    for block in readme.split("```console\n$ quickstart ").skip(1) {
        let (command, printed) = block.split_once("\n```").unwrap().0.split_once('\n').unwrap();
        let arguments: Vec<&str> =
            command.split_whitespace().map(|word| word.trim_matches('"')).collect();
        let output = quickstart(folder.path(), &arguments);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let code = format!("? {}", output.status.code().unwrap());
        let mut lines = text.lines();
        for line in printed.lines().filter(|line| *line != "..." && *line != code) {
            assert!(lines.any(|printed| printed == line), "{line}");
        }
        blocks += 1;
    }
    assert_eq!(blocks, 3);
}
