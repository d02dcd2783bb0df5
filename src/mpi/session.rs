//! MPI in this process, from initialization to finalization.

#![expect(unsafe_code, reason = "MPI's handles move to other threads, and to a handler of C's")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use libloading::os::unix::Library;

use super::abi::Comm;
use super::api::Api;
use super::error::{MpiError, Result};
use super::hints::Hints;
use super::library::Loaded;
use mpienv_ask::seam::{Owner, has_left};
use mpienv_core::seam::RANKS;
use mpienv_core::{Environment, Rank};

/// How long a dropped session waits for the other ranks.
const DROP_LIMIT: Duration = Duration::from_secs(1);
/// The same after a caller's own call has failed. If the others have failed too, they come at once.
const FAILED_LIMIT: Duration = Duration::from_millis(200);

/// How long the launcher gets to read what this process has printed.
const TO_BE_READ: Duration = Duration::from_millis(200);

/// Initialized MPI, shared by all communicators and requests and finalized with the last of them.
pub(super) struct Session {
    /// It stays for the handler of the process's exit, as the library does.
    pub loaded: &'static Loaded,
    /// This process's rank among all of the job.
    pub rank: Rank,
    /// A second communicator of all ranks, so that no other call can match the barrier before
    /// MPI_Finalize.
    closing: Comm,
    /// It is locked during calls.
    state: Mutex<State>,
    /// Whether a caller's own last call has failed, which consists of MPI's. Outside of the lock,
    /// which would wait for the call of another thread.
    pub has_failed: AtomicBool,
    /// How many started calls are not done.
    pub started: AtomicU32,
    /// The thread that initialized MPI. Others may call it, one at a time, only if `provided` is
    /// high enough.
    thread: ThreadId,
    /// The thread level that MPI provides.
    provided: c_int,
    /// The process that initialized MPI: in a forked child, all that MPI knows is about its parent.
    owner: Owner,
}

// SAFETY: the handles are numbers or addresses that only the library uses. Threads call it one at a
// time, because `run` holds the lock, and other threads than the first only if the library supports
// that. `abort`, which does not return, is called at any time.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

/// What has happened to MPI.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Sound,
    /// A call has failed. Other ranks may be gone, or may wait for a call that never comes.
    Failed,
    Finalized,
}

impl Session {
    /// Initializes MPI.
    pub(super) fn begin(
        loaded: Loaded,
        hints: &Hints,
        environment: &Environment,
    ) -> Result<Session> {
        let api = &loaded.api;
        if api.is_initialized()? {
            return Err(MpiError::AlreadyInitialized);
        }
        if has_left() {
            return Err(MpiError::Asked);
        }
        hints.set(&loaded.version, environment);
        let provided = api.init()?;
        loaded.check_threads(provided, api.constants.thread_funneled, "MPI_THREAD_FUNNELED")?;
        let loaded: &'static Loaded = Box::leak(Box::new(loaded));
        let api = &loaded.api;
        let rank = api.rank(api.constants.comm_world)?;
        abort_at_exit(loaded, rank);
        Ok(Session {
            closing: api.duplicate(api.constants.comm_world)?,
            rank,
            loaded,
            state: Mutex::new(State::Sound),
            has_failed: AtomicBool::new(false),
            started: AtomicU32::new(0),
            thread: thread::current().id(),
            provided,
            owner: Owner::current(),
        })
    }

    /// Makes calls, and remembers whether one failed.
    pub(super) fn run<T>(&self, calls: impl FnOnce(&Api) -> Result<T>) -> Result<T> {
        if !self.owner.is_here() {
            return Err(MpiError::Forked { initialized: self.owner.id() });
        }
        let needed = self.loaded.api.constants.thread_serialized;
        if self.provided < needed && self.thread != thread::current().id() {
            let level = "MPI_THREAD_SERIALIZED, for calls from other threads than the first";
            self.loaded.check_threads(self.provided, needed, level)?;
        }
        let mut state = self.state();
        if *state == State::Finalized {
            return Err(MpiError::Finalized);
        }
        let result = calls(&self.loaded.api);
        if result.is_err() {
            *state = State::Failed;
        }
        result
    }

    /// Returns whether destructors may still call MPI.
    pub(super) fn is_sound(&self) -> bool {
        self.owner.is_here() && !thread::panicking() && *self.state() == State::Sound
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves it as an error does.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finalizes MPI once all ranks are ready to.
    ///
    /// In some MPIs, MPI_Finalize waits for the other ranks forever, so a barrier with a time limit
    /// precedes it.
    ///
    /// If that fails, this process's exit ends the job.
    pub(super) fn end(&self, limit: Duration) -> Result<()> {
        self.finalize(limit).inspect_err(|_| LEAVES.store(true, Ordering::Relaxed))
    }

    fn finalize(&self, limit: Duration) -> Result<()> {
        const CALL: &str = "the barrier before MPI_Finalize";
        let count = self.started.load(Ordering::Relaxed);
        if count > 0 {
            return Err(MpiError::Unfinished { count });
        }
        self.run(|api| {
            // SAFETY: the handle is a communicator's.
            let start = |request| Ok(unsafe { api.functions.ibarrier(self.closing, request) });
            let mut barrier = api.start("MPI_Ibarrier", start)?;
            if !done_within(limit, || Ok(api.test(CALL, &mut barrier)?.is_some()))? {
                return Err(MpiError::TimedOut { call: CALL, from: None, limit });
            }
            api.free(self.closing)?;
            api.finalize()
        })?;
        *self.state() = State::Finalized;
        Ok(())
    }

    /// Exits all ranks, with 3 in place of 0. Returns only if MPI cannot.
    pub(super) fn abort(&self, code: i32) {
        // Another thread may be in a call that never returns.
        let is_finalized = self.state.try_lock().is_ok_and(|state| *state == State::Finalized);
        if !is_finalized && self.owner.is_here() {
            self.loaded.abort(code);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if *self.state() == State::Finalized {
            return;
        }
        if !self.is_sound() {
            return LEAVES.store(true, Ordering::Relaxed);
        }
        let has_failed = self.has_failed.load(Ordering::Relaxed);
        if let Err(error) = self.end(if has_failed { FAILED_LIMIT } else { DROP_LIMIT })
            && !has_failed
        {
            // A destructor cannot return an error.
            let why = match error {
                MpiError::TimedOut { limit, .. } => {
                    format!("others did not leave within {} s", limit.as_secs_f64())
                }
                error => error.to_string(),
            };
            let line = format!(
                "mpienv: rank {} leaves MPI without MPI_Finalize, so the job ends when this rank exits: {why}; \
                 close the group, or finalize the world, on all ranks, and abort where one of them fails\n",
                self.rank
            );
            let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
        }
    }
}

impl Loaded {
    /// Aborts the job. A code of 0 would hide that it has failed.
    fn abort(&self, code: i32) {
        let code = if code == 0 { RANKS.into() } else { code };
        self.api.abort(self.api.constants.comm_world, code);
    }
}

/// Whether this process leaves MPI without MPI_Finalize, whatever its exit code is.
static LEAVES: AtomicBool = AtomicBool::new(false);

/// Makes this process's exit end the job if it leaves MPI without MPI_Finalize. MPICH's launcher ends
/// the job by itself when a rank exits so, but with that rank's 0, and not always.
fn abort_at_exit(loaded: &'static Loaded, rank: Rank) {
    type Handler = unsafe extern "C" fn(code: c_int, left: *mut c_void);
    type OnExit = unsafe extern "C" fn(Handler, *mut c_void) -> c_int;

    unsafe extern "C" fn end(code: c_int, left: *mut c_void) {
        // SAFETY: it comes from the box below, and nothing frees that.
        let (loaded, rank, owner) = unsafe { &*left.cast::<(&'static Loaded, Rank, Owner)>() };
        // Otherwise, a code other than 0 ends the job, and the caller has said why.
        let leaves = LEAVES.load(Ordering::Relaxed);
        if (code == 0 || leaves) && owner.is_here() && !loaded.api.is_finalized() {
            if !leaves {
                let line = format!(
                    "mpienv: rank {rank} exits with 0 and without MPI_Finalize, so the job ends: before \
                     std::process::exit, close the group, or finalize the world\n"
                );
                let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
            }
            // MPICH's launcher does not read what it has not read yet once it ends the job.
            thread::sleep(TO_BE_READ);
            loaded.abort(code);
        }
    }

    // Only glibc has it. Elsewhere, the launcher sees the exit code.
    // SAFETY: the function has this type since glibc 2.0.
    let on_exit = unsafe { Library::this().get::<OnExit>(b"on_exit\0") }.map(|found| *found);
    if let Ok(on_exit) = on_exit {
        let left = Box::into_raw(Box::new((loaded, rank, Owner::current())));
        // SAFETY: the handler takes what it gets here, once.
        unsafe { on_exit(end, left.cast()) };
    }
}

/// Polls until `is_done` returns true. Returns false if that takes longer than `limit`.
///
/// Polling is what lets MPI make progress. This function yields between polls, and later takes
/// naps: if ranks share a core, the rank that is awaited must get to run. MPI's own waits spin,
/// which then takes hundreds of times as long.
pub(super) fn done_within(
    limit: Duration,
    mut is_done: impl FnMut() -> Result<bool>,
) -> Result<bool> {
    // After this long, another rank computes or has no core, so this one gives up its own. A nap
    // takes this part of the wait at most, so that a long message goes on almost as fast.
    const PATIENCE: Duration = Duration::from_millis(2);
    const PART: u32 = 32;
    const LONGEST_NAP: Duration = Duration::from_micros(200);
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
            thread::sleep((waited / PART).min(LONGEST_NAP));
        } else {
            thread::yield_now();
        }
    }
}
