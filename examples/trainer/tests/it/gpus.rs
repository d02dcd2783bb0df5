//! `mnist --device`: on stand-ins for NVIDIA's libraries, which compute the kernels on the CPU, a
//! run is the same as on CPUs, to rounding.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::support::clock::SLACK;
use crate::support::endless::signal;
use crate::support::few_digits::few_digits;
use crate::support::gpu::with_gpus;
use crate::support::mnist::{mnist, rank};
use crate::support::port::free_port;
use crate::support::running::Running;
use crate::support::timeout::PATIENT;
use mpienv_trainer::data::{Dataset, SIDE};
use rustix::process::Signal;

/// How far a loss may be from the CPU's.
const ROUNDING: f64 = 1e-5;

/// A folder with a few digits. Neither of its steps' batches in these tests divides 230.
fn digits(folder: &Path) -> PathBuf {
    let data = few_digits(230, 60);
    let write = |name: &str, data: &Dataset| {
        let numbers = |numbers: &[usize]| -> Vec<u8> {
            numbers.iter().flat_map(|&number| (number as u32).to_be_bytes()).collect()
        };
        let images = [&numbers(&[0x803, data.count(), SIDE, SIDE])[..], data.images()].concat();
        let labels = [&numbers(&[0x801, data.count()])[..], data.labels()].concat();
        fs::write(folder.join(format!("{name}-images-idx3-ubyte")), images).unwrap();
        fs::write(folder.join(format!("{name}-labels-idx1-ubyte")), labels).unwrap();
    };
    write("train", &data.train);
    write("t10k", &data.test);
    folder.to_owned()
}

/// A run in `folder` that keeps its checkpoints and metrics there under `name`.
fn trains(folder: &Path, name: &str, arguments: &[&str]) -> Command {
    let mut command = mnist();
    // PATH is where the driver's stand-in finds a compiler.
    command.env("PATH", crate::support::tool::inherited("PATH").unwrap());
    command.args(["--timeout", PATIENT]).arg("--data").arg(folder);
    for (option, value) in [("--epochs", "3"), ("--lr", "0.1")] {
        if !arguments.contains(&option) {
            command.args([option, value]);
        }
    }
    command.arg("--metrics").arg(folder.join(name).with_extension("jsonl"));
    command.arg("--checkpoint-dir").arg(folder.join(name)).args(arguments);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

/// The losses and accuracies of a run, without its times.
fn curve(folder: &Path, name: &str) -> Vec<(String, f64)> {
    let text = fs::read_to_string(folder.join(name).with_extension("jsonl")).unwrap();
    let mut all = Vec::new();
    for line in text.lines() {
        let line: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
        let is_time = |key: &str| key == "seconds" || key == "samples_per_second";
        all.extend(
            line.into_iter()
                .filter(|(key, _)| !is_time(key))
                .map(|(key, value)| (key, value.as_f64().unwrap())),
        );
    }
    all
}

#[track_caller]
fn assert_alike(folder: &Path, a: &str, b: &str) {
    let (a, b) = (curve(folder, a), curve(folder, b));
    assert!(a.len() > 6 && a.len() == b.len(), "{a:?} {b:?}");
    for (a, b) in a.iter().zip(&b) {
        assert!(a.0 == b.0 && (a.1 - b.1).abs() < ROUNDING, "{a:?} {b:?}");
    }
}

/// The bytes of the last checkpoint of a run.
fn last(folder: &Path, name: &str) -> Vec<u8> {
    let files = fs::read_dir(folder.join(name)).unwrap().map(|entry| entry.unwrap().path());
    fs::read(files.max().unwrap()).unwrap()
}

#[test]
fn losses_are_the_cpus_to_rounding_and_the_same_bits_from_run_to_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = digits(folder.path());
    for (number, (capability, arguments)) in [
        // The cluster, a batch that it does not take, and a device without clusters.
        ("90", &["--batch-size", "32"][..]),
        ("90", &["--batch-size", "7", "--order", "file"]),
        ("90", &["--batch-size", "48"]),
        ("80", &["--batch-size", "32"]),
        ("80", &["--batch-size", "1000"]),
        ("90", &["--batch-size", "48", "--model", "mlp"]),
    ]
    .into_iter()
    .enumerate()
    {
        let [cpu, gpu, again] = ["cpu", "gpu", "again"].map(|name| format!("{name}{number}"));
        succeeds(&mut trains(&folder, &cpu, arguments));
        for name in [&gpu, &again] {
            let mut run = trains(&folder, name, arguments);
            run.args(["--device", "cuda"]).env("STAND_IN_CAPABILITY", capability);
            let Some(run) = with_gpus(&mut run, &[]) else { return };
            let said = succeeds(run);
            assert!(said.contains("mnist: training on GPU 0 (Stand-in GPU)\n"), "{said}");
        }
        assert_alike(&folder, &cpu, &gpu);
        assert_eq!(last(&folder, &gpu), last(&folder, &again), "{arguments:?}");
    }
}

#[test]
fn two_ranks_sum_over_nccl_as_they_do_over_shared_memory() {
    let folder = tempfile::tempdir().unwrap();
    let folder = digits(folder.path());
    for model in ["linear", "mlp"] {
        let [cpu, gpu] = ["cpu", "gpu"].map(|name| format!("{name}-{model}"));
        let two = ["--ranks", "2", "--batch-size", "16", "--model", model];
        succeeds(&mut trains(&folder, &cpu, &two));
        let mut run = trains(&folder, &gpu, &two);
        run.args(["--device", "auto"]).env("STAND_IN_DEVICES", "2");
        let Some(run) = with_gpus(&mut run, &[]) else { return };
        let said = succeeds(run);
        let text = "training on GPUs (Stand-in GPU), gradients over NCCL 2.28.9";
        assert!(said.contains(text) && !said.contains("over shared memory"), "{said}");
        assert_alike(&folder, &cpu, &gpu);
    }
}

#[test]
fn a_run_that_began_on_a_cpu_goes_on_on_a_gpu_and_the_other_way() {
    let folder = tempfile::tempdir().unwrap();
    let folder = digits(folder.path());
    succeeds(&mut trains(&folder, "whole", &["--checkpoint-every", "3"]));
    for (name, [first, second]) in [("to-gpu", ["cpu", "cuda"]), ("to-cpu", ["cuda", "cpu"])] {
        let run = |epochs, device| {
            let more = ["--checkpoint-every", "3", "--resume", "--epochs", epochs];
            let mut run = trains(&folder, name, &more);
            run.args(["--device", device]);
            with_gpus(&mut run, &[]).map(|run| succeeds(run))
        };
        let Some(_) = run("1", first) else { return };
        // Of the checkpoints before the first step and after 3, 6 and 8, the second is left.
        let mut kept: Vec<PathBuf> =
            fs::read_dir(folder.join(name)).unwrap().map(|one| one.unwrap().path()).collect();
        kept.sort();
        assert_eq!(kept.len(), 4);
        kept.remove(1);
        kept.iter().for_each(|path| fs::remove_file(path).unwrap());
        run("3", second);
        let (whole, resumed) = (curve(&folder, "whole"), curve(&folder, name));
        let (whole, resumed) = (whole.last_chunk::<12>().unwrap(), resumed.last_chunk::<12>());
        for (a, b) in whole.iter().zip(resumed.unwrap()) {
            assert!(a.0 == b.0 && (a.1 - b.1).abs() < ROUNDING, "{name}: {a:?} {b:?}");
        }
    }
}

#[test]
fn a_loss_that_is_no_number_ends_the_run_as_on_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let folder = digits(folder.path());
    let mut texts = Vec::new();
    for (name, device, capability) in [("a", "cpu", "90"), ("b", "cuda", "90"), ("c", "cuda", "80")]
    {
        let mut run = trains(&folder, name, &["--lr", "1e38", "--device", device]);
        run.env("STAND_IN_CAPABILITY", capability);
        let Some(run) = with_gpus(&mut run, &[]) else { return };
        let output = run.output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        texts.push(said(&output).lines().last().unwrap().to_owned());
    }
    assert!(texts[0].ends_with(": training diverged; try a smaller --lr"), "{texts:?}");
    // Not even the step differs.
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}

#[test]
fn a_signal_ends_a_run_with_a_checkpoint_from_which_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = digits(folder.path());
    for (name, capability) in [("cluster", "90"), ("graph", "80")] {
        let run = |epochs: &str| {
            let more = ["--device", "cuda", "--resume", "--epochs", epochs];
            let mut run = trains(&folder, name, &more);
            run.env("STAND_IN_CAPABILITY", capability);
            with_gpus(&mut run, &[]).map(Running::start)
        };
        let Some(running) = run("1000000") else { return };
        assert!(running.trains());
        signal(&running, Signal::TERM);
        let (code, said) = running.end();
        assert_eq!(code, Some(143), "{said}");
        assert!(said.contains("mnist: stopped by SIGTERM in epoch "), "{said}");
        assert!(said.contains(" was written: continue from it with --resume"), "{said}");
        // Nothing is left to train.
        let (code, said) = run("1").unwrap().end();
        assert!(code == Some(0) && said.contains("resuming from "), "{said}");
    }
}

#[test]
fn a_library_that_is_missing_is_named_with_where_it_was_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    let folder = digits(folder.path());
    for (left_out, text) in [
        (&["cuda"][..], "the loader found no libcuda.so.1 in the folders of LD_LIBRARY_PATH ("),
        (&["nvrtc"], "the loader found no libnvrtc.so in the folders of LD_LIBRARY_PATH ("),
        (&["nccl"], "the loader found no libnccl.so.2 in the folders of LD_LIBRARY_PATH ("),
    ] {
        let mut run = trains(&folder, "none", &["--ranks", "2", "--device", "cuda"]);
        run.env("STAND_IN_DEVICES", "2");
        let Some(run) = with_gpus(&mut run, left_out) else { return };
        let output = run.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(text), "{}", said(&output));
    }
    // Nothing is written by a run that does not begin.
    assert!(!folder.join("none.jsonl").exists() || curve(&folder, "none").is_empty());
}

#[test]
fn without_a_gpu_on_every_rank_auto_trains_on_cpus_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let folder = digits(folder.path());
    let two = ["--ranks", "2", "--device", "auto"];
    succeeds(&mut trains(&folder, "cpu", &["--ranks", "2"]));
    // One device for two ranks.
    let mut run = trains(&folder, "auto", &two);
    let Some(run) = with_gpus(&mut run, &[]) else { return };
    let said = succeeds(run);
    let text = "training on CPUs, gradients over shared memory; not on GPUs, because of rank 1: \
                rank 1 (local rank 1) has no GPU: it sees 1 device; ";
    assert!(said.contains(text), "{said}");
    assert_eq!(last(&folder, "auto"), last(&folder, "cpu"));
}

#[test]
fn a_kernel_that_cannot_be_loaded_is_noticed_before_the_training() {
    let folder = tempfile::tempdir().unwrap();
    let folder = digits(folder.path());
    for number in 1..=4 {
        let mut run = trains(&folder, &format!("run-{number}"), &["--device", "auto"]);
        run.env("STAND_IN_FAIL", format!("cuModuleGetFunction=999#{number}"));
        let Some(run) = with_gpus(&mut run, &[]) else { return };
        let said = succeeds(run);
        let text = "training on the CPU, not on a GPU: cannot prepare the run: the driver says";
        assert!(said.contains(text), "{number}: {said}");
    }
}

#[test]
fn a_rank_that_is_lost_is_named_by_the_other_within_the_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let folder = digits(folder.path());
    let port = free_port();
    let start = |index: u32| {
        let mut run = rank(index, 2, port);
        run.env("PATH", crate::support::tool::inherited("PATH").unwrap());
        run.env("STAND_IN_DEVICES", "2").env("LOCAL_RANK", index.to_string());
        run.env("LOCAL_WORLD_SIZE", "2");
        run.args(["--device", "cuda", "--epochs", "1000000", "--timeout", "60", "--lr", "0.1"]);
        run.arg("--data").arg(&folder);
        with_gpus(&mut run, &[]).map(Running::start)
    };
    let (Some(first), Some(mut second)) = (start(0), start(1)) else { return };
    assert!(first.trains());
    let killed = std::time::Instant::now();
    second.child.kill().unwrap();
    let (code, said) = first.end();
    assert!(said.contains("rank 1"), "{said}");
    assert!(matches!(code, Some(3 | 124)), "{code:?} {said}");
    assert!(killed.elapsed() < SLACK + Duration::from_secs(60));
    second.end();
}
