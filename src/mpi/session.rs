//! MPI from its initialization to its end, in this process.

use std::cell::Cell;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::abi::{Abi, Comm, Handle};
use super::api::Api;
use super::error::MpiError;

/// How long a session that goes out of scope waits for the other ranks.
const DROP_LIMIT: Duration = Duration::from_secs(1);

/// MPI, initialized; shared by all that use it, and finalized with the last of them.
pub(super) struct Session<W: Handle> {
    api: Api<W>,
    /// All ranks once more, for the barrier before the end: no other call can be taken for it.
    closing: Comm<W>,
    state: Cell<State>,
    /// How many calls were started and are not done.
    started: Cell<u32>,
    pub about: About,
}

/// What a library is.
pub(super) struct About {
    /// The name that it was loaded by.
    pub library: PathBuf,
    /// What it calls itself.
    pub version: String,
    pub abi: Abi,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Sound,
    /// A call has failed: other ranks may be gone, or wait for a call that never comes.
    Failed,
    Finalized,
}

impl<W: Handle> Session<W> {
    /// Initializes MPI.
    pub(super) fn begin(api: Api<W>, library: PathBuf, abi: Abi) -> Result<Session<W>, MpiError> {
        if api.is_initialized()? {
            return Err(MpiError::AlreadyInitialized);
        }
        let about = About { version: api.version(), library, abi };
        let provided = api.init()?;
        if provided < api.funneled() {
            return Err(MpiError::ThreadLevel { library: about.library, provided, needed: api.funneled() });
        }
        let closing = api.duplicate(api.world())?;
        Ok(Session { api, closing, state: Cell::new(State::Sound), started: Cell::new(0), about })
    }

    /// Makes calls; an error is remembered.
    pub(super) fn run<T>(&self, calls: impl FnOnce(&Api<W>) -> Result<T, MpiError>) -> Result<T, MpiError> {
        if self.state.get() == State::Finalized {
            return Err(MpiError::Finalized);
        }
        let result = calls(&self.api);
        if result.is_err() {
            self.state.set(State::Failed);
        }
        result
    }

    /// Counts a call that was started.
    pub(super) fn count_started(&self) {
        self.started.set(self.started.get().saturating_add(1));
    }

    /// Counts a call that is done.
    pub(super) fn count_done(&self) {
        self.started.set(self.started.get().saturating_sub(1));
    }

    /// Whether what goes out of scope may still call MPI.
    pub(super) fn is_sound(&self) -> bool {
        self.state.get() == State::Sound && !thread::panicking()
    }

    /// Finalizes MPI once all ranks have come to it.
    ///
    /// MPI_Finalize waits for the other ranks, some MPIs for ever: it is called when they are there.
    pub(super) fn end(&self, limit: Duration) -> Result<(), MpiError> {
        const CALL: &str = "the barrier before MPI_Finalize";
        let count = self.started.get();
        if count > 0 {
            return Err(MpiError::Unfinished { count });
        }
        self.run(|api| {
            let mut barrier = api.start_barrier(self.closing)?;
            if !done_within(limit, || api.test(CALL, &mut barrier))? {
                return Err(MpiError::TimedOut { call: CALL, limit });
            }
            api.free(self.closing)?;
            api.finalize()
        })?;
        self.state.set(State::Finalized);
        Ok(())
    }

    /// Ends all ranks; returns where MPI cannot.
    pub(super) fn abort(&self, code: i32) {
        if self.state.get() != State::Finalized {
            self.api.abort(self.api.world(), code);
        }
    }
}

impl<W: Handle> Drop for Session<W> {
    fn drop(&mut self) {
        if self.is_sound() {
            // There is no caller left: the launcher reports a rank that leaves without MPI_Finalize.
            let _ = self.end(DROP_LIMIT);
        }
    }
}

/// Asks until it is done; false when it is not within the limit.
///
/// Asking is what makes MPI go on. Between questions it yields: where ranks share a core, the one
/// that is waited for is to run, and MPI's own waits, which spin, take hundreds of times as long.
pub(super) fn done_within(
    limit: Duration,
    mut is_done: impl FnMut() -> Result<bool, MpiError>,
) -> Result<bool, MpiError> {
    // A rank that waits this long waits for work, not for a message.
    const PATIENCE: Duration = Duration::from_secs(1);
    let start = Instant::now();
    loop {
        // A yield and a look at the clock cost as much as some questions.
        for _ in 0..8 {
            if is_done()? {
                return Ok(true);
            }
        }
        let waited = start.elapsed();
        if waited >= limit {
            return Ok(false);
        }
        if waited >= PATIENCE {
            thread::sleep(Duration::from_micros(200));
        } else {
            thread::yield_now();
        }
    }
}
