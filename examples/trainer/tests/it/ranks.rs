//! The `mnist` program with several ranks: started by itself and by the real mpirun.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use crate::support::clock::SLACK;
use crate::support::data::real_mnist;
use crate::support::launcher::job;
use crate::support::mnist::{mnist, rank};
use crate::support::port::free_port;
use crate::support::timeout::{PATIENT, in_time};
use crate::support::tool::is_there;

fn spawn(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The test accuracy of the last epoch.
fn accuracy(output: &Output) -> f64 {
    assert!(output.status.success(), "{}", said(output));
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text
        .lines()
        .rfind(|line| line.contains("test accuracy"))
        .unwrap_or_else(|| panic!("{text}"));
    line.split("test accuracy is ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap()
}

#[test]
fn two_ranks_of_32_train_as_one_of_64() {
    let two = mnist()
        .args(["--ranks", "2", "--timeout", PATIENT, "--epochs", "2", "--quiet"])
        .output()
        .unwrap();
    let one = mnist().args(["--batch-size", "64", "--epochs", "2", "--quiet"]).output().unwrap();
    assert!((accuracy(&two) - accuracy(&one)).abs() <= 0.002, "{two:?} {one:?}");
    assert!(accuracy(&one) > 0.8);
}

#[test]
fn each_rank_prints_its_own_losses_and_rank_0_the_epochs() {
    let output = mnist()
        .args(["--ranks", "3", "--timeout", PATIENT, "--epochs", "1", "--log-steps"])
        .output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for rank in 0..3 {
        let first = format!("rank {rank} of 3: epoch: 0, step: 0, loss is 2.3");
        assert_eq!(text.lines().filter(|line| line.starts_with(&first)).count(), 1, "{text}");
    }
    assert_eq!(text.lines().filter(|line| line.contains("test accuracy")).count(), 1, "{text}");
}

#[test]
fn a_rank_with_another_device_is_named_by_all() {
    let port = free_port();
    let start = |index: u32, device: &str| {
        let mut command = rank(index, 2, port);
        spawn(command.args(["--timeout", PATIENT, "--epochs", "1", "--device", device]))
    };
    for child in [start(0, "cpu"), start(1, "auto")] {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let text = "rank 1 has device \"auto\", rank 0 has \"cpu\": ";
        assert!(said(&output).contains(text), "{}", said(&output));
    }
}

#[test]
fn mpirun_starts_two_ranks_on_real_mnist() {
    let Some((data, _)) = real_mnist() else { return };
    if !is_there("mpirun") {
        return;
    }
    let mut command = job(Path::new("mpirun"), &[], 2, env!("CARGO_BIN_EXE_mnist"));
    let two = command.args(["--epochs", "1", "--quiet", "--data"]).arg(&data).output().unwrap();
    let one = mnist()
        .args(["--batch-size", "64", "--epochs", "1", "--quiet", "--data"])
        .arg(&data)
        .output()
        .unwrap();
    assert!(accuracy(&two) >= 0.90, "{two:?}");
    assert!((accuracy(&two) - accuracy(&one)).abs() <= 0.002, "{two:?} {one:?}");
}

#[test]
fn two_jobs_of_mpirun_train_at_the_same_time_on_one_machine_without_any_option() {
    if !is_there("mpirun") {
        return;
    }
    let start = || {
        let mut command = job(Path::new("mpirun"), &[], 2, env!("CARGO_BIN_EXE_mnist"));
        // Each job finds its own port, here among those that jobs of other tests do not derive.
        command.env_remove("MASTER_PORT").env("MPIENV_PORT_RANGE", "10000-19999");
        command.args(["--epochs", "1", "--quiet", "--timeout", PATIENT]);
        spawn(&mut command)
    };
    for pair in 0..10 {
        for child in [start(), start()] {
            let output = child.wait_with_output().unwrap();
            assert!(accuracy(&output) > 0.5, "pair {pair}: {}", said(&output));
        }
    }
}

#[test]
fn a_port_in_use_at_rank_0_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let output = rank(0, 2, port).args(["--timeout", PATIENT]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains(&format!("port {port} is in use on this host")),
        "{}",
        said(&output)
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn a_rank_that_never_comes_is_named_at_the_deadline_by_all_that_came() {
    let meet = |timeout: u32| {
        let (port, timeout) = (free_port(), timeout.to_string());
        let came = [0, 1, 3].map(|index| spawn(rank(index, 4, port).args(["--timeout", &timeout])));
        came.map(|child| child.wait_with_output().unwrap())
    };
    let named = "rank 2 of 4 has not connected to ";
    let start = Instant::now();
    for output in in_time(meet, |outputs| outputs.iter().all(|output| said(output).contains(named)))
    {
        assert_eq!(output.status.code(), Some(124), "{}", said(&output));
        assert!(said(&output).contains(named), "{}", said(&output));
        assert!(output.stdout.is_empty());
    }
    assert!(start.elapsed() < 2 * SLACK);
}

#[test]
fn a_master_that_is_not_there_is_named_at_the_deadline() {
    let output = rank(1, 2, free_port()).args(["--timeout", "8"]).output().unwrap();
    assert_eq!(output.status.code(), Some(124));
    assert!(
        said(&output).contains("connection refused: nothing listens there"),
        "{}",
        said(&output)
    );
}

#[test]
fn several_nodes_without_a_master_are_an_error_with_the_ways_to_name_one() {
    let output = mnist().env("RANK", "0").env("WORLD_SIZE", "2").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("give rank 0's host to all ranks: MASTER_ADDR=HOST"),
        "{}",
        said(&output)
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn a_rank_that_fails_gives_the_program_its_exit_code() {
    let output = mnist()
        .args(["--ranks", "2", "--timeout", PATIENT, "--lr", "1e38", "--epochs", "1", "--quiet"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
}
