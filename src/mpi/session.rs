//! MPI in this process, from initialization to finalization.

#![expect(unsafe_code, reason = "MPI's handles move to other threads")]

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::abi::{Abi, Comm};
use super::api::Api;
use super::error::{MpiError, Result};
use super::load::Loaded;
use mpienv_ask::seam::Owner;

/// How long a dropped session waits for the other ranks.
const DROP_LIMIT: Duration = Duration::from_secs(1);

/// Initialized MPI, shared by all communicators and requests and finalized with the last of them.
pub(super) struct Session {
    api: Api,
    /// A second communicator of all ranks, so that no other call can match the barrier before
    /// MPI_Finalize.
    closing: Comm,
    progress: Mutex<Progress>,
    /// The only thread that may call MPI; `None` if every thread may, one at a time.
    thread: Option<ThreadId>,
    /// The thread level that MPI provides.
    provided: c_int,
    /// The process that initialized MPI: in a forked child, all that MPI knows is about its parent.
    owner: Owner,
    pub about: About,
}

// SAFETY: the handles are numbers or addresses that only the library uses. Threads call it one at a
// time, because `run` holds the lock, and other threads than the first only if the library supports
// that. `abort`, which does not return, is called at any time.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

/// What has happened to MPI. It is locked during calls.
struct Progress {
    state: State,
    /// How many started calls are not done.
    started: u32,
}

/// The identity of a library.
pub(super) struct About {
    /// The name by which the library was loaded.
    pub library: PathBuf,
    /// The library's name and version, as it reports them.
    pub version: String,
    pub abi: Abi,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Sound,
    /// A call has failed. Other ranks may be gone, or may wait for a call that never comes.
    Failed,
    Finalized,
}

impl Session {
    /// Initializes MPI.
    pub(super) fn begin(loaded: Loaded) -> Result<Session> {
        let Loaded { api, abi, file: library } = loaded;
        if api.is_initialized()? {
            return Err(MpiError::AlreadyInitialized);
        }
        let about = About { version: api.version(), library, abi };
        let provided = api.init()?;
        if provided < api.funneled() {
            return Err(MpiError::ThreadLevel {
                library: about.library,
                provided,
                needed: api.funneled(),
            });
        }
        let needed = api.serialized();
        let closing = api.duplicate(api.world())?;
        Ok(Session {
            api,
            closing,
            progress: Mutex::new(Progress { state: State::Sound, started: 0 }),
            thread: (provided < needed).then(|| thread::current().id()),
            provided,
            owner: Owner::current(),
            about,
        })
    }

    /// Makes calls, and remembers whether one failed.
    pub(super) fn run<T>(&self, calls: impl FnOnce(&Api) -> Result<T>) -> Result<T> {
        if !self.owner.is_here() {
            return Err(MpiError::Forked { initialized: self.owner.id() });
        }
        if self.thread.is_some_and(|thread| thread != thread::current().id()) {
            return Err(MpiError::ThreadLevel {
                library: self.about.library.clone(),
                provided: self.provided,
                needed: self.api.serialized(),
            });
        }
        let mut progress = self.progress();
        if progress.state == State::Finalized {
            return Err(MpiError::Finalized);
        }
        let result = calls(&self.api);
        if result.is_err() {
            progress.state = State::Failed;
        }
        result
    }

    /// Counts a started call.
    pub(super) fn count_started(&self) {
        let mut progress = self.progress();
        progress.started = progress.started.saturating_add(1);
    }

    /// Counts a call that is done.
    pub(super) fn count_done(&self) {
        let mut progress = self.progress();
        progress.started = progress.started.saturating_sub(1);
    }

    /// Returns whether destructors may still call MPI.
    pub(super) fn is_sound(&self) -> bool {
        let is_here = self.owner.is_here() && !thread::panicking();
        is_here && self.progress().state == State::Sound
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // A panic leaves it as an error does.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finalizes MPI once all ranks are ready to.
    ///
    /// In some MPIs, MPI_Finalize waits for the other ranks forever, so a barrier with a time limit
    /// precedes it.
    pub(super) fn end(&self, limit: Duration) -> Result<()> {
        const CALL: &str = "the barrier before MPI_Finalize";
        let count = self.progress().started;
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
        self.progress().state = State::Finalized;
        Ok(())
    }

    /// Exits all ranks. Returns only if MPI cannot.
    pub(super) fn abort(&self, code: i32) {
        // Another thread may be in a call that never returns.
        let is_finalized =
            self.progress.try_lock().is_ok_and(|progress| progress.state == State::Finalized);
        if !is_finalized && self.owner.is_here() {
            self.api.abort(self.api.world(), code);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_sound() {
            // There is no caller to return an error to. The launcher reports a rank that exits
            // without MPI_Finalize.
            let _ = self.end(DROP_LIMIT);
        }
    }
}

/// Polls until `is_done` returns true. Returns false if that takes longer than `limit`.
///
/// Polling is what lets MPI make progress. This function yields between polls: if ranks share a
/// core, the rank that is awaited must get to run. MPI's own waits spin, which then takes hundreds
/// of times as long.
pub(super) fn done_within(
    limit: Duration,
    mut is_done: impl FnMut() -> Result<bool>,
) -> Result<bool> {
    // After this long, the delay is another rank's computation and not the network's.
    const PATIENCE: Duration = Duration::from_secs(1);
    let start = Instant::now();
    loop {
        // A yield and a clock read cost as much as several polls.
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
