//! Stops all ranks after the same step when any of them receives a signal.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::{consts, flag};

/// A repetition within this time is the same request: `timeout` signals its child, then the child's
/// process group.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// A signal that requests a run to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT, sent by Ctrl-C.
    Interrupt,
    /// SIGTERM, sent by launchers and schedulers.
    Terminate,
    /// Stands in for SIGPIPE: the reader of a rank's stdout has exited.
    Pipe,
}

impl Signal {
    /// The strongest first.
    const ALL: [Signal; 3] = [Signal::Terminate, Signal::Interrupt, Signal::Pipe];

    /// The number, the name, and this signal's term in the sum over all ranks. With fewer than
    /// 65,536 ranks, the sum shows the strongest signal.
    fn row(self) -> (u8, &'static str, f32) {
        match self {
            Signal::Pipe => (13, "SIGPIPE", 1.0 / 65_536.0),
            Signal::Interrupt => (2, "SIGINT", 1.0),
            Signal::Terminate => (15, "SIGTERM", 65_536.0),
        }
    }

    pub fn number(self) -> u8 {
        self.row().0
    }

    fn weight(self) -> f32 {
        self.row().2
    }

    /// Returns the strongest signal in the sum of all ranks' [`Stop::weight`].
    pub fn strongest(sum: f32) -> Option<Signal> {
        Signal::ALL.into_iter().find(|signal| sum >= signal.weight())
    }
}

impl std::fmt::Display for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.row().1)
    }
}

/// The latest stop request to this rank, if any. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// From now on, SIGINT and SIGTERM request a stop. Repeating one later exits the process, in
    /// case the run hangs.
    pub fn on_signals() -> io::Result<Stop> {
        let stop = Stop::default();
        for number in [consts::SIGINT, consts::SIGTERM] {
            flag::register_usize(number, Arc::clone(&stop.0), number.unsigned_abs() as usize)?;
        }
        // With a handler, a write beyond `ulimit -f` is an error that names the file. Without, it
        // ends the process.
        flag::register(rustix::process::Signal::XFSZ.as_raw(), Arc::default())?;
        end_at_repeat()?;
        Ok(stop)
    }

    /// Requests a stop, as a signal does.
    pub fn raise(&self, signal: Signal) {
        self.0.store(usize::from(signal.number()), Ordering::Relaxed);
    }

    /// This rank's term in the sum that [`Signal::strongest`] reads; 0 without a request.
    pub fn weight(&self) -> f32 {
        let number = self.0.load(Ordering::Relaxed);
        let raised = Signal::ALL.into_iter().find(|one| usize::from(one.number()) == number);
        raised.map_or(0.0, Signal::weight)
    }
}

/// Exits with 128 plus a signal's number if the signal is repeated [`SAME_REQUEST`] or more after
/// its first arrival.
fn end_at_repeat() -> io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([consts::SIGINT, consts::SIGTERM])?;
    // A separate thread, because the main thread may be blocked forever.
    thread::Builder::new().spawn(move || {
        let mut came = HashMap::new();
        for number in signals.forever() {
            let now = Instant::now();
            if now - *came.entry(number).or_insert(now) >= SAME_REQUEST {
                signal_hook::low_level::exit(128 + number);
            }
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_all_ranks_tells_the_signal() {
        let sum = |signals: &[Option<Signal>]| {
            let weight = |signal: &Option<Signal>| {
                let stop = Stop::default();
                signal.iter().for_each(|&signal| stop.raise(signal));
                stop.weight()
            };
            Signal::strongest(signals.iter().map(weight).sum())
        };
        let (interrupt, terminate, pipe) =
            (Some(Signal::Interrupt), Some(Signal::Terminate), Some(Signal::Pipe));
        assert_eq!(sum(&[None; 5]), None);
        assert_eq!(sum(&[None, interrupt, None]), interrupt);
        assert_eq!(sum(&[interrupt; 60_000]), interrupt);
        assert_eq!(sum(&[None, terminate, None]), terminate);
        assert_eq!(sum(&[interrupt, terminate]), terminate);
        assert_eq!(sum(&[terminate; 60_000]), terminate);
        assert_eq!(sum(&[None, pipe]), pipe);
        assert_eq!(sum(&[pipe; 60_000]), pipe);
        assert_eq!(sum(&[pipe, interrupt, pipe]), interrupt);
        assert_eq!(sum(&[pipe, terminate]), terminate);
    }
}
