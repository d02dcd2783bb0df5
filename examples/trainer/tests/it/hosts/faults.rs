//! Faults of a job on two hosts, one at a time: how the other ranks exit, and that the job resumes
//! to the same bits.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::checkpoints::{Checkpoints, undisturbed};
use super::job::{End, Job, PLACES, SLACK};
use crate::support::hosts::Hosts;
use crate::support::timeout::in_time;

/// Longer than any test: a rank that exits did not wait for this timeout.
const LONG: &str = "3000";

/// A job that writes checkpoints, trains without end, and has begun to train.
fn training(hosts: &Hosts, kept: &Checkpoints, timeout: &str) -> Job {
    training_in_time(hosts, kept, timeout).expect("the ranks train")
}

/// The same; `None` if the ranks are too slow for the timeout.
fn training_in_time(hosts: &Hosts, kept: &Checkpoints, timeout: &str) -> Option<Job> {
    let words =
        ["--epochs", "1000000", "--timeout", timeout, "--resume", "--checkpoint-dir", kept.path()];
    let job = Job::start(hosts, &[&words[..], &["--checkpoint-every", "20"]].concat());
    if !job.has_epoch() {
        job.end(SLACK);
        return None;
    }
    Some(job)
}

/// Asserts that every rank in `ranks` failed with one of the exit codes, and named one of the ranks
/// that it lost, with its host.
#[track_caller]
fn assert_named(ends: &[End], ranks: &[usize], codes: &[i32], lost: &[usize]) {
    for &rank in ranks {
        let End { code, said } = &ends[rank];
        assert!(code.is_some_and(|code| codes.contains(&code)), "rank {rank}: {code:?} {said}");
        let name = |&lost: &usize| {
            let host = PLACES[lost];
            format!("mnist: rank {lost} on {host} ({}) ", crate::support::hosts::address(host))
        };
        let line =
            said.lines().find(|line| lost.iter().map(name).any(|name| line.starts_with(&name)));
        let line = line.unwrap_or_else(|| panic!("rank {rank} names none of {lost:?}: {said}"));
        assert!(
            line.contains(" is lost: ") || line.contains(" did not arrive within "),
            "rank {rank}: {line}"
        );
    }
}

/// Asserts that the job resumes from its checkpoint, and finishes as if nothing had happened.
#[track_caller]
fn assert_goes_on(hosts: &Hosts, kept: &Checkpoints) {
    let epochs = kept.epochs(4) + 1;
    let words = [
        "--epochs",
        &epochs.to_string(),
        "--timeout",
        LONG,
        "--resume",
        "--checkpoint-dir",
        kept.path(),
    ];
    for End { code, said } in Job::start(hosts, &words).end(SLACK) {
        assert_eq!(code, Some(0), "{said}");
        assert!(!said.contains("corrupt"), "{said}");
    }
    assert!(kept.last() == undisturbed(4, epochs), "{epochs} epochs come to other weights");
}

#[test]
fn killed_ranks_and_hosts_are_named_by_all_others_and_the_job_goes_on() {
    let Some(hosts) = Hosts::up("killed", 2, &[]) else { return };
    let kept = Checkpoints::new();

    let mut job = training(&hosts, &kept, LONG);
    job.signal(3, Signal::KILL);
    let ends = job.end(SLACK);
    assert_named(&ends, &[0, 1, 2], &[3], &[3]);

    let mut job = training(&hosts, &kept, LONG);
    job.signal(0, Signal::KILL);
    let ends = job.end(SLACK);
    assert_named(&ends, &[1, 2, 3], &[3], &[0]);

    let job = training(&hosts, &kept, LONG);
    hosts.act(&["killall", "nodeB"]);
    let ends = job.end(SLACK);
    assert_named(&ends, &[0, 1], &[3], &[2, 3]);
    assert_goes_on(&hosts, &kept);
}

#[test]
fn a_host_that_is_cut_off_or_has_no_power_is_named_within_the_timeout_and_the_job_goes_on() {
    let Some(hosts) = Hosts::up("cut", 2, &[]) else { return };
    let kept = Checkpoints::new();
    let lose = |how: &str, mend: &str, timeout: u32| {
        let job = training_in_time(&hosts, &kept, &timeout.to_string())?;
        let begun = Instant::now();
        hosts.act(&[how, "nodeB"]);
        // For half of the timeout, the ranks report to each other whom they wait for.
        let ends = job.end(Duration::from_secs(timeout.into()) * 3 / 2 + SLACK);
        hosts.act(&[mend, "nodeB"]);
        // Ranks that are given up earlier were only too slow.
        (begun.elapsed() >= Duration::from_secs(timeout.into())).then_some(ends)
    };
    let was_in_time = |ends: &Option<_>| ends.is_some();

    let ends = in_time(|timeout| lose("cut", "heal", timeout), was_in_time).unwrap();
    // The system may detect the cut a moment before the rank gives up: the other end is then lost,
    // instead of only late.
    assert_named(&ends, &[0, 1], &[124, 3], &[2, 3]);
    assert_named(&ends, &[2, 3], &[124, 3], &[0, 1]);

    let ends = in_time(|timeout| lose("crash", "boot", timeout), was_in_time).unwrap();
    assert_named(&ends, &[0, 1], &[124, 3], &[2, 3]);
    assert_goes_on(&hosts, &kept);
}

#[test]
fn a_cable_that_is_back_in_time_and_ranks_that_are_slow_end_nothing() {
    let Some(hosts) = Hosts::up("slow", 2, &[]) else { return };
    let kept = Checkpoints::new();
    let mut job = training(&hosts, &kept, "300");

    hosts.act(&["cut", "nodeB"]);
    thread::sleep(Duration::from_secs(2));
    hosts.act(&["heal", "nodeB"]);
    // Lost data is sent again, at growing intervals.
    thread::sleep(Duration::from_secs(3));
    job.await_another_epoch();

    for rank in 0..4 {
        job.signal(rank, Signal::STOP);
        thread::sleep(Duration::from_millis(500));
        job.signal(rank, Signal::CONT);
    }
    job.await_another_epoch();

    job.signal(2, Signal::TERM);
    for End { code, said } in job.end(SLACK) {
        assert_eq!(code, Some(143), "{said}");
    }
    assert_goes_on(&hosts, &kept);
}

#[test]
fn a_full_disk_ends_all_ranks_and_what_was_kept_is_whole() {
    let Some(hosts) = Hosts::up("full", 2, &[]) else { return };
    // A small disk on rank 0's host; a checkpoint takes 36 kB of it.
    let folder = Checkpoints::new();
    let mount = |options: &str| {
        hosts.act(&[
            "exec",
            "nodeA",
            "--",
            "mount",
            "-t",
            "tmpfs",
            "-o",
            options,
            "tmpfs",
            folder.path(),
        ]);
    };
    mount("size=120k");
    let words = ["--epochs", "9", "--timeout", LONG, "--resume", "--checkpoint-dir", folder.path()];
    let ends = Job::start(&hosts, &words).end(SLACK);
    for (rank, End { code, said }) in ends.iter().enumerate() {
        assert_eq!(*code, Some(1), "rank {rank}: {said}");
        let who = if rank == 0 { "mnist: " } else { "mnist: rank 0: " };
        assert!(
            said.lines().any(|line| line.starts_with(&format!("{who}{}", folder.path()))),
            "rank {rank}: {said}"
        );
        assert!(said.contains("No space left on device"), "rank {rank}: {said}");
    }
    mount("remount,size=1m");
    for End { code, said } in Job::start(&hosts, &words).end(SLACK) {
        assert_eq!(code, Some(0), "{said}");
        assert!(!said.contains("corrupt"), "{said}");
    }
    let copy = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let to = copy.path().to_str().unwrap();
    hosts.act(&["exec", "nodeA", "--", "sh", "-c", &format!("cp {}/* {to}", folder.path())]);
    let newest = Path::new(to).join("checkpoint-000000846.safetensors");
    assert!(fs::read(newest).unwrap() == undisturbed(4, 9), "other weights");
}
