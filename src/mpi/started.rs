//! The calls that are started and waited for later, and those that consist of started ones.
//!
//! A started call of ranks that agree on lengths is sound because its request owns the buffer, and
//! because the elements of a Vec stay in place when the Vec moves. Of other lengths, Open MPI may
//! write past the buffer's end only after [`Hints::single_copy`](super::Hints::single_copy): see
//! [`Communicator`](Communicator#lengths).

#![expect(unsafe_code, reason = "MPI uses a buffer while the call that was given it goes on")]

use std::borrow::Cow;
use std::ffi::c_int;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::abi::{Constants, RequestHandle, Status};
use super::api::{Api, Buffer, Element, Value, int};
use super::communicator::Communicator;
use super::error::{MpiError, Result};
use super::session::{Session, done_within};
use mpienv_core::ErrorKind;

/// Up to so many bytes, a gathered block is as long as the longest one.
const PADDED: usize = 4096;

/// A started call. It owns its buffer, which [`wait`](Request::wait) returns.
///
/// MPI makes progress on the call during [`test`](Request::test) or a wait. A started call cannot
/// be canceled. If you drop a request, or its wait ends, before the call is done, the buffer leaks,
/// and MPI can no longer be finalized. A request stays in its thread: it is not `Send`.
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
    session: Arc<Session>,
    name: &'static str,
    handle: RequestHandle,
    is_done: bool,
    /// Why the call has failed.
    failed: Option<MpiError>,
    /// The rank whose message this call receives, and how many bytes it must have.
    receives: Option<(u32, usize)>,
}

impl<B: Default> Request<B> {
    /// Starts a call that uses the memory of `buffer`, which must not move when `buffer` does.
    fn start(
        session: &Arc<Session>,
        name: &'static str,
        buffer: B,
        start: impl FnOnce(&Api, *mut RequestHandle) -> Result<c_int>,
    ) -> Result<Request<B>> {
        match session.run(|api| api.start(name, |handle| start(api, handle))) {
            Ok(handle) => {
                session.started.fetch_add(1, Ordering::Relaxed);
                let session = Arc::clone(session);
                let (is_done, failed) = (false, None);
                Ok(Request { buffer, session, name, handle, is_done, failed, receives: None })
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
        self.check_failed()?;
        if !self.is_done {
            let tested = self.session.run(|api| api.test(self.name, &mut self.handle));
            if let Some(status) = tested.map_err(|error| self.fail(error))? {
                self.end(status)?;
            }
        }
        Ok(self.is_done)
    }

    /// Waits until the call is done, without a time limit (`MPI_Wait`), and returns the buffer.
    ///
    /// # Errors
    /// If the call has failed; the buffer is then lost.
    pub fn wait(mut self) -> Result<B> {
        self.check_failed()?;
        if !self.is_done {
            let waited = self.session.run(|api| api.wait(self.name, &mut self.handle));
            let status = waited.map_err(|error| self.fail(error))?;
            self.end(status)?;
        }
        Ok(mem::take(&mut self.buffer))
    }

    /// Waits until the call is done, but not longer than `limit`, and returns the buffer.
    ///
    /// # Errors
    /// If the call has failed or took too long; the buffer is then lost.
    pub fn wait_within(self, limit: Duration) -> Result<B> {
        let late = self.late(limit);
        // It returns `None` only if the caller cancels it.
        self.wait_unless(limit, &|| false)?.ok_or(late)
    }

    /// Like [`wait_within`](Request::wait_within), but returns `None` once `stop` returns true; the
    /// buffer is then lost. `stop` must not use MPI, whose calls wait until this one ends: it would
    /// wait forever.
    ///
    /// # Errors
    /// As [`wait_within`](Request::wait_within).
    pub fn wait_unless(mut self, limit: Duration, stop: &dyn Fn() -> bool) -> Result<Option<B>> {
        self.check_failed()?;
        if !self.is_done {
            let (call, late, mut status) = (self.name, self.late(limit), None);
            let waited = self.session.run(|api| {
                let is_done = || {
                    let is_stopped = stop();
                    if !is_stopped {
                        status = api.test(call, &mut self.handle)?;
                    }
                    Ok(is_stopped || status.is_some())
                };
                let is_in_time = done_within(limit, is_done)?;
                is_in_time.then_some(()).ok_or(late)
            });
            waited.map_err(|error| self.fail(error))?;
            let Some(status) = status else { return Ok(None) };
            self.end(status)?;
        }
        Ok(Some(mem::take(&mut self.buffer)))
    }

    fn late(&self, limit: Duration) -> MpiError {
        MpiError::TimedOut { call: self.name, from: self.receives.map(|(from, _)| from), limit }
    }

    /// Keeps the error of MPI, which may know nothing of the call after it. One with wrong arguments
    /// has ended, and its buffer is lost. Another one may go on.
    fn fail(&mut self, error: MpiError) -> MpiError {
        if matches!(error, MpiError::Call { .. }) {
            self.failed = Some(error.clone());
            if error.kind() == ErrorKind::Refused {
                self.is_done = true;
                self.session.started.fetch_sub(1, Ordering::Relaxed);
                mem::forget(mem::take(&mut self.buffer));
            }
        }
        error
    }

    fn check_failed(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Ends a call that is done. Fails if it received fewer bytes than it was to.
    fn end(&mut self, status: Status) -> Result<()> {
        self.is_done = true;
        self.session.started.fetch_sub(1, Ordering::Relaxed);
        let Some((from, length)) = self.receives else { return Ok(()) };
        let checked = self.session.run(|api| api.check_length(self.name, status, from, length));
        self.failed = checked.clone().err();
        checked
    }
}

impl<B: Default> fmt::Debug for Request<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("done", &self.is_done).finish_non_exhaustive()
    }
}

impl<B: Default> Drop for Request<B> {
    fn drop(&mut self) {
        if !self.is_done {
            // MPI or the network card may still write to the buffer.
            mem::forget(mem::take(&mut self.buffer));
        }
    }
}

impl Communicator {
    /// Every rank gets the bytes of every rank, in rank order. Lengths may differ.
    ///
    /// Ranks gather their lengths first, and then equal or short bytes as blocks of one length
    /// (`MPI_Iallgather`). Of other bytes, each rank broadcasts its own (`MPI_Ibcast`), all at once.
    ///
    /// # Errors
    /// If MPI returns an error, a rank has 2 GiB or more, or the ranks' bytes do not fit into
    /// memory.
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.all_gather_within(bytes, Duration::MAX)
    }

    /// Like [`all_gather`](Communicator::all_gather), but gives up if the other ranks do not arrive
    /// in time.
    ///
    /// # Errors
    /// As [`all_gather`](Communicator::all_gather), or if the lengths or the bytes of a rank take
    /// longer than `limit`.
    pub fn all_gather_within(&self, bytes: &[u8], limit: Duration) -> Result<Vec<Vec<u8>>> {
        self.all_gather_unless(bytes, limit, &|| false).map(Option::unwrap_or_default)
    }

    /// Like [`all_gather_within`](Communicator::all_gather_within), but returns `None` once `stop`
    /// returns true. `stop` must not use MPI, as in [`wait_unless`](Request::wait_unless).
    ///
    /// # Errors
    /// As [`all_gather_within`](Communicator::all_gather_within).
    pub fn all_gather_unless(
        &self,
        bytes: &[u8],
        limit: Duration,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        const CALL: &str = "MPI_Ibcast";
        let own = (bytes.len() as u64).to_ne_bytes();
        let Some(announced) = self.start_all_gather(&own)?.wait_unless(limit, stop)? else {
            return Ok(None);
        };
        let announced = announced.as_chunks().0.iter();
        let lengths: Vec<usize> =
            announced.map(|&length| u64::from_ne_bytes(length) as usize).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        // Otherwise, calls could not be taken back that are started before the one that fails.
        int(CALL, longest as u64)?;
        if longest <= PADDED || lengths.iter().all(|&length| length == longest) {
            let mut block = Cow::Borrowed(bytes);
            if bytes.len() < longest {
                block.to_mut().resize(longest, 0);
            }
            let gathered = self.start_all_gather(&block)?.wait_unless(limit, stop)?;
            let divide = |blocks: Vec<u8>| {
                let block = |(rank, &length)| blocks[rank * longest..][..length].to_vec();
                lengths.iter().enumerate().map(block).collect()
            };
            return Ok(gathered.map(divide));
        }
        // Not MPI_Iallgatherv: Intel MPI 2021.18 does not complete one of some MB of unequal blocks.
        let own = self.rank().index();
        let block = |(root, &length)| match root == own {
            true => Ok(bytes.to_vec()),
            false => zeroed(CALL, length),
        };
        let blocks = (0..).zip(&lengths).map(block).collect::<Result<Vec<_>>>()?;
        let start = |(root, block)| self.start_broadcast(block, root);
        let started = (0..).zip(blocks).map(start).collect::<Result<Vec<_>>>()?;
        started.into_iter().map(|block| block.wait_unless(limit, stop)).collect()
    }

    /// Starts a call that uses the values in so many equal parts: one, or one for each rank.
    fn start<T: Value>(
        &self,
        name: &'static str,
        mut values: Vec<T>,
        parts: u32,
        start: impl FnOnce(&Api, Buffer, *mut RequestHandle) -> Result<c_int>,
    ) -> Result<Request<Vec<T>>> {
        let (first, length, size) = (values.as_mut_ptr(), values.len(), parts as usize);
        // Otherwise the last values would belong to no part.
        if !length.is_multiple_of(size) {
            return Err(MpiError::Indivisible { call: name, length, size, part: None });
        }
        let count = length / size;
        Request::start(&self.session, name, values, |api, request| {
            start(api, api.buffer(name, first, count)?, request)
        })
    }

    /// Starts [`all_reduce_sum`](Communicator::all_reduce_sum) (`MPI_Iallreduce`).
    ///
    /// # Errors
    /// If MPI returns an error, or there are 2^31 values or more.
    pub fn start_all_reduce_sum<T: Element>(&self, values: Vec<T>) -> Result<Request<Vec<T>>> {
        const CALL: &str = "MPI_Iallreduce";
        self.start(CALL, values, 1, |api, Buffer { first, count, datatype }, request| {
            let (functions, &Constants { in_place, sum, .. }) = (&api.functions, &api.constants);
            // SAFETY: the request owns the values until it is done.
            Ok(unsafe {
                functions.iallreduce(in_place, first, count, datatype, sum, self.comm, request)
            })
        })
    }

    /// Starts [`reduce_scatter_sum`](Communicator::reduce_scatter_sum) in place: this rank's part
    /// overwrites the first values, and the others are then undefined
    /// (`MPI_Ireduce_scatter_block`).
    ///
    /// # Errors
    /// As [`reduce_scatter_sum`](Communicator::reduce_scatter_sum).
    pub fn start_reduce_scatter_sum<T: Element>(&self, values: Vec<T>) -> Result<Request<Vec<T>>> {
        const CALL: &str = "MPI_Ireduce_scatter_block";
        self.start(CALL, values, self.size(), |api, Buffer { first, count, datatype }, request| {
            let (functions, &Constants { in_place, sum, .. }) = (&api.functions, &api.constants);
            // SAFETY: the request owns the values, `count` for each rank, until it is done.
            Ok(unsafe {
                functions.ireduce_scatter_block(
                    in_place, first, count, datatype, sum, self.comm, request,
                )
            })
        })
    }

    /// Starts [`all_to_all`](Communicator::all_to_all) in place: what rank r sent replaces part r
    /// (`MPI_Ialltoall`).
    ///
    /// # Errors
    /// As [`all_to_all`](Communicator::all_to_all).
    pub fn start_all_to_all<T: Value>(&self, values: Vec<T>) -> Result<Request<Vec<T>>> {
        const CALL: &str = "MPI_Ialltoall";
        let ranks = self.size();
        self.start(CALL, values, ranks, |api, Buffer { first, count, datatype: of }, request| {
            let (comm, in_place) = (self.comm, api.constants.in_place);
            // SAFETY: the request owns the values, `count` for each rank, until it is done. MPI does
            // not read the count and datatype of what is sent, because it is in place.
            Ok(unsafe { api.functions.ialltoall(in_place, 0, of, first, count, of, comm, request) })
        })
    }

    /// Starts [`broadcast`](Communicator::broadcast) (`MPI_Ibcast`).
    ///
    /// # Errors
    /// If MPI returns an error, or there are 2 GiB or more.
    pub fn start_broadcast<T: Value>(&self, values: Vec<T>, root: u32) -> Result<Request<Vec<T>>> {
        const CALL: &str = "MPI_Ibcast";
        self.start(CALL, values, 1, |api, Buffer { first, count, datatype }, request| {
            let root = int(CALL, root)?;
            // SAFETY: the request owns the values until it is done.
            Ok(unsafe { api.functions.ibcast(first, count, datatype, root, self.comm, request) })
        })
    }

    /// Starts sending values to a rank, which receives as many with the same `tag` (`MPI_Isend`).
    /// Every MPI has tags up to 32,767.
    ///
    /// # Errors
    /// If MPI returns an error, or there are 2 GiB or more.
    pub fn start_send<T: Value>(
        &self,
        values: Vec<T>,
        to: u32,
        tag: u16,
    ) -> Result<Request<Vec<T>>> {
        const CALL: &str = "MPI_Isend";
        self.start(CALL, values, 1, |api, Buffer { first, count, datatype }, request| {
            let (comm, to, tag) = (self.comm, int(CALL, to)?, int(CALL, tag)?);
            // SAFETY: the request owns the values until it is done.
            Ok(unsafe { api.functions.isend(first, count, datatype, to, tag, comm, request) })
        })
    }

    /// Starts receiving values that a rank sends with this `tag`: as many as `values` has, which they
    /// replace (`MPI_Irecv`).
    ///
    /// # Errors
    /// If MPI returns an error, or if there are 2 GiB or more. Waiting for the request fails if the
    /// rank sends fewer values or more ([lengths](Communicator#lengths)).
    pub fn start_receive<T: Value>(
        &self,
        values: Vec<T>,
        from: u32,
        tag: u16,
    ) -> Result<Request<Vec<T>>> {
        const CALL: &str = "MPI_Irecv";
        let length = size_of_val(values.as_slice());
        // A status counts the bytes.
        int(CALL, length)?;
        let start = |api: &Api, Buffer { first, count, datatype }, request| {
            let (comm, from, tag) = (self.comm, int(CALL, from)?, int(CALL, tag)?);
            // SAFETY: the request owns the values, which the other rank sends, until it is done.
            Ok(unsafe { api.functions.irecv(first, count, datatype, from, tag, comm, request) })
        };
        let mut request = self.start(CALL, values, 1, start)?;
        request.receives = Some((from, length));
        Ok(request)
    }

    /// Starts [`barrier`](Communicator::barrier) (`MPI_Ibarrier`).
    ///
    /// # Errors
    /// If MPI returns an error.
    pub fn start_barrier(&self) -> Result<Request<()>> {
        Request::start(&self.session, "MPI_Ibarrier", (), |api, request| {
            // SAFETY: the handle is a communicator's.
            Ok(unsafe { api.functions.ibarrier(self.comm, request) })
        })
    }

    /// Starts to gather one block from every rank on every rank (`MPI_Iallgather`). Copies `block`;
    /// the request returns all blocks in one `Vec`, in rank order.
    ///
    /// All blocks must have the same length.
    ///
    /// # Errors
    /// Returns an error if MPI returns an error, or if the blocks do not fit into memory.
    pub fn start_all_gather<T: Value>(&self, block: &[T]) -> Result<Request<Vec<T>>> {
        const CALL: &str = "MPI_Iallgather";
        let [own, all] = [self.rank().index(), self.size()]
            .map(|ranks| block.len().saturating_mul(ranks as usize));
        let mut blocks = zeroed(CALL, all)?;
        blocks[own..own + block.len()].copy_from_slice(block);
        let ranks = self.size();
        self.start(CALL, blocks, ranks, |api, Buffer { first, count, datatype: of }, request| {
            let (comm, in_place) = (self.comm, api.constants.in_place);
            // SAFETY: the request owns the blocks, one of this length for each rank, until it is
            // done. MPI does not read the count and datatype of what is sent, because it is in
            // place.
            Ok(unsafe {
                api.functions.iallgather(in_place, 0, of, first, count, of, comm, request)
            })
        })
    }
}

/// Allocates `length` zeros, or fails if there is not enough memory.
fn zeroed<T: Value>(call: &'static str, length: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    values
        .try_reserve_exact(length)
        .map_err(|_| MpiError::TooLarge { call, value: length as u64 })?;
    values.resize(length, T::default());
    Ok(values)
}
