//! Notices that the workers of this node are silent.

use std::collections::VecDeque;
use std::process::Command;
use std::time::{Duration, Instant};

use super::activity::Trace;
use super::process::{at_work, cpu_time, now};
use super::python;
use super::sight::{Doing, Sight};
use crate::launch::heartbeat::Heartbeat;
use crate::launch::output::Captured;
use crate::value::host_name::host_name;

/// How many looks there are in the time after which a job has stalled.
const LOOKS: u32 = 16;
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(5);

/// The workers of this node, and when each was last active.
#[derive(Debug)]
pub(in super::super) struct Watch {
    timeout: Duration,
    every: Duration,
    /// How long this process has watched. While it is stopped, it reads nothing that workers write,
    /// and the time stands still.
    time: Duration,
    looked: Instant,
    /// When any worker was last active.
    active: Duration,
    /// Whether the other nodes know that the workers are silent.
    is_told: bool,
    workers: Vec<Worker>,
}

#[derive(Debug)]
struct Worker {
    rank: u32,
    process: u32,
    output: Captured,
    heartbeat: Heartbeat,
    /// The traces of its output and of its heartbeat file at the last look.
    seen: [Trace; 2],
    /// When it last wrote something, and when it last touched the file.
    active: [Option<Duration>; 2],
    /// The CPU time of the process that does its work, for each look of the last `timeout`.
    cpu: VecDeque<(Duration, u32, Duration)>,
}

impl Watch {
    /// `timeout`: how long a job may be silent.
    pub(in super::super) fn new(timeout: Duration) -> Watch {
        Watch {
            timeout,
            every: (timeout / LOOKS).clamp(SHORTEST, LONGEST),
            time: Duration::ZERO,
            looked: Instant::now(),
            active: Duration::ZERO,
            is_told: false,
            workers: Vec::new(),
        }
    }

    /// Adds a worker that has just started. A start is activity.
    pub(in super::super) fn add(
        &mut self,
        rank: u32,
        process: u32,
        output: Captured,
        heartbeat: Heartbeat,
    ) {
        self.advance();
        let seen = [Trace::default(), Trace::of_file(heartbeat.path())];
        let (active, cpu) = ([None; 2], VecDeque::new());
        self.workers.push(Worker { rank, process, output, heartbeat, seen, active, cpu });
        self.active = self.time;
    }

    /// Removes a worker that has exited, which is activity, too.
    pub(in super::super) fn remove(&mut self, rank: u32) {
        self.advance();
        self.workers.retain(|worker| worker.rank != rank);
        self.active = self.time;
    }

    /// Returns how long to wait before the next look.
    pub(in super::super) fn pause(&self) -> Duration {
        self.every.saturating_sub(self.looked.elapsed())
    }

    /// Looks at the workers if it is time. Returns whether they are silent if that has changed.
    pub(in super::super) fn turn(&mut self) -> Option<bool> {
        if self.pause().is_zero() {
            self.look();
        }
        let is_silent = self.is_silent();
        (std::mem::replace(&mut self.is_told, is_silent) != is_silent).then_some(is_silent)
    }

    fn is_silent(&self) -> bool {
        self.time.saturating_sub(self.active) >= self.timeout
    }

    /// Advances the time. After a longer pause than intended, only this process may have stood
    /// still.
    fn advance(&mut self) {
        let now = Instant::now();
        let since = now.saturating_duration_since(self.looked);
        self.time += since.min(2 * self.every);
        self.looked = now;
    }

    fn look(&mut self) {
        self.advance();
        for worker in &mut self.workers {
            let (output, is_blocked) = worker.output.trace();
            let now = [output, Trace::of_file(worker.heartbeat.path())];
            for ((active, now), seen) in worker.active.iter_mut().zip(now).zip(worker.seen) {
                if now != seen {
                    *active = Some(self.time);
                    self.active = self.time;
                }
            }
            worker.seen = now;
            if is_blocked {
                // The reader of this process's output is slow, and makes the workers wait.
                self.active = self.time;
            }
            worker.sample(self.time, self.timeout);
        }
    }

    /// Returns what each worker is doing, or `None` if one has been active in the meantime.
    ///
    /// `prepare`: what the launch does to every command that it starts.
    pub(in super::super) fn examine(
        &mut self,
        prepare: &dyn Fn(&mut Command),
    ) -> Option<Vec<Sight>> {
        if !self.is_still_silent() {
            return None;
        }
        let host = host_name().unwrap_or_else(|| "an unknown host".to_owned());
        let mut sights: Vec<_> =
            self.workers.iter().map(|worker| worker.sight(&host, self.time)).collect();
        let processes: Vec<_> = sights.iter().map(|sight| sight.process).collect();
        let stacks = python::stacks(&processes, prepare);
        sights.iter_mut().zip(stacks).for_each(|(sight, stack)| sight.stack = stack);
        // What was seen took some time.
        self.is_still_silent().then_some(sights)
    }

    fn is_still_silent(&mut self) -> bool {
        self.look();
        self.is_told = self.is_silent();
        self.is_told
    }
}

impl Worker {
    fn sample(&mut self, time: Duration, timeout: Duration) {
        let process = at_work(self.process);
        if let Some(cpu) = cpu_time(process) {
            self.cpu.push_back((time, process, cpu));
        }
        while self.cpu.get(1).is_some_and(|(at, ..)| time.saturating_sub(*at) >= timeout) {
            self.cpu.pop_front();
        }
    }

    fn sight(&self, host: &str, time: Duration) -> Sight {
        let [written, touched] =
            self.active.map(|active| active.map(|active| time.saturating_sub(active)));
        let process = at_work(self.process);
        let now = now(process);
        let mut same = self.cpu.iter().filter(|(_, sampled, _)| *sampled == process);
        let first = same.next().copied();
        let window = first.map_or(Duration::ZERO, |(at, ..)| time.saturating_sub(at));
        let cpu =
            first.zip(cpu_time(process)).map(|((.., before), now)| now.saturating_sub(before));
        let mut doing = now.as_ref().map_or(Doing::Unknown, |now| now.doing);
        // Its main thread may be waiting for the others.
        let is_busy = cpu.is_some_and(|cpu| !window.is_zero() && cpu >= window / 2);
        if is_busy && matches!(doing, Doing::Waits | Doing::Sleeps) {
            doing = Doing::Runs;
        }
        Sight {
            rank: self.rank,
            host: host.to_owned(),
            written,
            touched,
            line: self.output.last_line(),
            process,
            command: now.as_ref().map_or_else(String::new, |now| now.command.clone()),
            doing,
            call: now.as_ref().and_then(|now| now.call.clone()),
            channel: now.and_then(|now| now.channel),
            cpu,
            window,
            stack: Vec::new(),
        }
    }
}
