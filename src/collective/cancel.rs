//! Ends the calls of a group from another thread.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::error::{CollectiveError, OWN_HOST, PANICKED, Result};

/// How long a call waits before it asks whether to go on. A user who presses Ctrl-C does not
/// notice.
const PATIENCE: Duration = Duration::from_millis(100);

/// Ends the calls of a [`Group`](super::Group) from another thread: see
/// [`Group::canceller`](super::Group::canceller).
#[derive(Clone, Debug)]
pub struct Canceller(pub(super) Arc<Cancel>);

impl Canceller {
    /// Makes the call that runs now, or the next one, and all later calls fail with
    /// [`CollectiveError::Canceled`](super::CollectiveError::Canceled).
    pub fn cancel(&self) {
        self.0.is_set.store(true, Ordering::SeqCst);
        self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|wake| wake());
    }
}

/// Whether the calls are canceled, and what wakes those that wait.
#[derive(Default)]
pub struct Cancel {
    is_set: AtomicBool,
    /// Whether the thread of a rank without others has panicked in a call.
    has_panicked: AtomicBool,
    wakers: Mutex<Vec<Box<dyn Fn() + Send>>>,
    question: OnceLock<Question>,
}

/// What a call that waits asks in its own thread.
struct Question {
    is_canceled: Box<dyn Fn() -> bool + Send + Sync>,
    asked: Mutex<Instant>,
}

impl Cancel {
    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    /// Ends the calls of a rank without others, whose thread panics.
    pub(super) fn end_panicking(&self) {
        self.has_panicked.store(true, Ordering::SeqCst);
    }

    /// Fails if the calls are canceled, or the thread of a rank without others has panicked.
    pub(super) fn check(&self) -> Result<()> {
        if self.has_panicked.load(Ordering::SeqCst) {
            let (host, reason) = (OWN_HOST.to_owned(), PANICKED.to_owned());
            return Err(CollectiveError::Lost { rank: 0, host, reason });
        }
        if self.is_set() { Err(CollectiveError::Canceled) } else { Ok(()) }
    }

    /// Lets a call that waits ask whether to go on.
    pub(super) fn ask(&self, is_canceled: impl Fn() -> bool + Send + Sync + 'static) {
        let is_canceled = Box::new(is_canceled);
        let question = Question { is_canceled, asked: Mutex::new(Instant::now()) };
        self.question.get_or_init(|| question);
    }

    /// The most time that a call may sleep before it asks; none if there is nothing to ask.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.question.get().map(|_| PATIENCE)
    }

    /// Returns whether a call that waits must end. Asks, unless it asked a moment ago.
    pub(super) fn ends_wait(&self) -> bool {
        if let Some(Question { is_canceled, asked }) = self.question.get() {
            let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
            if asked.elapsed() >= PATIENCE {
                *asked = Instant::now();
                drop(asked);
                if is_canceled() {
                    self.is_set.store(true, Ordering::SeqCst);
                }
            }
        }
        self.is_set()
    }

    /// Adds what wakes a call that waits.
    pub(super) fn wake_by(&self, wake: impl Fn() + Send + 'static) {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(wake));
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("is_set", &self.is_set()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    //! A call that waits asks whether it is canceled.

    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;
    use crate::tests::{PLENTY, over_each};

    #[test]
    fn a_call_that_waits_asks_in_its_own_thread_until_it_is_canceled() {
        // The transports over which rank 1 has ended its calls.
        let ended = Mutex::new(Vec::new());
        for (over, errors) in over_each(3, |group| {
            let over = group.describe();
            if group.rank().index() != 1 {
                let begun = Instant::now();
                while !ended.lock().unwrap().contains(&over) {
                    assert!(begun.elapsed() < PLENTY / 2);
                    thread::sleep(Duration::from_millis(10));
                }
                // The first may still meet that of rank 1.
                let error = (0..2).find_map(|_| group.barrier().err());
                return vec![error.unwrap().to_string()];
            }
            let (asked, own) = (Arc::new(AtomicU32::new(0)), thread::current().id());
            let asks = Arc::clone(&asked);
            group.ask_while_waiting(move || {
                assert_eq!(thread::current().id(), own);
                asks.fetch_add(1, Ordering::Relaxed) == 2
            });
            let errors = [(); 2].map(|()| group.barrier().unwrap_err().to_string()).to_vec();
            assert_eq!(asked.load(Ordering::Relaxed), 3, "{over}");
            ended.lock().unwrap().push(over);
            errors
        }) {
            for (rank, errors) in errors.into_iter().enumerate() {
                for error in errors {
                    let lost = error.starts_with("rank 1 on ") && error.contains("canceled");
                    let canceled = error == CollectiveError::Canceled.to_string();
                    assert!(
                        if rank == 1 { canceled } else { lost },
                        "{over}, rank {rank}: {error}"
                    );
                }
            }
        }
    }
}
