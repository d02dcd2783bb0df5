//! The `mnist` program, as its users run it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// `mnist` with arguments, and without any variable that it reads.
fn mnist(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mnist"));
    command.args(arguments).env_clear();
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Asserts that the program failed with `code`, printed one line on stderr, and nothing on stdout.
#[track_caller]
fn assert_fails(output: &Output, code: i32, text: &str) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(text), "{said}");
    assert!(output.stdout.is_empty());
}

/// A batch script with four tasks and no srun.
const SCRIPT: [(&str, &str); 2] = [("SLURM_JOB_ID", "5"), ("SLURM_NTASKS", "4")];

#[test]
fn a_batch_script_that_would_train_alone_is_refused_and_one_that_starts_ranks_warns_once() {
    let run = |arguments: &[&str], vars: &[(&str, &str)]| {
        let output = command(arguments).envs(SCRIPT).envs(vars.iter().copied()).output().unwrap();
        (output.status.success(), stderr(&output))
    };
    let (alone, ranks) = (["--epochs", "1"], ["--epochs", "1", "--ranks", "2"]);
    // On the job's only node, a script may start the ranks itself.
    let one_node = [("SLURM_NNODES", "1")];
    for vars in [&[][..], &one_node] {
        let (has_trained, said) = run(&alone, vars);
        assert!(!has_trained && said.contains("start the program with `srun`"), "{said}");
    }
    let (has_trained, said) = run(&alone, &[("MPIENV_LAUNCHER", "alone")]);
    assert!(has_trained && !said.contains("srun"), "{said}");
    let (has_trained, said) = run(&ranks, &[]);
    assert!(has_trained, "{said}");
    assert_eq!(said.matches("warning [slurm-not-a-task]: ").count(), 1, "{said}");
    assert!(said.contains("\n  remedy: start the program with `srun`"), "{said}");
    for vars in [[("MPIENV_QUIET", "1")], one_node] {
        let (has_trained, said) = run(&ranks, &vars);
        assert!(has_trained && !said.contains("slurm-not-a-task"), "{said}");
    }
}

#[test]
fn it_trains_on_embedded_digits_with_nothing_else() {
    let output = mnist(&["--epochs", "1", "--log-steps"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1);
    assert!(
        stderr(&output).starts_with("mnist: training on embedded digits"),
        "{}",
        stderr(&output)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    // 375 steps of 32 samples: one line every 10, and one for the epoch.
    assert_eq!(lines.len(), 38 + 1);
    assert!(lines[0].starts_with("epoch: 0, step: 0, loss is 2.3"), "{}", lines[0]);
    assert!(lines[37].starts_with("epoch: 0, step: 370, loss is "), "{}", lines[37]);
    assert!(lines[38].starts_with("epoch: 0, train loss is "), "{}", lines[38]);
}

#[test]
fn a_run_prints_one_line_for_each_epoch() {
    let output = mnist(&["--epochs", "2"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 2);
    assert!(
        text.lines().all(|line| line.contains("test accuracy is ") && line.ends_with(" samples/s")),
        "{text}"
    );
}

#[test]
fn metrics_and_log_have_the_same_losses() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.jsonl");
    let output = mnist(&["--epochs", "1", "--log-steps", "--metrics", file.to_str().unwrap()]);
    let log = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<serde_json::Value> = fs::read_to_string(file)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), log.lines().count());
    for (line, text) in lines.iter().zip(log.lines()).take(38) {
        let (epoch, step) = (line["epoch"].as_u64().unwrap(), line["step"].as_u64().unwrap());
        assert_eq!(format!("epoch: {epoch}, step: {step}, loss is {}", line["loss"]), text);
    }
    let epoch = lines[38].as_object().unwrap();
    let mut names: Vec<&str> = epoch.keys().map(String::as_str).collect();
    names.sort_unstable();
    let mut promised =
        ["epoch", "train_loss", "test_loss", "test_accuracy", "samples_per_second", "seconds"];
    promised.sort_unstable();
    assert_eq!(names, promised);
    assert!(epoch["test_accuracy"].as_f64().unwrap() > 0.7);
}

#[test]
fn a_plot_is_drawn_and_no_progress_bar_without_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.svg");
    let output =
        mnist(&["--epochs", "2", "--lr", "0.02", "--seed", "7", "--plot", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    let text = fs::read_to_string(&file).unwrap();
    assert!(
        text.contains("linear on embedded digits: 1 rank with batches of 32, lr 0.02, seed 7"),
        "{text}"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_run_that_goes_on_ends_with_the_picture_of_one_that_was_not_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let draw = |name: &str, epochs: &str, resume: &[&str]| {
        let picture = folder.path().join(format!("{name}.svg"));
        let mut command = command(&[
            "--epochs",
            epochs,
            "--plot",
            picture.to_str().unwrap(),
            "--checkpoint-dir",
            name,
        ]);
        let output = command.args(resume).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        fs::read_to_string(picture).unwrap()
    };
    let whole = draw("whole", "4", &[]);
    assert_ne!(draw("parts", "2", &[]), whole);
    assert!(draw("parts", "4", &["--resume"]) == whole);
}

#[test]
fn another_model_is_trained() {
    let accuracy = |model| {
        let text = String::from_utf8(mnist(&["--epochs", "3", "--quiet", "--model", model]).stdout)
            .unwrap();
        text.lines().last().unwrap().split("test accuracy is ").nth(1).unwrap()[..6]
            .parse::<f64>()
            .unwrap()
    };
    assert!(accuracy("linear") < accuracy("mlp"));
}

#[test]
fn the_same_seed_gives_the_same_lines() {
    let steps = |seed| {
        let text =
            String::from_utf8(mnist(&["--epochs", "1", "--log-steps", "--seed", seed]).stdout)
                .unwrap();
        text.lines().filter(|line| line.contains("step")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(steps("1"), steps("1"));
    assert_ne!(steps("1"), steps("2"));
}

#[test]
fn what_is_wrong_is_named_before_any_training() {
    let empty = tempfile::tempdir().unwrap();
    let empty = empty.path().to_str().unwrap();
    for (variable, arguments, code, text) in [
        (None, ["--data", "/no/such/folder"], 1, "mnist: /no/such/folder is not a folder: "),
        (Some("/no/such/folder"), ["--epochs", "1"], 1, "mnist: /no/such/folder is not a folder: "),
        // The argument comes before the variable.
        (Some("/no/such/variable"), ["--data", "/no/such"], 1, "mnist: /no/such is not a folder: "),
        (None, ["--data", empty], 1, "mnist: there is no train-images-idx3-ubyte, plain or .gz: "),
        (None, ["--data", ""], 2, "--data"),
        (None, ["--weights", "/no/such/w.f32"], 1, "/no/such/w.f32: cannot be read: "),
        (None, ["--metrics", "/no/such/m.jsonl"], 1, "mnist: /no/such/m.jsonl: No such file"),
        (None, ["--plot", "/no/such/run.svg"], 1, "mnist: /no/such/run.svg: No such file"),
        (None, ["--batch-size", "0"], 2, "expected a whole number, 1 or more"),
        (None, ["--epochs=1", "--no-such-option"], 2, "--no-such-option"),
    ] {
        let mut command = command(&arguments);
        assert_fails(
            &command.envs(variable.map(|path| ("DATA_PATH", path))).output().unwrap(),
            code,
            text,
        );
    }
}

#[test]
fn an_empty_variable_is_none() {
    let output = command(&["--epochs", "0"]).env("DATA_PATH", "").output().unwrap();
    assert!(output.status.success());
    assert!(stderr(&output).contains("embedded digits"), "{}", stderr(&output));
}

#[test]
fn a_corrupt_file_is_named_before_any_training() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ] {
        fs::write(folder.path().join(name), [0x1f, 0x8b, 8, 0, 0, 0]).unwrap();
    }
    let output = mnist(&["--data", folder.path().to_str().unwrap()]);
    assert_fails(
        &output,
        1,
        "train-labels-idx1-ubyte: is truncated (gzip): it ends after 0 of 4 bytes",
    );
}

#[test]
fn a_training_that_diverges_names_the_step() {
    let output = mnist(&["--lr", "1e38", "--epochs", "1", "--quiet"]);
    assert_fails(&output, 3, "mnist: epoch 0, step ");
    assert!(stderr(&output).contains("training diverged"), "{}", stderr(&output));
}

#[test]
fn a_training_that_diverges_to_finite_losses_fails_and_says_so() {
    for (model, lr) in [("linear", "1000"), ("mlp", "10")] {
        let output = mnist(&["--lr", lr, "--epochs", "2", "--quiet", "--model", model]);
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        let said = stderr(&output);
        assert!(
            said.contains(
                "mnist: the network has learned nothing: after epoch 1 the test accuracy is 0.1"
            ),
            "{said}"
        );
        assert!(said.contains("training diverged; try a smaller --lr"), "{said}");
        // The results of training are still reported.
        assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 2);
    }
    assert!(mnist(&["--lr", "0.5", "--epochs", "1", "--quiet", "--model", "mlp"]).status.success());
}

#[test]
fn a_training_that_failed_fails_again_when_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().to_str().unwrap();
    let train = |lr: &str, ranks: &str, name: &str| {
        let kept = format!("{kept}/{name}");
        let arguments = ["--lr", lr, "--epochs", "1", "--quiet", "--ranks", ranks];
        mnist(&[&arguments[..], &["--checkpoint-dir", &kept, "--resume"]].concat())
    };
    for ranks in ["1", "2"] {
        for is_left in [true, false] {
            let output = train("1000", ranks, ranks);
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(3), "{said}");
            assert_eq!(said.contains("nothing is left to train"), !is_left, "{said}");
            let text = "learned nothing: after epoch 0 the test accuracy is ";
            assert_eq!(said.matches(text).count(), 1, "{said}");
            // No epoch is reported twice.
            assert_eq!(output.stdout.is_empty(), !is_left);
        }
        for _ in 0..2 {
            let output = train("0.01", ranks, &format!("learned-{ranks}"));
            assert!(output.status.success(), "{}", stderr(&output));
        }
    }
}

#[test]
fn a_training_that_does_not_move_says_that_the_learning_rate_is_small() {
    let output = mnist(&["--lr", "1e-9", "--epochs", "1", "--quiet"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("try a larger --lr, or more --epochs"), "{}", stderr(&output));
}

#[test]
fn first_weights_of_nan_diverge_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.f32");
    fs::write(&path, f32::NAN.to_le_bytes().repeat(7840)).unwrap();
    let output = mnist(&["--weights", path.to_str().unwrap()]);
    assert_fails(&output, 3, "mnist: epoch 0, step 0: the loss is NaN");
}

#[test]
fn first_weights_from_a_file_are_used() {
    let weights = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity/w0.f32");
    let line = |arguments: &[&str]| {
        let arguments = [&["--log-steps", "--epochs", "1"], arguments].concat();
        let text = String::from_utf8(mnist(&arguments).stdout).unwrap();
        text.lines().next().unwrap().to_owned()
    };
    let from_file = line(&["--weights", weights.to_str().unwrap()]);
    assert_eq!(from_file, line(&["--weights", weights.to_str().unwrap()]));
    assert_ne!(from_file, line(&[]));
}
