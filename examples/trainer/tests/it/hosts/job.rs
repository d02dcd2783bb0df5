//! Four ranks of `mnist` on two hosts, started by hand. The tests see the output of each, and how
//! it exits.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub use crate::support::clock::SLACK;
use crate::support::hosts::Hosts;

/// The host of each rank.
pub const PLACES: [&str; 4] = ["nodeA", "nodeA", "nodeB", "nodeB"];

/// How a rank exited.
#[derive(Debug)]
pub struct End {
    /// `None` if a signal killed it.
    pub code: Option<i32>,
    pub said: String,
}

/// Four running ranks.
pub struct Job {
    ranks: Vec<Rank>,
    /// The output lines of rank 0.
    lines: Receiver<String>,
    /// A rank that a signal has stopped: it does not exit by itself.
    stopped: Option<usize>,
}

/// As seen from this process, the program that starts a rank is the parent of the rank on its host.
struct Rank {
    child: Child,
    errors: JoinHandle<String>,
}

impl Rank {
    fn start(command: &mut Command) -> (Rank, impl BufRead + use<>) {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let errors = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        (Rank { child, errors }, stdout)
    }

    /// The PID of the rank itself; `None` before it has started and after it has exited.
    fn pid(&self) -> Option<Pid> {
        let starter = self.child.id();
        let list = fs::read_to_string(format!("/proc/{starter}/task/{starter}/children"))
            .unwrap_or_default();
        let pid = list.split_whitespace().next()?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        (name == "mnist\n").then(|| Pid::from_raw(pid.parse().unwrap()).unwrap())
    }
}

impl Job {
    /// Starts all ranks with the same arguments; returns when all ranks' processes run.
    pub fn start(hosts: &Hosts, words: &[&str]) -> Job {
        let (sender, lines) = mpsc::channel();
        let mut ranks = Vec::new();
        for (rank, host) in PLACES.iter().enumerate() {
            let mut command = hosts.on(host, env!("CARGO_BIN_EXE_mnist"));
            command.args(["--quiet"]).args(words);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "4");
            command.env("MASTER_ADDR", "10.77.0.1").env("MASTER_PORT", "6105");
            let (rank, mut stdout) = Rank::start(&mut command);
            let sender = sender.clone();
            thread::spawn(move || {
                let mut line = String::new();
                while stdout.read_line(&mut line).is_ok_and(|length| length > 0) {
                    // Nothing receives the lines once the job has been given up.
                    let _ = sender.send(std::mem::take(&mut line));
                }
            });
            ranks.push(rank);
        }
        let mut job = Job { ranks, lines, stopped: None };
        // Before that, a fault would hit the program that starts a rank.
        let until = Instant::now() + SLACK;
        while job.is_under_way() && !job.ranks.iter().all(|rank| rank.pid().is_some()) {
            assert!(Instant::now() < until, "the ranks do not start");
            thread::sleep(Duration::from_millis(5));
        }
        job
    }

    /// Waits until the ranks have finished an epoch.
    #[track_caller]
    pub fn await_epoch(&self) {
        assert!(self.has_epoch(), "the ranks do not train");
    }

    /// The same; returns whether they have, which ranks that are too slow for their timeout do not.
    pub fn has_epoch(&self) -> bool {
        self.lines.recv_timeout(SLACK).is_ok_and(|line| line.starts_with("epoch: "))
    }

    /// Discards the output so far, and waits until another epoch is finished.
    #[track_caller]
    pub fn await_another_epoch(&self) {
        while self.lines.try_recv().is_ok() {}
        self.await_epoch();
    }

    /// Whether the ranks train, or may do so soon: no rank has exited.
    pub fn is_under_way(&mut self) -> bool {
        self.ranks.iter_mut().all(|rank| rank.child.try_wait().unwrap().is_none())
    }

    /// Sends a signal to a rank, if it is running.
    pub fn signal(&mut self, rank: usize, signal: Signal) {
        if let Some(pid) = self.ranks[rank].pid() {
            // It may exit at this moment.
            let _ = kill_process(pid, signal);
            self.stopped = (signal == Signal::STOP).then_some(rank);
            if signal == Signal::CONT {
                // nsenter stops when the program that it has started does.
                let _ = kill_process(Pid::from_child(&self.ranks[rank].child), signal);
            }
        }
    }

    /// How each rank exits. All must exit within `limit` of the last epoch: a rank that does not is
    /// a hang, and fails the test. A stopped rank is killed after the others.
    #[track_caller]
    pub fn end(mut self, limit: Duration) -> Vec<End> {
        let mut until = Instant::now() + limit;
        while Instant::now() < until && !self.alive().is_empty() {
            if self.lines.try_recv().is_ok() {
                until = Instant::now() + limit;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let hung = self.alive();
        for rank in &mut self.ranks {
            if rank.child.try_wait().unwrap().is_none() {
                if let Some(pid) = rank.pid() {
                    let _ = kill_process(pid, Signal::KILL);
                }
                rank.child.kill().unwrap();
            }
        }
        let ends = self.ranks.into_iter().map(|mut rank| {
            let code = rank.child.wait().unwrap().code();
            End { code, said: rank.errors.join().unwrap() }
        });
        let ends: Vec<End> = ends.collect();
        assert!(hung.is_empty(), "ranks {hung:?} hang after {limit:?}: {ends:?}");
        ends
    }

    /// The ranks that have not exited, except one that was stopped.
    fn alive(&mut self) -> Vec<usize> {
        let ranks =
            self.ranks.iter_mut().enumerate().filter(|(index, _)| self.stopped != Some(*index));
        ranks
            .filter_map(|(index, rank)| rank.child.try_wait().unwrap().is_none().then_some(index))
            .collect()
    }
}
