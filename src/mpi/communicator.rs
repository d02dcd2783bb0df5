//! Ranks that call MPI together.

#![expect(unsafe_code, reason = "MPI uses a buffer while the call that was given it goes on")]

use std::ffi::c_int;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use super::abi::Comm;
use super::api::int;
use super::element::Element;
use super::error::MpiError;
use super::request::Request;
use super::session::{About, Session};
use crate::value::rank::Rank;

/// Ranks that call MPI together: all ranks, or those of a [`split`](Communicator::split).
///
/// Every rank of a communicator must make the same calls in the same order. A blocking call keeps a
/// core busy until the other ranks have made it, and waits forever if one of them hangs. A started
/// call ([`start_all_reduce_sum`](Communicator::start_all_reduce_sum), ...) can be waited for with
/// a time limit.
///
/// A communicator stays in the thread that initialized MPI: it is neither `Send` nor `Sync`.
///
/// ```no_run
/// use std::time::Duration;
/// use mpienv::mpi::{Communicator, MpiError};
///
/// fn talk(world: &Communicator) -> Result<(), MpiError> {
///     let mut seed = [17];
///     world.broadcast(&mut seed, 0)?;
///
///     // Ranks with even numbers sum by themselves, and so do the others.
///     let rank = world.rank().index();
///     let half = world.split(rank % 2, rank)?;
///     let mut count = [1.0];
///     half.all_reduce_sum(&mut count)?;
///     assert_eq!(count[0], f64::from(half.size()));
///
///     // One part for each rank: of a sum, and of bytes.
///     let mut parts = vec![1.0_f32; world.size() as usize];
///     world.reduce_scatter_sum(&mut parts)?;
///     let mut bytes = world.start_all_to_all(vec![0; world.size() as usize])?.wait()?;
///     world.all_to_all(&mut bytes)?;
///     world.start_reduce_scatter_sum(parts)?.wait()?;
///
///     let names = world.all_gather(format!("rank {rank}").as_bytes())?;
///     assert_eq!(names[0], b"rank 0");
///     world.all_gather_within(b"done", Duration::from_secs(60))?;
///     world.barrier()
/// }
/// ```
pub struct Communicator {
    session: Rc<Session>,
    comm: Comm,
    rank: Rank,
    /// Whether a split made the communicator, so that it must be freed.
    is_own: bool,
}

impl Communicator {
    /// The communicator of all ranks.
    pub(super) fn world(session: Session) -> Result<Communicator, MpiError> {
        let (comm, rank) = session.run(|api| Ok((api.world(), api.rank(api.world())?)))?;
        Ok(Communicator { session: Rc::new(session), comm, rank, is_own: false })
    }

    /// This process's rank in the communicator, according to MPI.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks the communicator has, according to MPI.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.rank().size()
    }

    /// Adds the `values` of all ranks element by element, in place (`MPI_Allreduce`). Every rank
    /// gets the sum.
    ///
    /// All ranks must pass the same number of values. The library chooses the order of the
    /// additions, which may differ between libraries and sizes.
    ///
    /// # Errors
    /// If MPI returns an error; the values are then undefined.
    pub fn all_reduce_sum<T: Element>(&self, values: &mut [T]) -> Result<(), MpiError> {
        self.session.run(|api| api.all_reduce_sum(self.comm, values))
    }

    /// Adds the ranks' `values` element by element and divides the sum into one equal part for each
    /// rank. This rank's part overwrites the first values; the others are then undefined
    /// (`MPI_Reduce_scatter_block`).
    ///
    /// # Errors
    /// If the values do not divide into equal parts, a part has 2^31 values or more, or MPI returns
    /// an error.
    pub fn reduce_scatter_sum<T: Element>(&self, values: &mut [T]) -> Result<(), MpiError> {
        let part = self.part("MPI_Reduce_scatter_block", values.len())?;
        self.session.run(|api| api.reduce_scatter_sum(self.comm, values, part))
    }

    /// Divides the bytes into one equal part for each rank, sends part r to rank r, and replaces it
    /// with what rank r sent (`MPI_Alltoall`). All ranks must pass the same number of bytes.
    ///
    /// # Errors
    /// If the bytes do not divide into equal parts, a part has 2 GiB or more, or MPI returns an
    /// error.
    pub fn all_to_all(&self, bytes: &mut [u8]) -> Result<(), MpiError> {
        let part = self.part("MPI_Alltoall", bytes.len())?;
        self.session.run(|api| api.all_to_all(self.comm, bytes, part))
    }

    /// The length of one rank's part of a buffer.
    fn part(&self, call: &'static str, length: usize) -> Result<usize, MpiError> {
        let size = self.size() as usize;
        if length.is_multiple_of(size) {
            Ok(length / size)
        } else {
            Err(MpiError::Indivisible { call, length, size })
        }
    }

    /// Every rank gets the bytes of rank `root` (`MPI_Bcast`). All ranks must pass the same number
    /// of bytes.
    ///
    /// # Errors
    /// If MPI returns an error, for example because `root` is not a rank; the bytes are then
    /// undefined.
    pub fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<(), MpiError> {
        self.session.run(|api| api.broadcast(self.comm, bytes, root))
    }

    /// Returns once every rank has made this call (`MPI_Barrier`).
    ///
    /// # Errors
    /// If MPI returns an error.
    pub fn barrier(&self) -> Result<(), MpiError> {
        self.session.run(|api| api.barrier(self.comm))
    }

    /// Every rank gets the bytes of every rank, in rank order. Lengths may differ.
    ///
    /// # Errors
    /// If MPI returns an error, or the ranks' bytes are 2 GiB or more in total.
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, MpiError> {
        self.all_gather_by(bytes, Request::wait, Request::wait)
    }

    /// Like [`all_gather`](Communicator::all_gather), but gives up if the other ranks do not arrive
    /// in time.
    ///
    /// # Errors
    /// If MPI returns an error, the ranks' bytes are 2 GiB or more in total, or one of the two
    /// exchanges takes longer than `limit`.
    pub fn all_gather_within(
        &self,
        bytes: &[u8],
        limit: Duration,
    ) -> Result<Vec<Vec<u8>>, MpiError> {
        self.all_gather_by(
            bytes,
            |request| request.wait_within(limit),
            |request| request.wait_within(limit),
        )
    }

    fn all_gather_by(
        &self,
        bytes: &[u8],
        wait_for_lengths: impl FnOnce(Request<Vec<u8>>) -> Result<Vec<u8>, MpiError>,
        wait_for_blocks: impl FnOnce(Request<Blocks>) -> Result<Blocks, MpiError>,
    ) -> Result<Vec<Vec<u8>>, MpiError> {
        const CALL: &str = "MPI_Iallgatherv";
        let own = (bytes.len() as u64).to_ne_bytes();
        let announced = wait_for_lengths(self.start_all_gather(&own)?)?;
        let (mut counts, mut places, mut all) = (Vec::new(), Vec::new(), 0_u64);
        for length in announced.as_chunks().0.iter().map(|&length| u64::from_ne_bytes(length)) {
            places.push(int(CALL, all)?);
            counts.push(int(CALL, length)?);
            all = all.saturating_add(length);
        }
        let mut blocks = zeroed(CALL, int(CALL, all)? as usize)?;
        let own = places[self.rank.index() as usize] as usize;
        blocks[own..own + bytes.len()].copy_from_slice(bytes);
        let (first, length) = (blocks.as_mut_ptr(), blocks.len());
        let (counts_at, places_at) = (counts.as_ptr(), places.as_ptr());
        let started = Request::start(&self.session, CALL, (blocks, counts, places), |api| {
            // SAFETY: the request owns the blocks and both tables until it is done.
            unsafe { api.start_all_gather_varying(self.comm, first, length, counts_at, places_at) }
        })?;
        let (blocks, counts, places) = wait_for_blocks(started)?;
        let ends = counts.iter().zip(&places);
        Ok(ends
            .map(|(&count, &place)| blocks[place as usize..][..count as usize].to_vec())
            .collect())
    }

    // The following calls are sound because a request owns its buffer, and because the elements of
    // a Vec stay in place when the Vec moves.

    /// Starts [`all_reduce_sum`](Communicator::all_reduce_sum) (`MPI_Iallreduce`).
    ///
    /// # Errors
    /// If MPI returns an error, or there are 2^31 values or more.
    pub fn start_all_reduce_sum<T: Element>(
        &self,
        mut values: Vec<T>,
    ) -> Result<Request<Vec<T>>, MpiError> {
        let (first, count) = (values.as_mut_ptr(), values.len());
        Request::start(&self.session, "MPI_Iallreduce", values, |api| {
            // SAFETY: the request owns the values until it is done.
            unsafe { api.start_all_reduce_sum(self.comm, first, count) }
        })
    }

    /// Starts [`reduce_scatter_sum`](Communicator::reduce_scatter_sum)
    /// (`MPI_Ireduce_scatter_block`).
    ///
    /// # Errors
    /// As [`reduce_scatter_sum`](Communicator::reduce_scatter_sum).
    pub fn start_reduce_scatter_sum<T: Element>(
        &self,
        mut values: Vec<T>,
    ) -> Result<Request<Vec<T>>, MpiError> {
        const CALL: &str = "MPI_Ireduce_scatter_block";
        let (part, first) = (self.part(CALL, values.len())?, values.as_mut_ptr());
        Request::start(&self.session, CALL, values, |api| {
            // SAFETY: the request owns the values until it is done.
            unsafe { api.start_reduce_scatter_sum(self.comm, first, part) }
        })
    }

    /// Starts [`all_to_all`](Communicator::all_to_all) (`MPI_Ialltoall`).
    ///
    /// # Errors
    /// As [`all_to_all`](Communicator::all_to_all).
    pub fn start_all_to_all(&self, mut bytes: Vec<u8>) -> Result<Request<Vec<u8>>, MpiError> {
        const CALL: &str = "MPI_Ialltoall";
        let (part, first) = (self.part(CALL, bytes.len())?, bytes.as_mut_ptr());
        Request::start(&self.session, CALL, bytes, |api| {
            // SAFETY: the request owns the bytes until it is done.
            unsafe { api.start_all_to_all(self.comm, first, part) }
        })
    }

    /// Starts [`broadcast`](Communicator::broadcast) (`MPI_Ibcast`).
    ///
    /// # Errors
    /// If MPI returns an error, or there are 2^31 bytes or more.
    pub fn start_broadcast(
        &self,
        mut bytes: Vec<u8>,
        root: u32,
    ) -> Result<Request<Vec<u8>>, MpiError> {
        let (first, count) = (bytes.as_mut_ptr(), bytes.len());
        Request::start(&self.session, "MPI_Ibcast", bytes, |api| {
            // SAFETY: the request owns the bytes until it is done.
            unsafe { api.start_broadcast(self.comm, first, count, root) }
        })
    }

    /// Starts [`barrier`](Communicator::barrier) (`MPI_Ibarrier`).
    ///
    /// # Errors
    /// If MPI returns an error.
    pub fn start_barrier(&self) -> Result<Request<()>, MpiError> {
        Request::start(&self.session, "MPI_Ibarrier", (), |api| api.start_barrier(self.comm))
    }

    /// Starts to gather one block from every rank on every rank, in rank order (`MPI_Iallgather`).
    ///
    /// All blocks must have the same length.
    ///
    /// # Errors
    /// Returns an error if MPI returns an error, or if the blocks do not fit into memory.
    pub fn start_all_gather(&self, block: &[u8]) -> Result<Request<Vec<u8>>, MpiError> {
        const CALL: &str = "MPI_Iallgather";
        let [own, all] = [self.rank.index(), self.size()]
            .map(|ranks| block.len().saturating_mul(ranks as usize));
        let mut blocks = zeroed(CALL, all)?;
        blocks[own..own + block.len()].copy_from_slice(block);
        let first = blocks.as_mut_ptr();
        Request::start(&self.session, CALL, blocks, |api| {
            // SAFETY: the request owns the blocks, one of this length for each rank, until it is
            // done.
            unsafe { api.start_all_gather(self.comm, first, block.len()) }
        })
    }

    /// Splits the ranks into one communicator for each `color` (`MPI_Comm_split`).
    ///
    /// The ranks of a new communicator are ordered by `key`, then by their current rank. The call
    /// waits for the other ranks without a time limit.
    ///
    /// # Errors
    /// Returns an error if MPI returns an error, or if `color` or `key` is 2^31 or more.
    pub fn split(&self, color: u32, key: u32) -> Result<Communicator, MpiError> {
        let (comm, rank) = self.session.run(|api| {
            let comm = api.split(self.comm, color, key)?;
            Ok((comm, api.rank(comm)?))
        })?;
        Ok(Communicator { session: Rc::clone(&self.session), comm, rank, is_own: true })
    }

    pub(super) fn about(&self) -> &About {
        &self.session.about
    }

    pub(super) fn end(&self, limit: Duration) -> Result<(), MpiError> {
        self.session.end(limit)
    }

    pub(super) fn abort(&self, code: i32) {
        self.session.abort(code);
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank())
            .field("abi", &self.about().abi)
            .finish()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.is_own && self.session.is_sound() {
            // If this fails, the communicator is freed when the process exits.
            let _ = self.session.run(|api| api.free(self.comm));
        }
    }
}

/// Blocks of all ranks, with the length and the place of each.
type Blocks = (Vec<u8>, Vec<c_int>, Vec<c_int>);

/// Allocates `length` zero bytes, or fails if there is not enough memory.
fn zeroed(call: &'static str, length: usize) -> Result<Vec<u8>, MpiError> {
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(length)
        .map_err(|_| MpiError::TooLarge { call, value: length as u64 })?;
    bytes.resize(length, 0);
    Ok(bytes)
}
