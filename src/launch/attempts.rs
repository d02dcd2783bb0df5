//! Starts the workers, and starts them again if they fail.

mod coordinator;
mod link;
mod mailbox;
#[cfg(feature = "rendezvous")]
mod nodes;

use std::fmt::Display;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use crate::launch::ending::{Cause, Failure, Final, by_signal, signal};
use crate::launch::error::LaunchError;
use crate::launch::report::LaunchReport;
use crate::launch::running::{Exit, Running};
use crate::launch::stop::{Request, is_request};
use crate::launch::supervisor::{Late, Signals};
use crate::value::host_name::host_name;
use mpienv_core::seam::Attempt;

pub(super) use self::coordinator::{Event, Failed, Haste};
pub(super) use self::link::Link;
#[cfg(feature = "rendezvous")]
pub(super) use self::nodes::{Meeting, meet};

use self::coordinator::{Order, Verdict};

/// Exit codes after which a restart would fail in the same way: wrong usage, and commands that
/// cannot be started.
const FINAL_CODES: [i32; 3] = [2, 126, 127];

/// Why an attempt failed on this node.
enum Own<E> {
    Launch(LaunchError),
    /// An error of the program that uses the launch.
    Start(E),
}

/// Runs attempts until one succeeds or none is left.
///
/// `prepare` returns a [`Running`] for the workers of an attempt, and `start` starts them in it.
pub(super) fn run<E: From<LaunchError> + Display>(
    link: &Link,
    base: u32,
    signals: &Signals,
    mut prepare: impl FnMut(Attempt) -> Result<Running, LaunchError>,
    mut start: impl FnMut(&mut Running, Attempt) -> Result<(), E>,
) -> Result<(), E> {
    link.wake(signals.waker().map_err(LaunchError::Signals)?);
    let mut again = 0;
    let mut own = None;
    let between = Between { link, signals };
    loop {
        let attempt = Attempt { base, again };
        if link.stop(again).is_some() {
            link.send(Event::Stopped { endings: Vec::new(), is_final: false });
        } else {
            own = one(link, attempt, signals, &mut prepare, &mut start).err();
        }
        let mut order = between.order()?;
        again = loop {
            match order {
                Order::Start { again: next, pause, failure } => {
                    if link.speaks() {
                        announce(&failure, Attempt { base, again: next }, pause);
                    }
                    match between.order_within(pause)? {
                        None => break next,
                        Some(other) => order = other,
                    }
                }
                Order::Stop { .. } => order = between.order()?,
                Order::Finish(verdict) => return conclude(link, base, verdict, own),
            }
        };
    }
}

/// Runs one attempt on this node, from its start until none of its workers is left.
fn one<E: From<LaunchError> + Display>(
    link: &Link,
    attempt: Attempt,
    signals: &Signals,
    prepare: &mut impl FnMut(Attempt) -> Result<Running, LaunchError>,
    start: &mut impl FnMut(&mut Running, Attempt) -> Result<(), E>,
) -> Result<(), Own<E>> {
    let mut running = match prepare(attempt) {
        Ok(running) => running,
        Err(error) => {
            fail(link, None, other(&error), Some(Final::Launch));
            return Err(Own::Launch(error));
        }
    };
    if attempt.again > 0 && signals.has_asked() {
        // The signal arrived after the pause.
        link.send(Event::Signal);
        link.send(Event::Stopped { endings: Vec::new(), is_final: true });
        return Ok(());
    }
    let outcome = match start(&mut running, attempt) {
        Ok(()) => running.wait(link, attempt.again).map_err(Own::Launch),
        Err(error) => {
            running.abort();
            Err(Own::Start(error))
        }
    };
    let is_final = signals.has_asked();
    match outcome {
        Ok(Exit::Done) => {
            link.send(Event::Done { endings: running.endings() });
            if is_final {
                // The workers of other nodes continue, but are not started again.
                link.send(Event::Signal);
            }
        }
        Ok(Exit::Stopped) => link.send(Event::Stopped { endings: running.endings(), is_final }),
        Err(own) => {
            let (cause, mut reason) = match &own {
                Own::Launch(error) => describe(error),
                Own::Start(error) => (other(error), Some(Final::Launch)),
            };
            if running.has_fault() {
                reason = reason.or(Some(Final::Output));
            }
            if is_final {
                reason = Some(Final::Signal);
            }
            fail(link, Some(&mut running), cause, reason);
            return Err(own);
        }
    }
    Ok(())
}

fn fail(link: &Link, running: Option<&mut Running>, cause: Cause, is_final: Option<Final>) {
    let (after, endings) =
        running.map_or_else(Default::default, |running| (running.ran_for(), running.endings()));
    let failure = Box::new(Failure { node: link.node(), host: own_host(), after, is_final, cause });
    link.send(Event::Failing { haste: Haste::Failure });
    link.send(Event::Failed { failure, endings });
}

/// Returns this host's name for messages.
fn own_host() -> String {
    host_name().unwrap_or_else(|| "an unknown host".to_owned())
}

fn other(error: &impl Display) -> Cause {
    Cause::Other { text: error.to_string() }
}

/// Returns what failed, and why it would fail again.
fn describe(error: &LaunchError) -> (Cause, Option<Final>) {
    match error {
        LaunchError::Failed { rank, status, stderr, report, .. } => {
            let (rank, status) = (*rank, *status);
            let stderr = stderr.is_some().then(|| report.stderr().to_vec());
            let code = status.code().filter(|code| FINAL_CODES.contains(code));
            (Cause::Worker { rank, status, stderr }, code.map(Final::Code))
        }
        LaunchError::Stopped { rank: Some(rank), signal, .. } => (
            Cause::Worker { rank: *rank, status: by_signal(*signal), stderr: None },
            Some(Final::Signal),
        ),
        LaunchError::Stopped { rank: None, .. } => (other(error), Some(Final::Signal)),
        error => (other(error), Some(Final::Launch)),
    }
}

/// The time between two attempts, in which no worker of this node runs.
struct Between<'a> {
    link: &'a Link,
    signals: &'a Signals,
}

impl Between<'_> {
    /// Returns the next order. Until one arrives, reports each signal that ends the job.
    ///
    /// # Errors
    /// A repeated request to end the job ends this launch, whatever the other nodes do. They notice
    /// that it is gone.
    fn order(&self) -> Result<Order, LaunchError> {
        loop {
            if let Some(order) = self.link.take() {
                return Ok(order);
            }
            match self.signals.wait_for_end(None) {
                Some(Late::First) => self.link.send(Event::Signal),
                Some(Late::Repeated(request)) => return Err(Between::leave(request)),
                None => {}
            }
        }
    }

    fn leave(Request { signal, .. }: Request) -> LaunchError {
        LaunchError::Stopped {
            rank: None,
            host: None,
            signal,
            killed: None,
            report: Box::default(),
        }
    }

    /// Returns an order that arrives before the pause is over, or that follows from a signal during
    /// the pause.
    fn order_within(&self, pause: Duration) -> Result<Option<Order>, LaunchError> {
        let until = Instant::now() + pause;
        loop {
            if let Some(order) = self.link.take() {
                return Ok(Some(order));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            if self.signals.wait_for_end(Some(left)).is_some() {
                self.link.send(Event::Signal);
                // Other nodes may have begun the next attempt; this one will not.
                self.link.send(Event::Stopped { endings: Vec::new(), is_final: true });
                return self.order().map(Some);
            }
        }
    }
}

/// Reports on stderr what failed and when the next attempt starts.
fn announce(failure: &Failure, next: Attempt, pause: Duration) {
    let (failed, pause) = (failure.summary(), pause.as_secs_f64());
    let next = next.number();
    let last = next.saturating_sub(1);
    let text =
        format!("mpienv: attempt {last} failed: {failed}; attempt {next} starts in {pause} s\n");
    // If stderr is closed, the failure cannot be reported.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Returns this node's result of the job.
fn conclude<E: From<LaunchError>>(
    link: &Link,
    base: u32,
    verdict: Verdict,
    own: Option<Own<E>>,
) -> Result<(), E> {
    let failed = match verdict {
        Verdict::Done => return Ok(()),
        Verdict::Lost { node, host, reason } => {
            return Err(LaunchError::NodeLost { node, host, reason }.into());
        }
        Verdict::Failed(failed) => failed,
    };
    let report = LaunchReport::of(&failed, base);
    let all = Box::new(if link.speaks() { report } else { report.hidden() });
    let Failure { node: failing, host, cause, is_final, .. } = failed.failure;
    Err(match own.filter(|_| failing == link.node()) {
        Some(Own::Start(error)) => error,
        Some(Own::Launch(LaunchError::Failed {
            rank,
            host,
            status,
            passed_on,
            after,
            stderr,
            report,
        })) => {
            let report = Box::new(all.with_place(*report));
            LaunchError::Failed { rank, host, status, passed_on, after, stderr, report }.into()
        }
        Some(Own::Launch(LaunchError::Stopped { rank, host, signal, killed, .. })) => {
            LaunchError::Stopped { rank, host, signal, killed, report: Box::new(all.of_stop()) }
                .into()
        }
        Some(Own::Launch(error)) => error.into(),
        None => match cause {
            Cause::Other { text } => {
                LaunchError::OtherNode { node: failing, host, reason: text }.into()
            }
            Cause::Worker { rank, status, stderr } => {
                if let Some(signal) = signal(status)
                    .filter(|signal| is_request(*signal) && is_final == Some(Final::Signal))
                {
                    let report = Box::new(all.of_stop());
                    let rank = Some(rank);
                    return Err(LaunchError::Stopped {
                        rank,
                        host: Some(host),
                        signal,
                        killed: None,
                        report,
                    }
                    .into());
                }
                let stderr = stderr.map(|lines| lines[lines.len().saturating_sub(3)..].join(" | "));
                let (passed_on, after) = (false, None);
                LaunchError::Failed {
                    rank,
                    host: Some(host),
                    status,
                    passed_on,
                    after,
                    stderr,
                    report: all,
                }
                .into()
            }
        },
    })
}
