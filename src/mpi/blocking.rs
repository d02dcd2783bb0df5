//! The calls that return once they are done, and keep a core busy until then.

#![expect(unsafe_code, reason = "MPI uses the caller's memory until it returns")]

use super::abi::Constants;
use super::api::{Buffer, int};
use super::communicator::Communicator;
use super::element::Element;
use super::error::{MpiError, Result};
use super::functions::Functions;

/// The most elements that one call takes: well within an `int`.
const MOST: usize = 1 << 30;

impl Communicator {
    /// Adds the `values` of all ranks element by element, in place (`MPI_Allreduce`). Every rank
    /// gets the sum.
    ///
    /// All ranks must pass the same number of values. The library chooses the order of the
    /// additions, which may differ between libraries and sizes.
    ///
    /// # Errors
    /// If MPI returns an error; the values are then undefined.
    pub fn all_reduce_sum<T: Element>(&self, values: &mut [T]) -> Result<()> {
        const CALL: &str = "MPI_Allreduce";
        self.session.run(|api| {
            let Constants { in_place, sum, .. } = api.constants;
            for part in chunks(values) {
                let Buffer { first, count, datatype } =
                    api.numbers(CALL, part.as_mut_ptr(), part.len())?;
                // SAFETY: MPI reads and writes these values in place, until it returns.
                let code = unsafe {
                    api.functions.allreduce(in_place, first, count, datatype, sum, self.comm)
                };
                api.check(CALL, code)?;
            }
            Ok(())
        })
    }

    /// Adds the ranks' `values` element by element and divides the sum into one equal part for each
    /// rank, which gets its `part` (`MPI_Reduce_scatter_block`).
    ///
    /// # Errors
    /// If the values are not as many as a part for each rank, a part has 2^31 values or more, or
    /// MPI returns an error; the part is then undefined.
    pub fn reduce_scatter_sum<T: Element>(&self, values: &[T], part: &mut [T]) -> Result<()> {
        const CALL: &str = "MPI_Reduce_scatter_block";
        self.check_parts(CALL, values.len(), part.len())?;
        self.session.run(|api| {
            let (from, sum) = (values.as_ptr().cast_mut(), api.constants.sum);
            let Buffer { first: from, .. } = api.numbers(CALL, from, part.len())?;
            let Buffer { first, count, datatype } =
                api.numbers(CALL, part.as_mut_ptr(), part.len())?;
            // SAFETY: MPI reads `count` values for each rank and writes `count` values until it
            // returns.
            api.check(CALL, unsafe {
                let reduce = Functions::reduce_scatter_block;
                reduce(&api.functions, from, first, count, datatype, sum, self.comm)
            })
        })
    }

    /// Every rank gets the bytes of every rank in `all`, in rank order (`MPI_Allgather`). All ranks
    /// must pass the same number of bytes.
    ///
    /// # Errors
    /// If `all` has not as many bytes for each rank, a rank has 2 GiB or more, or MPI returns an
    /// error; `all` is then undefined.
    pub fn all_gather_into(&self, bytes: &[u8], all: &mut [u8]) -> Result<()> {
        const CALL: &str = "MPI_Allgather";
        self.check_parts(CALL, all.len(), bytes.len())?;
        self.session.run(|api| {
            let Buffer { first: from, .. } =
                api.bytes(CALL, bytes.as_ptr().cast_mut(), bytes.len())?;
            let Buffer { first, count, datatype: byte } =
                api.bytes(CALL, all.as_mut_ptr(), bytes.len())?;
            // SAFETY: MPI reads `count` bytes and writes `count` bytes for each rank until it
            // returns.
            api.check(CALL, unsafe {
                let gather = Functions::allgather;
                gather(&api.functions, from, count, byte, first, count, byte, self.comm)
            })
        })
    }

    /// Divides the bytes into one equal part for each rank and sends part r to rank r. Part r of
    /// `received` is what rank r sent (`MPI_Alltoall`). All ranks must pass the same number of
    /// bytes.
    ///
    /// # Errors
    /// If the bytes do not divide into equal parts, `received` has another length, a part has 2 GiB
    /// or more, or MPI returns an error; `received` is then undefined.
    pub fn all_to_all(&self, bytes: &[u8], received: &mut [u8]) -> Result<()> {
        const CALL: &str = "MPI_Alltoall";
        let part = received.len() / self.size() as usize;
        self.check_parts(CALL, received.len(), part)?;
        self.check_parts(CALL, bytes.len(), part)?;
        self.session.run(|api| {
            let Buffer { first: from, .. } = api.bytes(CALL, bytes.as_ptr().cast_mut(), part)?;
            let Buffer { first, count, datatype: byte } =
                api.bytes(CALL, received.as_mut_ptr(), part)?;
            // SAFETY: MPI reads and writes `count` bytes for each rank until it returns.
            api.check(CALL, unsafe {
                let exchange = Functions::alltoall;
                exchange(&api.functions, from, count, byte, first, count, byte, self.comm)
            })
        })
    }

    /// Sends bytes to rank `to`, and meanwhile receives as many as `received` has from rank `from`,
    /// both with this `tag` (`MPI_Sendrecv`).
    ///
    /// # Errors
    /// If MPI returns an error, as for more bytes than `received` has, or if there are 2^31 bytes
    /// or more; `received` is then undefined.
    pub fn send_receive(
        &self,
        bytes: &[u8],
        to: u32,
        received: &mut [u8],
        from: u32,
        tag: u16,
    ) -> Result<()> {
        const CALL: &str = "MPI_Sendrecv";
        self.session.run(|api| {
            let (to, from, tag) = (int(CALL, to)?, int(CALL, from)?, int(CALL, tag)?);
            let Buffer { first: sent, count: length, .. } =
                api.bytes(CALL, bytes.as_ptr().cast_mut(), bytes.len())?;
            let Buffer { first, count, datatype: byte } =
                api.bytes(CALL, received.as_mut_ptr(), received.len())?;
            let (status, pass) = (api.constants.status_ignore, Functions::sendrecv);
            let own = &api.functions;
            // SAFETY: MPI reads `length` bytes and writes at most `count` bytes until it returns;
            // the status is ignored.
            let code = unsafe {
                pass(
                    own, sent, length, byte, to, tag, first, count, byte, from, tag, self.comm,
                    status,
                )
            };
            api.check(CALL, code)
        })
    }

    /// Every rank gets the bytes of rank `root` (`MPI_Bcast`). All ranks must pass the same number
    /// of bytes.
    ///
    /// # Errors
    /// If MPI returns an error, for example because `root` is not a rank; the bytes are then
    /// undefined.
    pub fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<()> {
        const CALL: &str = "MPI_Bcast";
        self.session.run(|api| {
            let root = int(CALL, root)?;
            for part in chunks(bytes) {
                let Buffer { first, count, datatype } =
                    api.bytes(CALL, part.as_mut_ptr(), part.len())?;
                // SAFETY: MPI reads or writes these bytes until it returns.
                let code = unsafe { api.functions.bcast(first, count, datatype, root, self.comm) };
                api.check(CALL, code)?;
            }
            Ok(())
        })
    }

    /// Returns once every rank has made this call (`MPI_Barrier`).
    ///
    /// # Errors
    /// If MPI returns an error.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: the handle is a communicator's.
        self.session
            .run(|api| api.check("MPI_Barrier", unsafe { api.functions.barrier(self.comm) }))
    }

    /// Fails unless `length` values or bytes are parts of this length for all ranks: MPI would read
    /// or write what follows them.
    fn check_parts(&self, call: &'static str, length: usize, part: usize) -> Result<()> {
        let size = self.size() as usize;
        if part.checked_mul(size) == Some(length) {
            Ok(())
        } else {
            Err(MpiError::Indivisible { call, length, size })
        }
    }
}

/// As many values at a time as a call takes. Without values, none once: the call is made all the
/// same, because other ranks wait for it.
fn chunks<T>(values: &mut [T]) -> impl Iterator<Item = &mut [T]> {
    let none = values.is_empty().then_some(&mut [] as &mut [T]);
    none.into_iter().chain(values.chunks_mut(MOST))
}
