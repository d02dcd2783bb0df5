//! Ends a run on all ranks after the same step when a signal reaches any of them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::{consts, flag};

/// What asks a run to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT, as Ctrl-C sends it.
    Interrupt,
    /// SIGTERM, as launchers and schedulers send it.
    Terminate,
    /// SIGPIPE, as it were: nobody reads a rank's stdout any more.
    Pipe,
}

impl Signal {
    /// The strongest first.
    const ALL: [Signal; 3] = [Signal::Terminate, Signal::Interrupt, Signal::Pipe];

    /// The signal's number.
    pub fn number(self) -> u8 {
        match self {
            Signal::Interrupt => 2,
            Signal::Terminate => 15,
            Signal::Pipe => 13,
        }
    }

    /// What a rank adds to the ranks' sum: the sum then tells the stronger, with more ranks than there ever are.
    fn weight(self) -> f32 {
        match self {
            Signal::Pipe => 1.0 / 65_536.0,
            Signal::Interrupt => 1.0,
            Signal::Terminate => 65_536.0,
        }
    }

    /// What the sum of all ranks' [`Stop::weight`] says.
    pub fn of_sum(sum: f32) -> Option<Signal> {
        Signal::ALL.into_iter().find(|signal| sum >= signal.weight())
    }
}

impl std::fmt::Display for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Signal::Interrupt => "SIGINT",
            Signal::Terminate => "SIGTERM",
            Signal::Pipe => "SIGPIPE",
        })
    }
}

/// Whether this rank was asked to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// From now on SIGINT and SIGTERM ask to stop. A second one ends the process at once, for runs that hang.
    pub fn on_signals() -> io::Result<Stop> {
        let stop = Stop::default();
        for (number, signal) in [(consts::SIGINT, Signal::Interrupt), (consts::SIGTERM, Signal::Terminate)] {
            end_at_second(number)?;
            flag::register_usize(number, Arc::clone(&stop.0), usize::from(signal.number()))?;
        }
        Ok(stop)
    }

    /// Asks to stop, as a signal does.
    pub fn raise(&self, signal: Signal) {
        self.0.store(usize::from(signal.number()), Ordering::Relaxed);
    }

    /// What this rank adds to a sum over all ranks, which [`Signal::of_sum`] reads: 0 to go on.
    pub fn weight(&self) -> f32 {
        let number = self.0.load(Ordering::Relaxed);
        let raised = Signal::ALL.into_iter().find(|one| usize::from(one.number()) == number);
        raised.map_or(0.0, Signal::weight)
    }
}

/// The signal's first coming is remembered; the second ends the process, with 128 and its number.
pub fn end_at_second(number: i32) -> io::Result<()> {
    let came = Arc::new(AtomicBool::new(false));
    // In this order: the first handler looks before the second remembers.
    flag::register_conditional_shutdown(number, 128 + number, Arc::clone(&came))?;
    flag::register(number, came)?;
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
            Signal::of_sum(signals.iter().map(weight).sum())
        };
        let (interrupt, terminate, pipe) = (Some(Signal::Interrupt), Some(Signal::Terminate), Some(Signal::Pipe));
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
