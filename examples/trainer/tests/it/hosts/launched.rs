//! Jobs that the real mpirun starts on several hosts, over TCP and over MPI.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::checkpoints::{Checkpoints, undisturbed};
use super::job::SLACK;
use crate::support::hosts::{
    Hosts, LAYOUTS, Layout, SECOND_NETWORK, address, mpiruns, partly_set, said_in_time,
};
use crate::support::timeout::{PATIENT, in_time};
use crate::support::tool::is_there;

const MNIST: &str = env!("CARGO_BIN_EXE_mnist");
const TRAIN: [&str; 5] = ["--epochs", "1", "--quiet", "--timeout", PATIENT];

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The standard output of a job that must succeed.
#[track_caller]
fn succeeded(what: &str, output: &Output) -> String {
    assert!(output.status.success(), "{what}: {:?} {}", output.status, said(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The line of the first epoch without its speed.
fn outcome(text: &str) -> String {
    let line = text.lines().find(|line| line.starts_with("epoch: 0, train loss"));
    line.unwrap_or_else(|| panic!("{text}")).split(", ").take(4).collect::<Vec<_>>().join(", ")
}

/// The result of one epoch of four ranks on this machine.
fn one_machine() -> String {
    let alone =
        Command::new(MNIST).env_clear().args(["--ranks", "4"]).args(TRAIN).output().unwrap();
    outcome(&succeeded("one machine", &alone))
}

/// Asserts that four ranks that mpirun starts get the same result as on one machine. Over TCP, all
/// digits agree. Over MPI, which may add in a different order, the last digit may differ.
#[track_caller]
fn assert_trains(what: &str, command: &mut Command, backend: &str, expected: &str) {
    let output = command.args([MNIST, "--backend", backend]).args(TRAIN).output().unwrap();
    let found = outcome(&succeeded(&format!("{what}, {backend}"), &output));
    let near = numbers(&found).iter().zip(numbers(expected)).all(|(a, b)| (a - b).abs() < 1.5e-4);
    assert!(found == expected || backend == "mpi" && near, "{what}, {backend}: {found}");
}

/// The losses and the accuracy of an outcome.
fn numbers(outcome: &str) -> [f64; 3] {
    let numbers: Vec<f64> = outcome
        .split(", ")
        .skip(1)
        .map(|part| part.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    numbers.try_into().unwrap()
}

#[test]
fn jobs_in_every_layout_train_as_four_ranks_of_one_machine() {
    let Some(hosts) = Hosts::up("train", 3, &[]) else { return };
    let expected = one_machine();
    for (version, mpirun) in mpiruns() {
        for Layout { name, words, hosts: places } in LAYOUTS {
            let master = format!("MASTER_ADDR={}", address(places[0]));
            let words = [&["-x", &master], words].concat();
            for backend in ["tcp", "mpi"] {
                let what = format!("Open MPI {version}, {name}");
                assert_trains(&what, &mut hosts.mpirun(&mpirun, &words), backend, &expected);
            }
        }
    }
}

#[test]
fn jobs_over_two_networks_over_ipv6_and_without_host_names_train_as_on_one_machine() {
    let settings = [("TWO_HOSTS_NETS", "2"), ("TWO_HOSTS_IPV6", "1")];
    let Some(hosts) = Hosts::up("paths", 2, &settings) else { return };
    let expected = one_machine();
    let run = |name: &str, words: &[&str], master: &str, backends: &[&str]| {
        for (version, mpirun) in mpiruns() {
            // Version 5 does not name the host of any rank.
            let given = format!("MASTER_ADDR={master}");
            let given =
                if version == 5 || !master.starts_with("10.") { &["-x", &given][..] } else { &[] };
            let words = [given, words, &["-H", "10.77.0.1:2,10.77.0.2:2"]].concat();
            for backend in backends {
                let what = format!("Open MPI {version}, {name}");
                assert_trains(&what, &mut hosts.mpirun(&mpirun, &words), backend, &expected);
            }
        }
    };
    run("two networks", &[], "10.77.0.1", &["tcp", "mpi"]);
    run("the second network", SECOND_NETWORK, "10.78.0.1", &["tcp", "mpi"]);
    run("IPv6", &[], "fd77::1", &["tcp"]);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    hosts.forget_names(folder.path(), "127.0.0.1 localhost\n");
    run("no names", &[], "10.77.0.1", &["tcp", "mpi"]);
}

#[test]
fn slurms_steps_on_two_hosts_train_as_four_ranks_of_one_machine() {
    let Some(hosts) = Hosts::up("step", 2, &[]) else { return };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(mut command) = hosts.slurm(folder.path()) else { return };
    let step = command.args(["srun", "-N2", "-n4", MNIST]).args(TRAIN).output().unwrap();
    assert_eq!(outcome(&succeeded("Slurm", &step)), one_machine());
}

#[test]
fn a_port_that_is_set_for_only_some_ranks_fails_the_start_and_names_them() {
    let Some(hosts) = Hosts::up("given", 2, &[]) else { return };
    for (version, mpirun) in mpiruns() {
        for case in 0..2 {
            let what = format!("Open MPI {version}");
            let (said, verdict) = said_in_time(|timeout| {
                let (words, verdict) =
                    partly_set(&[MNIST, "--backend", "tcp", "--timeout", timeout])
                        .swap_remove(case);
                let output =
                    hosts.mpirun(&mpirun, &words).env("MASTER_PORT", "23456").output().unwrap();
                assert!(!output.status.success() && output.stdout.is_empty(), "{what}");
                (said(&output), verdict)
            });
            for part in [": the ranks disagree on MASTER_PORT: ", verdict] {
                assert!(said.contains(part), "{what}: {said}");
            }
            // This happens before the deadline.
            assert!(!said.contains("connected to"), "{what}: {said}");
        }
    }
}

/// Starts two ranks on two hosts with mpirun. They train without end. Waits until they have written
/// a checkpoint; `None` if they are too slow for their timeout.
fn training(hosts: &Hosts, backend: &str, kept: &Checkpoints, timeout: &str) -> Option<Child> {
    let before = kept.newest();
    // After all processes of the host were killed, its sshd takes a moment to come back.
    while !hosts.on("nodeA", "ssh").args(["nodeB", "true"]).output().unwrap().status.success() {
        thread::sleep(Duration::from_millis(100));
    }
    let mut command = two_ranks(hosts, backend, kept, "1000000", timeout);
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while kept.newest() == before {
        if running.try_wait().unwrap().is_some() {
            eprintln!("{backend}: no checkpoint: {}", said(&running.wait_with_output().unwrap()));
            return None;
        }
        thread::sleep(Duration::from_millis(20));
    }
    Some(running)
}

fn two_ranks(
    hosts: &Hosts,
    backend: &str,
    kept: &Checkpoints,
    epochs: &str,
    timeout: &str,
) -> Command {
    let mut command =
        hosts.mpirun(Path::new("mpirun"), &["-H", "nodeA:1,nodeB:1", MNIST, "--quiet"]);
    command.args(["--backend", backend, "--epochs", epochs, "--timeout", timeout]);
    command.args(["--resume", "--checkpoint-dir", kept.path(), "--checkpoint-every", "20"]);
    command
}

/// The output that mpirun forwards. Asserts that mpirun exits by itself, with an error.
#[track_caller]
fn failed(running: Child, what: &str) -> String {
    let begun = Instant::now();
    let output = running.wait_with_output().unwrap();
    let code = output.status.code();
    assert!(code.is_some_and(|code| code != 0), "{what}: {code:?} {}", said(&output));
    assert!(begun.elapsed() < SLACK, "{what}: {:?} {}", begun.elapsed(), said(&output));
    said(&output)
}

#[test]
fn mpirun_ends_after_a_kill_and_all_ranks_after_a_cut_and_the_job_goes_on() {
    let Some(hosts) = Hosts::up("ended", 2, &[]) else { return };
    if !is_there("mpirun") || !is_there("pgrep") {
        return;
    }
    let runs_on =
        |host| hosts.on(host, "pgrep").args(["-x", "mnist"]).output().unwrap().status.success();
    for backend in ["tcp", "mpi"] {
        let kept = Checkpoints::new();
        // First the rank; then mpirun's daemon on its host as well.
        for victims in ["pkill -KILL -x mnist", "kill -KILL -1"] {
            let running = training(&hosts, backend, &kept, PATIENT).expect("the ranks train");
            hosts.on("nodeB", "sh").args(["-c", victims]).output().unwrap();
            failed(running, &format!("{backend}, {victims}"));
        }

        // mpirun waits for its daemon as long as the cable is cut, but no rank waits.
        let cut = |timeout: u32| {
            let running = training(&hosts, backend, &kept, &timeout.to_string())?;
            hosts.act(&["cut", "nodeB"]);
            let until = Instant::now() + Duration::from_secs(timeout.into()) * 3 / 2 + SLACK;
            while runs_on("nodeA") || runs_on("nodeB") {
                assert!(Instant::now() < until, "{backend}: ranks outlive the timeout");
                thread::sleep(Duration::from_millis(100));
            }
            hosts.act(&["heal", "nodeB"]);
            Some((timeout, failed(running, backend)))
        };
        let (timeout, stderr) = in_time(cut, Option::is_some).expect("the ranks train");
        let late = format!(" did not arrive within {timeout} s");
        assert!(stderr.contains(&late) || stderr.contains(" is lost: "), "{backend}: {stderr}");

        let epochs = kept.epochs(2) + 1;
        succeeded(
            backend,
            &two_ranks(&hosts, backend, &kept, &epochs.to_string(), PATIENT).output().unwrap(),
        );
        // With two ranks, every backend produces the same bits.
        assert!(
            kept.last() == undisturbed(2, epochs),
            "{backend}: {epochs} epochs come to other weights"
        );
    }
}
