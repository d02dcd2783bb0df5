//! The calls that are started and waited for later, and those that consist of started ones.
//!
//! A started call is sound because its request owns the buffer, and because the elements of a Vec
//! stay in place when the Vec moves.

#![expect(unsafe_code, reason = "MPI uses a buffer while the call that was given it goes on")]

use std::ffi::c_int;
use std::time::Duration;

use super::abi::Constants;
use super::api::{Buffer, int};
use super::communicator::Communicator;
use super::element::Element;
use super::error::{MpiError, Result};
use super::functions::Functions;
use super::request::Request;

impl Communicator {
    /// Every rank gets the bytes of every rank, in rank order. Lengths may differ.
    ///
    /// # Errors
    /// If MPI returns an error, or the ranks' bytes are 2 GiB or more in total.
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.all_gather_by(
            bytes,
            |request| request.wait().map(Some),
            |request| request.wait().map(Some),
        )
        .map(Option::unwrap_or_default)
    }

    /// Like [`all_gather`](Communicator::all_gather), but gives up if the other ranks do not arrive
    /// in time.
    ///
    /// # Errors
    /// If MPI returns an error, the ranks' bytes are 2 GiB or more in total, or one of the two
    /// exchanges takes longer than `limit`.
    pub fn all_gather_within(&self, bytes: &[u8], limit: Duration) -> Result<Vec<Vec<u8>>> {
        self.all_gather_unless(bytes, limit, &|| false).map(Option::unwrap_or_default)
    }

    /// Like [`all_gather_within`](Communicator::all_gather_within), but returns `None` once `stop`
    /// returns true.
    ///
    /// # Errors
    /// As [`all_gather_within`](Communicator::all_gather_within).
    pub fn all_gather_unless(
        &self,
        bytes: &[u8],
        limit: Duration,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        self.all_gather_by(
            bytes,
            |request| request.wait_unless(limit, stop),
            |request| request.wait_unless(limit, stop),
        )
    }

    fn all_gather_by(
        &self,
        bytes: &[u8],
        wait_for_lengths: impl FnOnce(Request<Vec<u8>>) -> Result<Option<Vec<u8>>>,
        wait_for_blocks: impl FnOnce(Request<Blocks>) -> Result<Option<Blocks>>,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        const CALL: &str = "MPI_Iallgatherv";
        let own = (bytes.len() as u64).to_ne_bytes();
        let Some(announced) = wait_for_lengths(self.start_all_gather(&own)?)? else {
            return Ok(None);
        };
        let (mut counts, mut places, mut all) = (Vec::new(), Vec::new(), 0_u64);
        for length in announced.as_chunks().0.iter().map(|&length| u64::from_ne_bytes(length)) {
            places.push(int(CALL, all)?);
            counts.push(int(CALL, length)?);
            all = all.saturating_add(length);
        }
        let mut blocks = zeroed(CALL, int(CALL, all)? as usize)?;
        let own = places[self.rank().index() as usize] as usize;
        blocks[own..own + bytes.len()].copy_from_slice(bytes);
        let (first, length) = (blocks.as_mut_ptr(), blocks.len());
        let (counts_at, places_at) = (counts.as_ptr(), places.as_ptr());
        let tables = (blocks, counts, places);
        let started = Request::start(&self.session, CALL, tables, |api, request| {
            let (comm, in_place) = (self.comm, api.constants.in_place);
            let Buffer { first: to, datatype: byte, .. } = api.bytes(CALL, first, length)?;
            // SAFETY: the request owns the blocks and both tables until it is done. MPI does not
            // read the count and datatype of what is sent, because it is in place.
            let all = Functions::iallgatherv;
            let own = &api.functions;
            Ok(unsafe {
                all(own, in_place, 0, byte, to, counts_at, places_at, byte, comm, request)
            })
        })?;
        let Some((blocks, counts, places)) = wait_for_blocks(started)? else { return Ok(None) };
        let ends = counts.iter().zip(&places);
        let block = |(&count, &place): (&c_int, &c_int)| {
            blocks[place as usize..][..count as usize].to_vec()
        };
        Ok(Some(ends.map(block).collect()))
    }

    /// The length of one rank's part of a buffer.
    fn part(&self, call: &'static str, length: usize) -> Result<usize> {
        let size = self.size() as usize;
        if length.is_multiple_of(size) {
            Ok(length / size)
        } else {
            Err(MpiError::Indivisible { call, length, size })
        }
    }

    /// Starts [`all_reduce_sum`](Communicator::all_reduce_sum) (`MPI_Iallreduce`).
    ///
    /// # Errors
    /// If MPI returns an error, or there are 2^31 values or more.
    pub fn start_all_reduce_sum<T: Element>(&self, mut values: Vec<T>) -> Result<Request<Vec<T>>> {
        const CALL: &str = "MPI_Iallreduce";
        let (first, count) = (values.as_mut_ptr(), values.len());
        Request::start(&self.session, CALL, values, |api, request| {
            let Constants { in_place, sum, .. } = api.constants;
            let Buffer { first, count, datatype } = api.numbers(CALL, first, count)?;
            // SAFETY: the request owns the values until it is done.
            Ok(unsafe {
                let start = Functions::iallreduce;
                start(&api.functions, in_place, first, count, datatype, sum, self.comm, request)
            })
        })
    }

    /// Starts [`reduce_scatter_sum`](Communicator::reduce_scatter_sum) in place: this rank's part
    /// overwrites the first values, and the others are then undefined
    /// (`MPI_Ireduce_scatter_block`).
    ///
    /// # Errors
    /// As [`reduce_scatter_sum`](Communicator::reduce_scatter_sum).
    pub fn start_reduce_scatter_sum<T: Element>(
        &self,
        mut values: Vec<T>,
    ) -> Result<Request<Vec<T>>> {
        const CALL: &str = "MPI_Ireduce_scatter_block";
        let (part, first) = (self.part(CALL, values.len())?, values.as_mut_ptr());
        Request::start(&self.session, CALL, values, |api, request| {
            let Constants { in_place, sum, .. } = api.constants;
            let Buffer { first, count, datatype } = api.numbers(CALL, first, part)?;
            // SAFETY: the request owns the values, `count` for each rank, until it is done.
            Ok(unsafe {
                let start = Functions::ireduce_scatter_block;
                start(&api.functions, in_place, first, count, datatype, sum, self.comm, request)
            })
        })
    }

    /// Starts [`all_to_all`](Communicator::all_to_all) in place: what rank r sent replaces part r
    /// (`MPI_Ialltoall`).
    ///
    /// # Errors
    /// As [`all_to_all`](Communicator::all_to_all).
    pub fn start_all_to_all(&self, mut bytes: Vec<u8>) -> Result<Request<Vec<u8>>> {
        const CALL: &str = "MPI_Ialltoall";
        let (part, first) = (self.part(CALL, bytes.len())?, bytes.as_mut_ptr());
        Request::start(&self.session, CALL, bytes, |api, request| {
            let (comm, in_place) = (self.comm, api.constants.in_place);
            let Buffer { first, count, datatype: byte } = api.bytes(CALL, first, part)?;
            // SAFETY: the request owns the bytes, `count` for each rank, until it is done. MPI does
            // not read the count and datatype of what is sent, because it is in place.
            Ok(unsafe {
                api.functions.ialltoall(in_place, 0, byte, first, count, byte, comm, request)
            })
        })
    }

    /// Starts [`broadcast`](Communicator::broadcast) (`MPI_Ibcast`).
    ///
    /// # Errors
    /// If MPI returns an error, or there are 2^31 bytes or more.
    pub fn start_broadcast(&self, mut bytes: Vec<u8>, root: u32) -> Result<Request<Vec<u8>>> {
        const CALL: &str = "MPI_Ibcast";
        let (first, count) = (bytes.as_mut_ptr(), bytes.len());
        Request::start(&self.session, CALL, bytes, |api, request| {
            let (comm, root) = (self.comm, int(CALL, root)?);
            let Buffer { first, count, datatype } = api.bytes(CALL, first, count)?;
            // SAFETY: the request owns the bytes until it is done.
            Ok(unsafe { api.functions.ibcast(first, count, datatype, root, comm, request) })
        })
    }

    /// Starts sending bytes to a rank, which receives as many with the same `tag`
    /// (`MPI_Isend`).
    ///
    /// # Errors
    /// If MPI returns an error, or there are 2^31 bytes or more.
    pub fn start_send(&self, mut bytes: Vec<u8>, to: u32, tag: u16) -> Result<Request<Vec<u8>>> {
        const CALL: &str = "MPI_Isend";
        let (first, count) = (bytes.as_mut_ptr(), bytes.len());
        Request::start(&self.session, CALL, bytes, |api, request| {
            let (comm, to, tag) = (self.comm, int(CALL, to)?, int(CALL, tag)?);
            let Buffer { first, count, datatype } = api.bytes(CALL, first, count)?;
            // SAFETY: the request owns the bytes until it is done.
            Ok(unsafe { api.functions.isend(first, count, datatype, to, tag, comm, request) })
        })
    }

    /// Starts receiving bytes that a rank sends with this `tag`: as many as `bytes` has, which they
    /// replace (`MPI_Irecv`).
    ///
    /// # Errors
    /// If MPI returns an error, as for more bytes than `bytes` has, or if it has 2^31 or more.
    pub fn start_receive(
        &self,
        mut bytes: Vec<u8>,
        from: u32,
        tag: u16,
    ) -> Result<Request<Vec<u8>>> {
        const CALL: &str = "MPI_Irecv";
        let (first, count) = (bytes.as_mut_ptr(), bytes.len());
        Request::start(&self.session, CALL, bytes, |api, request| {
            let (comm, from, tag) = (self.comm, int(CALL, from)?, int(CALL, tag)?);
            let Buffer { first, count, datatype } = api.bytes(CALL, first, count)?;
            // SAFETY: the request owns the bytes until it is done.
            Ok(unsafe { api.functions.irecv(first, count, datatype, from, tag, comm, request) })
        })
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

    /// Starts to gather one block from every rank on every rank, in rank order (`MPI_Iallgather`).
    ///
    /// All blocks must have the same length.
    ///
    /// # Errors
    /// Returns an error if MPI returns an error, or if the blocks do not fit into memory.
    pub fn start_all_gather(&self, block: &[u8]) -> Result<Request<Vec<u8>>> {
        const CALL: &str = "MPI_Iallgather";
        let [own, all] = [self.rank().index(), self.size()]
            .map(|ranks| block.len().saturating_mul(ranks as usize));
        let mut blocks = zeroed(CALL, all)?;
        blocks[own..own + block.len()].copy_from_slice(block);
        let first = blocks.as_mut_ptr();
        Request::start(&self.session, CALL, blocks, |api, request| {
            let (comm, in_place) = (self.comm, api.constants.in_place);
            let Buffer { first, count, datatype: byte } = api.bytes(CALL, first, block.len())?;
            // SAFETY: the request owns the blocks, one of this length for each rank, until it is
            // done. MPI does not read the count and datatype of what is sent, because it is in
            // place.
            Ok(unsafe {
                api.functions.iallgather(in_place, 0, byte, first, count, byte, comm, request)
            })
        })
    }
}

/// Blocks of all ranks, with the length and the place of each.
type Blocks = (Vec<u8>, Vec<c_int>, Vec<c_int>);

/// Allocates `length` zero bytes, or fails if there is not enough memory.
fn zeroed(call: &'static str, length: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(length)
        .map_err(|_| MpiError::TooLarge { call, value: length as u64 })?;
    bytes.resize(length, 0);
    Ok(bytes)
}
