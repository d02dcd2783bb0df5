//! Started calls, and the memory that MPI uses until they are done.

use std::ffi::c_int;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::abi::RequestHandle;
use super::api::Api;
use super::error::{MpiError, Result};
use super::session::{Session, done_within};

/// A started call. MPI uses its buffer until the call is done.
///
/// MPI makes progress on the call during [`test`](Request::test) or a wait. A started call cannot
/// be canceled. If you drop a request before it is done, its buffer leaks, and MPI can no longer be
/// finalized.
///
/// ```no_run
/// use std::time::Duration;
/// use mpienv::mpi::{Communicator, MpiError, Request};
///
/// fn sum(world: &Communicator, gradients: Vec<f32>) -> Result<Vec<f32>, MpiError> {
///     let mut sum: Request<Vec<f32>> = world.start_all_reduce_sum(gradients)?;
///     while !sum.test()? {
///         // Computes on, and lets MPI go on with the sum now and then.
///     }
///     let seed = world.start_broadcast(vec![17], 0)?;
///     let ranks = world.start_all_gather(&world.rank().index().to_ne_bytes())?;
///     assert_eq!(seed.wait()?.len(), 1);
///     assert_eq!(ranks.wait()?.len(), 4 * world.size() as usize);
///     world.start_barrier()?.wait_within(Duration::from_secs(60))?;
///     // `None` if the function returns true first, for example after a signal:
///     let barrier = world.start_barrier()?.wait_unless(Duration::from_secs(60), &|| false)?;
///     assert!(barrier.is_some());
///     sum.wait()
/// }
/// ```
#[must_use = "a call that was started must be waited for"]
pub struct Request<B: Default> {
    buffer: B,
    call: Call,
    done: bool,
}

/// A started call.
struct Call {
    session: Arc<Session>,
    name: &'static str,
    request: RequestHandle,
}

impl<B: Default> Request<B> {
    /// Starts a call that uses the memory of `buffer`, which must not move when `buffer` does.
    pub(super) fn start(
        session: &Arc<Session>,
        name: &'static str,
        buffer: B,
        start: impl FnOnce(&Api, *mut RequestHandle) -> Result<c_int>,
    ) -> Result<Request<B>> {
        match session.run(|api| api.start(name, |request| start(api, request))) {
            Ok(request) => {
                session.count_started();
                let call = Call { session: Arc::clone(session), name, request };
                Ok(Request { buffer, call, done: false })
            }
            Err(error) => {
                // MPI may still use the buffer.
                mem::forget(buffer);
                Err(error)
            }
        }
    }

    /// Lets MPI make progress on the call, and returns whether the call is done (`MPI_Test`).
    ///
    /// # Errors
    /// If the call has failed.
    pub fn test(&mut self) -> Result<bool> {
        let Call { session, name, request } = &mut self.call;
        if !self.done && session.run(|api| api.test(name, request))? {
            session.count_done();
            self.done = true;
        }
        Ok(self.done)
    }

    /// Waits until the call is done, without a time limit (`MPI_Wait`), and returns the buffer.
    ///
    /// # Errors
    /// If the call has failed; the buffer is then lost.
    pub fn wait(mut self) -> Result<B> {
        if !self.done {
            let Call { session, name, request } = &mut self.call;
            session.run(|api| api.wait(name, request))?;
            session.count_done();
        }
        Ok(self.finish())
    }

    /// Waits until the call is done, but not longer than `limit`, and returns the buffer.
    ///
    /// # Errors
    /// If the call has failed or took too long; the buffer is then lost.
    pub fn wait_within(self, limit: Duration) -> Result<B> {
        let call = self.call.name;
        // It returns `None` only if the caller cancels it.
        self.wait_unless(limit, &|| false)?.ok_or(MpiError::TimedOut { call, limit })
    }

    /// Like [`wait_within`](Request::wait_within), but returns `None` once `stop` returns true; the
    /// buffer is then lost.
    ///
    /// # Errors
    /// As [`wait_within`](Request::wait_within).
    pub fn wait_unless(mut self, limit: Duration, stop: &dyn Fn() -> bool) -> Result<Option<B>> {
        if !self.done {
            let &mut Call { ref session, name, ref mut request } = &mut self.call;
            let mut is_stopped = false;
            session.run(|api| {
                let is_done = || {
                    is_stopped = stop();
                    Ok(is_stopped || api.test(name, request)?)
                };
                match done_within(limit, is_done)? {
                    true => Ok(()),
                    false => Err(MpiError::TimedOut { call: name, limit }),
                }
            })?;
            if is_stopped {
                return Ok(None);
            }
            session.count_done();
        }
        Ok(Some(self.finish()))
    }

    fn finish(mut self) -> B {
        self.done = true;
        mem::take(&mut self.buffer)
    }
}

impl<B: Default> fmt::Debug for Request<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("done", &self.done).finish_non_exhaustive()
    }
}

impl<B: Default> Drop for Request<B> {
    fn drop(&mut self) {
        if !self.done {
            // MPI or the network card may still write to the buffer.
            mem::forget(mem::take(&mut self.buffer));
        }
    }
}
