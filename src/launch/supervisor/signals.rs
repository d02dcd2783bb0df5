//! The signals that are passed on, and SIGCHLD, from the first attempt of a launch until its end.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::{SigId, flag, low_level};

use super::groups::Waker;
use crate::launch::thread::small_thread;

/// What is passed on; all but the last two end a program that says nothing else.
const PASSED_ON: [Signal; 5] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2];
/// What ends a program that does not catch it, and means that alone.
pub(super) const ENDING: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// How long the readers of the last lines and of the report have after a signal.
const HURRIED: Duration = Duration::from_secs(1);

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
pub(in crate::launch) struct Signals {
    come: Vec<(Signal, Arc<AtomicBool>)>,
    /// Whether one of them has asked to end.
    has_asked: AtomicBool,
    /// The first one that came when no process was left to pass it on to, and when.
    late: Mutex<Option<(Signal, Instant)>>,
    registered: Vec<SigId>,
    /// Has a byte for each signal.
    wakes: UnixStream,
    waker: UnixStream,
}

impl Signals {
    /// Begins to listen; from here on the signals end no longer this process.
    pub(in crate::launch) fn new() -> io::Result<Signals> {
        let (wakes, waker) = UnixStream::pair()?;
        // Waking never blocks: a full pipe wakes already.
        waker.set_nonblocking(true)?;
        let ignored = MASKS.ignored;
        WAITING.fetch_add(1, Ordering::SeqCst);
        let (come, registered, late) = (Vec::new(), Vec::new(), Mutex::default());
        let mut signals = Signals { come, has_asked: AtomicBool::new(false), late, registered, wakes, waker };
        // Under nohup a hang-up is to be ignored, by the workers too.
        for signal in PASSED_ON.into_iter().filter(|signal| ignored & bit(*signal) == 0) {
            let flag = Arc::new(AtomicBool::new(false));
            // In this order, so that the woken thread sees the flag.
            signals.registered.push(flag::register(signal.as_raw(), Arc::clone(&flag))?);
            signals.registered.push(low_level::pipe::register(signal.as_raw(), signals.waker.try_clone()?)?);
            signals.come.push((signal, flag));
        }
        if !signals.come.is_empty() {
            IDLE.store(false, Ordering::SeqCst);
        }
        let waker = signals.waker.try_clone()?;
        signals.registered.push(low_level::pipe::register(Signal::CHILD.as_raw(), waker)?);
        Ok(signals)
    }

    /// What ends a wait: a byte written there.
    pub(in crate::launch) fn waker(&self) -> io::Result<Waker> {
        self.waker.try_clone().map(Waker::new)
    }

    /// Waits for a signal, or until a child has ended or was stopped; gives the signals to pass on.
    pub(super) fn wait(&self, at_most: Option<Duration>) -> Vec<Signal> {
        // A timeout of nothing would be none at all.
        let at_most = at_most.map(|most| most.max(Duration::from_millis(1)));
        if self.wakes.set_read_timeout(at_most).is_ok() {
            // Its end and its errors mean the same: look again.
            let _ = (&self.wakes).read(&mut [0; 64]);
        }
        self.take()
    }

    /// Waits while no worker runs; whether a signal has come that ends the job.
    pub(in crate::launch) fn wait_for_end(&self, at_most: Option<Duration>) -> bool {
        self.wait(at_most).into_iter().any(asks_to_end)
    }

    /// Whether a signal has come, since the launch began, after which nothing is started again.
    pub(in crate::launch) fn has_asked(&self) -> bool {
        self.take();
        self.has_asked.load(Ordering::SeqCst)
    }

    /// No process is left to pass signals on to: whether one came so long ago that no reader is waited for any longer.
    pub(in crate::launch) fn is_hurried(&self) -> bool {
        self.late(self.take()).is_some_and(|(_, since)| since.elapsed() >= HURRIED)
    }

    /// Does what the late signal does by default.
    pub(in crate::launch) fn end_process(&self) {
        if let Some((signal, _)) = self.late(Vec::new()) {
            // Each of these has a default.
            let _ = low_level::emulate_default_handler(signal.as_raw());
        }
    }

    /// Lets this process write why the launch failed: until it exits, a signal ends it after a moment only.
    pub(in crate::launch) fn outlive(self: Arc<Self>) {
        // Without a thread, signals do again what they do by default.
        let _ = small_thread("late signals", move || {
            let mut come = self.take();
            while self.late(come).is_none() {
                come = self.wait(None);
            }
            thread::sleep(HURRIED);
            self.end_process();
        });
    }

    /// The first late signal, which may be among these.
    fn late(&self, come: Vec<Signal>) -> Option<(Signal, Instant)> {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let new = come.into_iter().find(|signal| ENDING.contains(signal)).map(|signal| (signal, Instant::now()));
        *late = late.or(new);
        *late
    }

    /// The signals that have come since the last look.
    fn take(&self) -> Vec<Signal> {
        let come = self.come.iter().filter(|(_, flag)| flag.swap(false, Ordering::SeqCst));
        let come: Vec<_> = come.map(|(signal, _)| *signal).collect();
        if come.iter().copied().any(asks_to_end) {
            self.has_asked.store(true, Ordering::SeqCst);
        }
        come
    }
}

/// Whether a signal ends the job, or announces that it will be ended, as SIGUSR1 does for many schedulers.
pub(super) fn asks_to_end(signal: Signal) -> bool {
    signal == Signal::USR1 || ENDING.contains(&signal)
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
