//! Ranks that `mnist --ranks` has started stop with it, however it exits.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::clock::SLACK;
use crate::support::living::living;
use crate::support::mnist::mnist;
use crate::support::running::Running;
use crate::support::timeout::PATIENT;
use mpienv_sharding::random::{Purpose, Stream};
use rustix::process::{Pid, Signal, kill_process};

/// Starts `mnist` with two ranks that train without end; returns the variable that marks their
/// processes.
fn start(what: &str) -> (Running, String) {
    let mark = format!("{}-{what}", std::process::id());
    let mut command = mnist();
    command.env("MNIST_TEST", &mark).args([
        "--ranks",
        "2",
        "--timeout",
        PATIENT,
        "--epochs",
        "1000000",
        "--quiet",
    ]);
    (Running::start(&mut command), format!("MNIST_TEST={mark}"))
}

/// Waits until the program exits, and asserts that it leaves no processes behind; returns its exit
/// code.
fn end(mut program: Running, mark: &str) -> Option<i32> {
    let deadline = Instant::now() + SLACK;
    let pause = || thread::sleep(Duration::from_millis(10));
    while Instant::now() < deadline && program.child.try_wait().unwrap().is_none() {
        pause();
    }
    // The loop and the check below use the same look: a process that executes another program is
    // invisible for a moment.
    let mut left = living(&[mark]);
    while Instant::now() < deadline && !left.is_empty() {
        pause();
        left = living(&[mark]);
    }
    for rank in &left {
        kill_process(*rank, Signal::KILL).unwrap();
    }
    assert!(left.is_empty(), "{mark}: {left:?}");
    program.end().0
}

#[test]
fn ranks_end_with_a_program_that_a_signal_ends() {
    for (signal, name) in [(Signal::TERM, "term"), (Signal::INT, "int"), (Signal::KILL, "kill")] {
        let (program, mark) = start(name);
        assert!(program.trains());
        // The program itself, and its ranks.
        assert_eq!(living(&[&mark]).len(), 3);
        kill_process(Pid::from_child(&program.child), signal).unwrap();
        assert_ne!(end(program, &mark), Some(0));
    }
}

#[test]
fn ranks_end_with_a_program_that_is_killed_while_it_starts_them() {
    let mut random = Stream::new(11, Purpose::Digit(0));
    let mut seen = 0;
    // How long this machine takes to start a rank.
    let mut longest = 0.0_f64;
    for round in 0..30 {
        let (mut program, mark) = start("starting");
        let begun = Instant::now();
        if round % 3 == 0 {
            // Each third one is killed as soon as it has started a rank.
            while living(&[&mark]).len() < 2 {
                assert!(begun.elapsed() < SLACK, "it starts no rank");
            }
            longest = longest.max(begun.elapsed().as_secs_f64());
            seen += 1;
        } else {
            thread::sleep(Duration::from_secs_f64(random.between(0.0, 1.5 * longest)));
        }
        program.child.kill().unwrap();
        assert_eq!(end(program, &mark), None);
    }
    assert_eq!(seen, 10);
}

#[test]
fn ranks_end_with_a_program_that_is_killed_after_its_watchdog() {
    let (program, mark) = start("watchdog");
    assert!(program.trains());
    let children = format!("/proc/{0}/task/{0}/children", program.child.id());
    let words = |pid: &str| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    let children = fs::read_to_string(children).unwrap();
    // The process that kills the ranks of a program that was killed.
    let watchdog =
        children.split_whitespace().find(|pid| words(pid).starts_with("mpienv-watchdog")).unwrap();
    kill_process(Pid::from_raw(watchdog.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    kill_process(Pid::from_child(&program.child), Signal::KILL).unwrap();
    assert_eq!(end(program, &mark), None);
}
