//! The signals that are passed on, and SIGCHLD.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustix::process::Signal;
use signal_hook::{SigId, flag, low_level};

/// What is passed on; all but the last two end a program that says nothing else.
const PASSED_ON: [Signal; 5] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2];

/// How many launches wait for signals now, in all threads.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// Whether none does, so that signals do again what they do by default.
static IDLE: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| {
    let idle = Arc::new(AtomicBool::new(false));
    let Masks { ignored, caught } = *MASKS;
    for signal in PASSED_ON.into_iter().filter(|signal| (ignored | caught) & bit(*signal) == 0) {
        // One that cannot be caught keeps its default.
        let _ = flag::register_conditional_default(signal.as_raw(), Arc::clone(&idle));
    }
    idle
});

/// Signals that have come and are not passed on yet.
#[derive(Debug)]
pub(super) struct Signals {
    come: Vec<(Signal, Arc<AtomicBool>)>,
    registered: Vec<SigId>,
    /// Has a byte for each signal.
    wakes: UnixStream,
    waker: UnixStream,
}

impl Signals {
    /// Begins to listen; from here on the signals end no longer this process.
    pub(super) fn new() -> io::Result<Signals> {
        let (wakes, waker) = UnixStream::pair()?;
        // Waking never blocks: a full pipe wakes already.
        waker.set_nonblocking(true)?;
        let ignored = MASKS.ignored;
        WAITING.fetch_add(1, Ordering::SeqCst);
        let mut signals = Signals { come: Vec::new(), registered: Vec::new(), wakes, waker };
        // Under nohup a hang-up is to be ignored, by the workers too.
        for signal in PASSED_ON.into_iter().filter(|signal| ignored & bit(*signal) == 0) {
            let flag = Arc::new(AtomicBool::new(false));
            // In this order, so that the woken thread sees the flag.
            signals.registered.push(flag::register(signal.as_raw(), Arc::clone(&flag))?);
            signals.registered.push(low_level::pipe::register(signal.as_raw(), signals.waker()?)?);
            signals.come.push((signal, flag));
        }
        if !signals.come.is_empty() {
            IDLE.store(false, Ordering::SeqCst);
        }
        let waker = signals.waker()?;
        signals.registered.push(low_level::pipe::register(Signal::CHILD.as_raw(), waker)?);
        Ok(signals)
    }

    /// What ends a wait: a byte written there.
    pub(super) fn waker(&self) -> io::Result<UnixStream> {
        self.waker.try_clone()
    }

    /// Waits for a signal, or until a child has ended or was stopped; gives the signals to pass on.
    pub(super) fn wait(&mut self, at_most: Option<Duration>) -> Vec<Signal> {
        // A timeout of nothing would be none at all.
        let at_most = at_most.map(|most| most.max(Duration::from_millis(1)));
        if self.wakes.set_read_timeout(at_most).is_ok() {
            // Its end and its errors mean the same: look again.
            let _ = self.wakes.read(&mut [0; 64]);
        }
        taken(&self.come)
    }

    /// Listens no longer; gives the signals that no wait has given.
    pub(super) fn end(self) -> Vec<Signal> {
        let come = self.come.clone();
        drop(self);
        taken(&come)
    }
}

fn taken(come: &[(Signal, Arc<AtomicBool>)]) -> Vec<Signal> {
    come.iter().filter(|(_, flag)| flag.swap(false, Ordering::SeqCst)).map(|(signal, _)| *signal).collect()
}

impl Drop for Signals {
    fn drop(&mut self) {
        // In this order, so that each signal is either noted or does what it does by default.
        if WAITING.fetch_sub(1, Ordering::SeqCst) == 1 && !self.come.is_empty() {
            IDLE.store(true, Ordering::SeqCst);
        }
        for id in self.registered.drain(..) {
            low_level::unregister(id);
        }
    }
}

/// What this process does with signals, a bit each, as Linux lists them; nothing elsewhere.
struct Masks {
    ignored: u64,
    caught: u64,
}

/// As they were before this file changed any.
static MASKS: LazyLock<Masks> = LazyLock::new(|| {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = |name: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    Masks { ignored: mask("SigIgn:"), caught: mask("SigCgt:") }
});

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}
