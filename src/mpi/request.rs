//! Started calls, and the memory that MPI uses until they are done.

#![expect(unsafe_code, reason = "MPI uses a buffer while the call that was given it goes on")]

use std::ffi::c_int;
use std::mem;
use std::rc::Rc;
use std::time::Duration;

use super::abi::{Comm, Handle, Pointer, RequestHandle};
use super::api::{Api, int};
use super::element::Element;
use super::error::MpiError;
use super::session::{Session, done_within};
use crate::value::rank::Rank;

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
///     sum.wait()
/// }
/// ```
#[must_use = "a call that was started must be waited for"]
pub struct Request<B: Default> {
    buffer: B,
    started: Started,
    done: bool,
}

/// A started call of a library with either type of handle.
pub(super) enum Started {
    Pointers(Call<Pointer>),
    Ints(Call<c_int>),
}

/// A started call.
pub(super) struct Call<W: Handle> {
    session: Rc<Session<W>>,
    name: &'static str,
    request: RequestHandle<W>,
}

impl<W: Handle> Call<W> {
    fn test(&mut self) -> Result<bool, MpiError> {
        let done = self.session.run(|api| api.test(self.name, &mut self.request))?;
        if done {
            self.session.count_done();
        }
        Ok(done)
    }

    fn wait(&mut self) -> Result<(), MpiError> {
        self.session.run(|api| api.wait(self.name, &mut self.request))?;
        self.session.count_done();
        Ok(())
    }

    fn wait_within(&mut self, limit: Duration) -> Result<(), MpiError> {
        let (session, name, request) = (&self.session, self.name, &mut self.request);
        session.run(|api| match done_within(limit, || api.test(name, request))? {
            true => Ok(()),
            false => Err(MpiError::TimedOut { call: name, limit }),
        })?;
        self.session.count_done();
        Ok(())
    }
}

impl<B: Default> Request<B> {
    /// Starts a call that uses the memory of `buffer`, which must not move when `buffer` does.
    fn start<W: Handle>(
        session: &Rc<Session<W>>,
        name: &'static str,
        buffer: B,
        start: impl FnOnce(&Api<W>) -> Result<RequestHandle<W>, MpiError>,
    ) -> Result<Request<B>, MpiError> {
        match session.run(start) {
            Ok(request) => {
                session.count_started();
                let call = Call { session: Rc::clone(session), name, request };
                Ok(Request { buffer, started: W::started(call), done: false })
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
    pub fn test(&mut self) -> Result<bool, MpiError> {
        if !self.done {
            self.done = match &mut self.started {
                Started::Pointers(call) => call.test(),
                Started::Ints(call) => call.test(),
            }?;
        }
        Ok(self.done)
    }

    /// Waits until the call is done, without a time limit (`MPI_Wait`), and returns the buffer.
    ///
    /// # Errors
    /// If the call has failed; the buffer is then lost.
    pub fn wait(mut self) -> Result<B, MpiError> {
        if !self.done {
            match &mut self.started {
                Started::Pointers(call) => call.wait(),
                Started::Ints(call) => call.wait(),
            }?;
        }
        Ok(self.finish())
    }

    /// Waits until the call is done, but not longer than `limit`, and returns the buffer.
    ///
    /// # Errors
    /// If the call has failed or took too long; the buffer is then lost.
    pub fn wait_within(mut self, limit: Duration) -> Result<B, MpiError> {
        if !self.done {
            match &mut self.started {
                Started::Pointers(call) => call.wait_within(limit),
                Started::Ints(call) => call.wait_within(limit),
            }?;
        }
        Ok(self.finish())
    }

    fn finish(mut self) -> B {
        self.done = true;
        mem::take(&mut self.buffer)
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

/// Blocks of all ranks, with the length and the place of each.
pub(super) type Blocks = (Vec<u8>, Vec<c_int>, Vec<c_int>);

// These calls are sound because a request owns its buffer, and because the elements of a Vec stay
// in place when the Vec moves.

impl<T: Element> Request<Vec<T>> {
    /// `MPI_Iallreduce`.
    pub(super) fn all_reduce_sum<W: Handle>(
        session: &Rc<Session<W>>,
        comm: Comm<W>,
        mut values: Vec<T>,
    ) -> Result<Request<Vec<T>>, MpiError> {
        let (first, count) = (values.as_mut_ptr(), values.len());
        Request::start(session, "MPI_Iallreduce", values, |api| {
            // SAFETY: the request owns the values until it is done.
            unsafe { api.start_all_reduce_sum(comm, first, count) }
        })
    }
}

impl<T: Element> Request<Vec<T>> {
    /// `MPI_Ireduce_scatter_block`; there are `part` values for each rank.
    pub(super) fn reduce_scatter_sum<W: Handle>(
        session: &Rc<Session<W>>,
        comm: Comm<W>,
        mut values: Vec<T>,
        part: usize,
    ) -> Result<Request<Vec<T>>, MpiError> {
        let first = values.as_mut_ptr();
        Request::start(session, "MPI_Ireduce_scatter_block", values, |api| {
            // SAFETY: the request owns the values until it is done.
            unsafe { api.start_reduce_scatter_sum(comm, first, part) }
        })
    }
}

impl Request<Vec<u8>> {
    /// `MPI_Ialltoall`; there are `part` bytes for each rank.
    pub(super) fn all_to_all<W: Handle>(
        session: &Rc<Session<W>>,
        comm: Comm<W>,
        mut bytes: Vec<u8>,
        part: usize,
    ) -> Result<Request<Vec<u8>>, MpiError> {
        let first = bytes.as_mut_ptr();
        Request::start(session, "MPI_Ialltoall", bytes, |api| {
            // SAFETY: the request owns the bytes until it is done.
            unsafe { api.start_all_to_all(comm, first, part) }
        })
    }

    /// `MPI_Ibcast`.
    pub(super) fn broadcast<W: Handle>(
        session: &Rc<Session<W>>,
        comm: Comm<W>,
        mut bytes: Vec<u8>,
        root: u32,
    ) -> Result<Request<Vec<u8>>, MpiError> {
        let (first, count) = (bytes.as_mut_ptr(), bytes.len());
        Request::start(session, "MPI_Ibcast", bytes, |api| {
            // SAFETY: the request owns the bytes until it is done.
            unsafe { api.start_broadcast(comm, first, count, root) }
        })
    }

    /// `MPI_Iallgather` of a block of the same length from each rank.
    pub(super) fn all_gather<W: Handle>(
        session: &Rc<Session<W>>,
        comm: Comm<W>,
        rank: Rank,
        block: &[u8],
    ) -> Result<Request<Vec<u8>>, MpiError> {
        let [own, all] =
            [rank.index(), rank.size()].map(|ranks| block.len().saturating_mul(ranks as usize));
        let mut blocks = zeroed("MPI_Iallgather", all)?;
        blocks[own..own + block.len()].copy_from_slice(block);
        let first = blocks.as_mut_ptr();
        Request::start(session, "MPI_Iallgather", blocks, |api| {
            // SAFETY: the request owns the blocks, one of this length for each rank, until it is
            // done.
            unsafe { api.start_all_gather(comm, first, block.len()) }
        })
    }
}

impl Request<Blocks> {
    /// `MPI_Iallgatherv` of a block from each rank. `lengths` has the length of each rank's block.
    pub(super) fn all_gather_varying<W: Handle>(
        session: &Rc<Session<W>>,
        comm: Comm<W>,
        rank: Rank,
        block: &[u8],
        lengths: &[u64],
    ) -> Result<Request<Blocks>, MpiError> {
        const CALL: &str = "MPI_Iallgatherv";
        debug_assert_eq!(lengths.len(), rank.size() as usize);
        debug_assert_eq!(lengths[rank.index() as usize], block.len() as u64);
        let (mut counts, mut places, mut all) = (Vec::new(), Vec::new(), 0_u64);
        for &length in lengths {
            places.push(int(CALL, all)?);
            counts.push(int(CALL, length)?);
            all = all.saturating_add(length);
        }
        let mut blocks = zeroed(CALL, int(CALL, all)? as usize)?;
        let own = places[rank.index() as usize] as usize;
        blocks[own..own + block.len()].copy_from_slice(block);
        let (first, length) = (blocks.as_mut_ptr(), blocks.len());
        let (counts_at, places_at) = (counts.as_ptr(), places.as_ptr());
        Request::start(session, CALL, (blocks, counts, places), |api| {
            // SAFETY: the request owns the blocks and both tables until it is done.
            unsafe { api.start_all_gather_varying(comm, first, length, counts_at, places_at) }
        })
    }
}

impl Request<()> {
    /// `MPI_Ibarrier`.
    pub(super) fn barrier<W: Handle>(
        session: &Rc<Session<W>>,
        comm: Comm<W>,
    ) -> Result<Request<()>, MpiError> {
        Request::start(session, "MPI_Ibarrier", (), |api| api.start_barrier(comm))
    }
}

/// Allocates `length` zero bytes, or fails if there is not enough memory.
fn zeroed(call: &'static str, length: usize) -> Result<Vec<u8>, MpiError> {
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(length)
        .map_err(|_| MpiError::TooLarge { call, value: length as u64 })?;
    bytes.resize(length, 0);
    Ok(bytes)
}
