//! Faults of any kind at any time, one after the other, while jobs on two hosts resume again and
//! again from their checkpoints.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use mpienv_sharding::random::{Purpose, Stream};
use rustix::process::Signal;

use super::checkpoints::{Checkpoints, undisturbed};
use super::job::{End, Job, PLACES, SLACK};
use crate::support::hosts::Hosts;
use crate::support::tool::inherited;

/// The number of faults, and the seed from which they are drawn.
const COUNT: &str = "MPIENV_FAULTS";
const SEED: &str = "MPIENV_FAULTS_SEED";
/// The length of a job.
const EPOCHS: u64 = 30;
/// How long ranks wait for each other at least, in seconds.
const TIMEOUT: u64 = 10;
/// What a rank prints if it has lost another rank, or has waited for it in vain.
const LOSSES: [&str; 7] = [
    " before all ranks had connected",
    " then stopped answering within ",
    " is lost: ",
    " did not arrive within ",
    " not connected to 10.77.0.1:",
    " did not reach rank 0 at ",
    ", but got no result within ",
];
/// A fault of a job.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill(usize),
    KillHost(&'static str),
    Cut(&'static str),
    CutBriefly(&'static str, Duration),
    Crash(&'static str),
    Stop(usize, Duration),
    Hang(usize),
}

impl Fault {
    fn draw(random: &mut Stream) -> Fault {
        let rank = random.between(0.0, 4.0) as usize;
        let host = PLACES[rank];
        // A sixth of the timeout: data that is lost during this time is sent again early enough,
        // also on a busy machine, where the end of the fault is late.
        let moment = Duration::from_secs_f64(random.between(0.1, TIMEOUT as f64 / 6.0));
        match random.between(0.0, 7.0) as u32 {
            0 => Fault::Kill(rank),
            1 => Fault::KillHost(host),
            2 => Fault::Cut(host),
            3 => Fault::CutBriefly(host, moment),
            4 => Fault::Crash(host),
            5 => Fault::Stop(rank, moment),
            _ => Fault::Hang(rank),
        }
    }

    /// Whether the fault makes the job fail.
    fn is_fatal(self) -> bool {
        !matches!(self, Fault::CutBriefly(..) | Fault::Stop(..))
    }

    /// Whether the fault kills this rank with a signal; a rank that hangs is killed after the
    /// others.
    fn kills(self, rank: usize) -> bool {
        match self {
            Fault::Kill(victim) | Fault::Hang(victim) => victim == rank,
            Fault::KillHost(host) | Fault::Crash(host) => PLACES[rank] == host,
            _ => false,
        }
    }

    fn happen(self, hosts: &Hosts, job: &mut Job) {
        match self {
            Fault::Kill(rank) => job.signal(rank, Signal::KILL),
            Fault::KillHost(host) => hosts.act(&["killall", host]),
            Fault::Cut(host) => hosts.act(&["cut", host]),
            Fault::CutBriefly(host, time) => {
                hosts.act(&["cut", host]);
                thread::sleep(time);
                hosts.act(&["heal", host]);
            }
            Fault::Crash(host) => hosts.act(&["crash", host]),
            Fault::Stop(rank, time) => {
                job.signal(rank, Signal::STOP);
                thread::sleep(time);
                job.signal(rank, Signal::CONT);
            }
            Fault::Hang(rank) => job.signal(rank, Signal::STOP),
        }
    }

    /// Repairs what the next job needs.
    fn mend(self, hosts: &Hosts) {
        match self {
            Fault::Cut(host) => hosts.act(&["heal", host]),
            Fault::Crash(host) => hosts.act(&["boot", host]),
            _ => {}
        }
    }
}

fn number(variable: &str, default: u64) -> u64 {
    inherited(variable).map_or(default, |text| text.to_str().unwrap().parse().unwrap())
}

/// Asserts that every rank finished, was killed by this fault, or names the rank that it lost
/// because of the fault.
fn assert_ends_by(fault: Option<Fault>, ends: &[End]) {
    for (rank, End { code, said }) in ends.iter().enumerate() {
        let reported = || {
            let names = |line: &str| {
                line.starts_with("mnist: ") && LOSSES.iter().any(|loss| line.contains(loss))
            };
            fault.is_some_and(Fault::is_fatal) && said.lines().any(names)
        };
        let by_fault = match code {
            Some(0) => true,
            Some(3 | 124) => reported(),
            // This includes 101, the exit code of a panic.
            Some(_) => false,
            None => fault.is_some_and(|fault| fault.kills(rank)),
        };
        assert!(by_fault && !said.contains("corrupt"), "{fault:?}: rank {rank}: {ends:?}");
    }
}

#[test]
fn random_faults_end_in_no_hang_no_wrong_result_and_no_corrupt_checkpoint() {
    let Some(hosts) = Hosts::up("random", 2, &[]) else { return };
    let (count, seed) = (number(COUNT, 5), number(SEED, 1));
    let mut random = Stream::new(seed, Purpose::Digit(0));
    let begun = Instant::now();
    let expected = undisturbed(4, EPOCHS);
    // On a machine so busy that a whole job takes long, the ranks wait longer for each other. A
    // step, a meeting and a checkpoint are small parts of a job.
    let timeout = TIMEOUT.max(begun.elapsed().as_secs() / 5);
    // A rank waits for the others to connect, for rank 0's report, and for a lost rank.
    let limit = 2 * Duration::from_secs(timeout) + SLACK;
    let (mut faults, mut fatal, mut starts, mut jobs) = (0, 0, 0, 0);
    let mut kept = Checkpoints::new();
    while faults < count || jobs == 0 {
        let epochs = EPOCHS.to_string();
        let wait = timeout.to_string();
        let words =
            ["--epochs", &epochs, "--timeout", &wait, "--resume", "--checkpoint-dir", kept.path()];
        let mut job = Job::start(&hosts, &[&words[..], &["--checkpoint-every", "7"]].concat());
        starts += 1;
        let drawn = (faults < count).then(|| Fault::draw(&mut random));
        let moment = Duration::from_secs_f64(random.between(0.0, 3.0));
        if drawn.is_some() {
            thread::sleep(moment);
        }
        // If a job has already finished, the fault does not affect it.
        let fault = drawn.filter(|_| job.is_under_way());
        if let Some(fault) = fault {
            eprintln!("fault {faults} of seed {seed}: {fault:?} after {moment:?}");
            faults += 1;
            fault.happen(&hosts, &mut job);
        }
        let begun = Instant::now();
        let ends = job.end(limit);
        let codes: Vec<_> = ends.iter().map(|end| end.code).collect();
        eprintln!("  exit codes {codes:?} after {:?}", begun.elapsed());
        if let Some(fault) = fault {
            fault.mend(&hosts);
        }
        assert_ends_by(fault, &ends);
        let newest = kept.newest();
        if codes.contains(&Some(0)) {
            assert!(
                fs::read(newest.unwrap()).unwrap() == expected,
                "{fault:?}: {EPOCHS} epochs come to other weights"
            );
        }
        if codes.iter().all(|code| *code == Some(0)) {
            jobs += 1;
            kept = Checkpoints::new();
        } else {
            fatal += 1;
        }
    }
    eprintln!(
        "{faults} faults, {fatal} of which ended all or some ranks, in {starts} starts of {jobs} jobs of {EPOCHS} epochs: nothing lost"
    );
}
