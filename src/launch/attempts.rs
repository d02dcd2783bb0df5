//! The workers are started, and started again if they fail.

mod coordinator;
mod link;
mod mailbox;
#[cfg(feature = "rendezvous")]
mod nodes;

use std::fmt::Display;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use crate::cluster::attempt::Attempt;
use crate::launch::ending::{Cause, Failure, Final};
use crate::launch::error::LaunchError;
use crate::launch::report::LaunchReport;
use crate::launch::running::{Exit, Running};
use crate::launch::supervisor::Pause;
use crate::value::host_name::host_name;

pub(super) use self::coordinator::{Event, Failed};
pub(super) use self::link::Link;
#[cfg(feature = "rendezvous")]
pub(super) use self::nodes::{Meeting, meet};

use self::coordinator::{Order, Verdict};

/// Exit codes after which a restart would fail in the same way: usage, and commands that cannot be started.
const FINAL_CODES: [i32; 3] = [2, 126, 127];

/// Why an attempt failed on this node.
enum Own<E> {
    Launch(LaunchError),
    /// What the program that launches says.
    Start(E),
}

/// Runs attempts until one succeeds or none is left.
///
/// `prepare` gives a place for the workers of an attempt, `start` starts them there.
pub(super) fn run<E: From<LaunchError> + Display>(
    link: &Link,
    base: u32,
    mut prepare: impl FnMut(Attempt) -> Result<Running, LaunchError>,
    mut start: impl FnMut(&mut Running, Attempt) -> Result<(), E>,
) -> Result<(), E> {
    let mut again = 0;
    let mut own = None;
    loop {
        let attempt = Attempt { base, again };
        if link.is_stopped(again) {
            link.send(Event::Stopped { endings: Vec::new(), is_final: false });
        } else {
            own = one(link, attempt, &mut prepare, &mut start).err();
        }
        loop {
            match next_order(link)? {
                Order::Start { again: next, pause, failure } => {
                    if link.speaks() {
                        announce(&failure, next, pause);
                    }
                    if wait_out(link, pause)? {
                        again = next;
                        break;
                    }
                    // A signal arrived, and the verdict follows.
                }
                Order::Stop { .. } => {}
                Order::Finish(verdict) => return conclude(link.node(), verdict, own),
            }
        }
    }
}

/// One attempt on this node, from its start until none of its workers is left.
fn one<E: From<LaunchError> + Display>(
    link: &Link,
    attempt: Attempt,
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
    let outcome = match running.waker() {
        Ok(waker) => {
            link.wake(Some(waker));
            match start(&mut running, attempt) {
                Ok(()) => running.wait(link, attempt.again).map_err(Own::Launch),
                Err(error) => {
                    running.abort();
                    Err(Own::Start(error))
                }
            }
        }
        Err(error) => Err(Own::Launch(error)),
    };
    link.wake(None);
    let is_final = running.is_final();
    match outcome {
        Ok(Exit::Done) => link.send(Event::Done { endings: running.endings() }),
        Ok(Exit::Stopped) => link.send(Event::Stopped { endings: running.endings(), is_final }),
        Err(own) => {
            let (cause, mut reason) = match &own {
                Own::Launch(error) => describe(error),
                Own::Start(error) => (other(error), Some(Final::Launch)),
            };
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
    let (after, endings) = running.map_or_else(Default::default, |running| (running.ran_for(), running.endings()));
    let host = host_name().unwrap_or_else(|| "an unknown host".to_owned());
    let failure = Box::new(Failure { node: link.node(), host, after, is_final, cause });
    link.send(Event::Failing);
    link.send(Event::Failed { failure, endings });
}

fn other(error: &impl Display) -> Cause {
    Cause::Other { text: error.to_string() }
}

/// What failed, and why it would fail again.
fn describe(error: &LaunchError) -> (Cause, Option<Final>) {
    match error {
        LaunchError::Failed { rank, status, stderr, report, .. } => {
            let (rank, status) = (*rank, *status);
            let stderr = stderr.is_some().then(|| report.stderr().to_vec());
            let code = status.code().filter(|code| FINAL_CODES.contains(code));
            (Cause::Worker { rank, status, stderr }, code.map(Final::Code))
        }
        error => (other(error), Some(Final::Launch)),
    }
}

/// The next order; until it comes, a signal that ends the job is passed on to what decides.
fn next_order(link: &Link) -> Result<Order, LaunchError> {
    match link.take() {
        Some(order) => Ok(order),
        None => listen(link, None).map(|order| order.unwrap_or(Order::Finish(Verdict::Done))),
    }
}

/// Lets the pause before a restart pass; false if the job is to end instead.
fn wait_out(link: &Link, pause: Duration) -> Result<bool, LaunchError> {
    let order = listen(link, Some(Instant::now() + pause))?;
    let goes_on = order.is_none();
    order.into_iter().for_each(|order| link.put_back(order));
    Ok(goes_on)
}

/// Waits for an order, at most until then.
fn listen(link: &Link, mut until: Option<Instant>) -> Result<Option<Order>, LaunchError> {
    let mut pause = Pause::new().map_err(LaunchError::Signals)?;
    link.wake(Some(pause.waker().map_err(LaunchError::Signals)?));
    let order = loop {
        if let Some(order) = link.take() {
            break Some(order);
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            break None;
        }
        if pause.wait(left) {
            link.send(Event::Signal);
            if until.take().is_some() {
                // Another node may have begun: this one will not.
                link.send(Event::Stopped { endings: Vec::new(), is_final: true });
            }
        }
    };
    link.wake(None);
    Ok(order)
}

/// Says on stderr what failed and where the job goes on.
fn announce(failure: &Failure, again: u32, pause: Duration) {
    let (failed, pause) = (failure.summary(), pause.as_secs_f64());
    let text = format!("mpienv: attempt {} failed: {failed}; attempt {again} starts in {pause} s\n", again - 1);
    // A closed stderr has no reader.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// This node's result of the job.
fn conclude<E: From<LaunchError>>(node: u32, verdict: Verdict, own: Option<Own<E>>) -> Result<(), E> {
    let failed = match verdict {
        Verdict::Done => return Ok(()),
        Verdict::Lost { node, host, reason } => return Err(LaunchError::NodeLost { node, host, reason }.into()),
        Verdict::Failed(failed) => failed,
    };
    let all = Box::new(LaunchReport::of(&failed));
    let Failure { node: failing, host, cause, .. } = failed.failure;
    Err(match own.filter(|_| failing == node) {
        Some(Own::Start(error)) => error,
        Some(Own::Launch(LaunchError::Failed { rank, host, status, passed_on, stderr, .. })) => {
            LaunchError::Failed { rank, host, status, passed_on, stderr, report: all }.into()
        }
        Some(Own::Launch(error)) => error.into(),
        None => match cause {
            Cause::Other { text } => LaunchError::OtherNode { node: failing, host, reason: text }.into(),
            Cause::Worker { rank, status, stderr } => {
                let stderr = stderr.map(|lines| lines[lines.len().saturating_sub(3)..].join(" | "));
                LaunchError::Failed { rank, host: Some(host), status, passed_on: false, stderr, report: all }.into()
            }
        },
    })
}
