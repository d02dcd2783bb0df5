//! The signals that are passed on, and SIGCHLD, from the first attempt of a launch until its end.
//!
//! Otherwise a scheduler's SIGTERM would end this process alone: workers that could save their
//! state would not hear of it, and the job would have no report.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::{SigId, flag, low_level};

use super::processes::Masks;
use crate::process::small_thread;
use crate::stop::{Late, Request, SAME_REQUEST, is_request};

/// The signals that are passed on. The last two have no fixed meaning.
const PASSED_ON: [Signal; 5] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2];
/// Signals that kill a program that does not catch them, and have no other meaning.
pub(super) const ENDING: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];
/// Written beyond `ulimit -f`: with a handler, the write is an error that names the file, and the
/// workers are ended. Unlike an ignored signal, a handler is not inherited by them.
const TOO_LARGE: Signal = Signal::XFSZ;

/// How much time the readers of the last lines and of the report have after a signal.
const HURRIED: Duration = Duration::from_secs(1);
/// How long a wait takes at most if this process was started with SIGCHLD blocked, so that the exit
/// of a worker does not end it. Only unsafe code could unblock it.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How many launches wait for signals now, in all threads.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// Whether no launch waits, so that signals have their default effect again.
static IDLE: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| {
    let idle = Arc::new(AtomicBool::new(false));
    for signal in PASSED_ON.into_iter().chain([TOO_LARGE]).filter(|signal| MASKS.leaves(*signal)) {
        // A signal that cannot be caught keeps its default.
        let _ = flag::register_conditional_default(signal.as_raw(), Arc::clone(&idle));
    }
    idle
});

/// Interrupts a wait from another thread.
#[derive(Clone, Debug)]
pub(crate) struct Waker(Arc<UnixStream>);

impl Waker {
    pub(crate) fn wake(&self) {
        // An error means that nothing waits anymore.
        let _ = (&*self.0).write(&[0]);
    }
}

/// Signals that have arrived and have not been passed on.
#[derive(Debug)]
pub(crate) struct Signals {
    come: Vec<(Signal, Arc<AtomicBool>)>,
    /// Whether one of them has asked to end the job.
    has_asked: AtomicBool,
    /// The first request to end the job.
    request: Mutex<Option<Request>>,
    /// The first signal that arrived when no process was left to receive it, and when it arrived.
    late: Mutex<Option<(Signal, Instant)>>,
    registered: Vec<SigId>,
    /// Receives a byte for each signal.
    wakes: UnixStream,
    waker: Waker,
}

impl Signals {
    /// Begins to listen. From now on, the signals no longer kill this process.
    pub(crate) fn new() -> io::Result<Signals> {
        let (wakes, waker) = UnixStream::pair()?;
        // Waking never blocks, because a full socket wakes the reader anyway.
        waker.set_nonblocking(true)?;
        WAITING.fetch_add(1, Ordering::SeqCst);
        let mut signals = Signals {
            come: Vec::new(),
            has_asked: AtomicBool::new(false),
            request: Mutex::default(),
            late: Mutex::default(),
            registered: Vec::new(),
            wakes,
            waker: Waker(Arc::new(waker)),
        };
        // Under nohup, hang-ups must be ignored by the workers too.
        for signal in PASSED_ON.into_iter().filter(|signal| !MASKS.ignores(*signal)) {
            let flag = Arc::new(AtomicBool::new(false));
            // In this order, so that the woken thread sees the flag.
            signals.registered.push(flag::register(signal.as_raw(), Arc::clone(&flag))?);
            signals.wake_by(signal)?;
            signals.come.push((signal, flag));
        }
        // Only now: a signal that is neither caught nor has its default effect would be lost.
        IDLE.store(false, Ordering::SeqCst);
        // A worker that exits ends the wait, too.
        signals.wake_by(Signal::CHILD)?;
        Ok(signals)
    }

    fn wake_by(&mut self, signal: Signal) -> io::Result<()> {
        let waker = self.waker.0.try_clone()?;
        self.registered.push(low_level::pipe::register(signal.as_raw(), waker)?);
        Ok(())
    }

    /// Returns what interrupts a wait.
    pub(crate) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Waits for a signal, or until a child has exited or was stopped. Returns the signals to pass
    /// on.
    pub(super) fn wait(&self, at_most: Option<Duration>) -> Vec<Signal> {
        let look_again = MASKS.blocks(Signal::CHILD).then_some(LOOK_EVERY);
        // A timeout of zero is an error.
        let at_most = at_most.into_iter().chain(look_again).min();
        let at_most = at_most.map(|most| most.max(Duration::from_millis(1)));
        if self.wakes.set_read_timeout(at_most).is_ok() {
            // The end of the data and errors mean the same: look again.
            let _ = (&self.wakes).read(&mut [0; 64]);
        }
        self.take()
    }

    /// Waits while no worker runs. Returns the signal that ends the job, if one has arrived.
    pub(crate) fn wait_for_end(&self, at_most: Option<Duration>) -> Option<Late> {
        let come = self.wait(at_most);
        let is_request = come.iter().any(|signal| is_request(signal.as_raw()));
        let request = self.request().filter(|request| is_request && request.is_repeated);
        come.into_iter().any(asks_to_end).then_some(request.map_or(Late::First, Late::Repeated))
    }

    /// Returns the first request to end the job, and whether it was repeated.
    pub(crate) fn request(&self) -> Option<Request> {
        *self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a signal has arrived since the launch began after which nothing is
    /// restarted.
    pub(crate) fn has_asked(&self) -> bool {
        self.take();
        self.has_asked.load(Ordering::SeqCst)
    }

    /// Returns whether a signal with no process left to receive it is so old that readers are no
    /// longer waited for.
    pub(crate) fn is_hurried(&self) -> bool {
        self.late(self.take()).is_some_and(|(_, since)| since.elapsed() >= HURRIED)
    }

    /// Applies the default effect of the late signal.
    pub(crate) fn end_process(&self) {
        if let Some((signal, _)) = self.late(Vec::new()) {
            // Each of these signals has a default.
            let _ = low_level::emulate_default_handler(signal.as_raw());
        }
    }

    /// Lets this process report why the launch failed. Until it exits, a signal kills it only after
    /// a moment.
    pub(crate) fn outlive(self: Arc<Self>) {
        // Without a thread, signals have their default effect again.
        let wait = move || {
            let mut come = self.take();
            while self.late(come).is_none() {
                come = self.wait(None);
            }
            thread::sleep(HURRIED);
            self.end_process();
        };
        let _ = small_thread("late signals").and_then(|thread| thread.spawn(wait));
    }

    /// Returns the first late signal, which may be among these.
    fn late(&self, come: Vec<Signal>) -> Option<(Signal, Instant)> {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let new = come
            .into_iter()
            .find(|signal| ENDING.contains(signal))
            .map(|signal| (signal, Instant::now()));
        *late = late.or(new);
        *late
    }

    /// Takes the signals that have arrived since the last call.
    fn take(&self) -> Vec<Signal> {
        let come = self.come.iter().filter(|(_, flag)| flag.swap(false, Ordering::SeqCst));
        let mut come: Vec<_> = come.map(|(signal, _)| *signal).collect();
        self.note_requests(&mut come);
        if come.iter().copied().any(asks_to_end) {
            self.has_asked.store(true, Ordering::SeqCst);
        }
        come
    }

    /// Notes requests among these signals, and removes those that only repeat the first one at
    /// once.
    fn note_requests(&self, come: &mut Vec<Signal>) {
        let mut request = self.request.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *request;
        come.retain(|signal| {
            if !is_request(signal.as_raw()) {
                return true;
            }
            let Some(before) = before else {
                request.get_or_insert(Request::new(signal.as_raw()));
                return true;
            };
            let is_same = before.since.elapsed() < SAME_REQUEST;
            if !is_same {
                *request = Some(Request { is_repeated: true, ..before });
            }
            !is_same || signal.as_raw() != before.signal
        });
    }
}

/// Returns whether a signal ends the job, or announces its end, as SIGUSR1 does in many schedulers.
fn asks_to_end(signal: Signal) -> bool {
    signal == Signal::USR1 || ENDING.contains(&signal)
}

impl Drop for Signals {
    fn drop(&mut self) {
        // In this order, so that each signal is either noted or has its default effect.
        if WAITING.fetch_sub(1, Ordering::SeqCst) == 1 {
            IDLE.store(true, Ordering::SeqCst);
        }
        for id in self.registered.drain(..) {
            low_level::unregister(id);
        }
    }
}

/// How this process handled signals before the first handler of this file, which would hide that a
/// signal was ignored.
static MASKS: LazyLock<Masks> = LazyLock::new(|| Masks::of("self"));
