//! The calls of MPI with Rust types, checked lengths, and errors instead of error codes.

#![expect(unsafe_code, reason = "an MPI library is a C library, and it is loaded at run time")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use super::abi::{Comm, Constants, Datatype, RequestHandle};
use super::element::{Element, ElementKind};
use super::error::MpiError;
use super::functions::Functions;
use crate::value::rank::Rank;

/// A loaded library: its functions and the constants of its ABI.
///
/// Only one thread uses it. Between [`Api::init`] and [`Api::finalize`], every method may be
/// called; before and after, only those that say so.
pub(super) struct Api {
    functions: Functions,
    constants: Constants,
}

/// The longest text of any ABI: MPI_MAX_LIBRARY_VERSION_STRING of MPICH and of the standard.
const LONGEST_TEXT: usize = 8192;

/// The most elements that one call takes: well within an `int`.
const MOST: usize = 1 << 30;

impl Api {
    pub(super) fn new(functions: Functions, constants: Constants) -> Api {
        Api { functions, constants }
    }

    /// The communicator of all ranks.
    pub(super) fn world(&self) -> Comm {
        self.constants.comm_world
    }

    /// MPI_THREAD_FUNNELED: this process has several threads, but only one of them calls MPI.
    pub(super) fn funneled(&self) -> c_int {
        self.constants.thread_funneled
    }

    /// Returns whether MPI is initialized. May be called before init.
    pub(super) fn is_initialized(&self) -> Result<bool, MpiError> {
        let mut flag = 0;
        // SAFETY: the argument points to an int.
        let code = unsafe { self.functions.initialized(&raw mut flag) };
        self.check("MPI_Initialized", code).map(|()| flag != 0)
    }

    /// Initializes MPI, and returns the thread level that MPI provides.
    pub(super) fn init(&self) -> Result<c_int, MpiError> {
        let mut provided = 0;
        // SAFETY: argc and argv may be null; `provided` is an int.
        let code = unsafe {
            self.functions.init_thread(
                ptr::null_mut(),
                ptr::null_mut(),
                self.funneled(),
                &raw mut provided,
            )
        };
        self.check("MPI_Init_thread", code)?;
        // By default, errors exit the process. MPI 4 raises errors without a communicator on
        // COMM_SELF.
        self.return_errors(self.constants.comm_world)?;
        self.return_errors(self.constants.comm_self)?;
        Ok(provided)
    }

    pub(super) fn finalize(&self) -> Result<(), MpiError> {
        // SAFETY: the function has no arguments.
        let code = unsafe { self.functions.finalize() };
        self.check("MPI_Finalize", code)
    }

    /// Exits all processes of the communicator. Returns only if MPI cannot.
    pub(super) fn abort(&self, comm: Comm, code: c_int) {
        // SAFETY: the handle is a communicator's.
        unsafe { self.functions.abort(comm, code) };
    }

    /// The name and version at the start of the library's own version text. May be called before
    /// init.
    pub(super) fn version(&self) -> String {
        // SAFETY: the callback's pointers are to a buffer as long as any ABI's longest text and to
        // an int.
        let text =
            one_line(|text, length| unsafe { self.functions.get_library_version(text, length) });
        let text = text.unwrap_or_default();
        // "Open MPI v4.1.4, package: ...", "MPICH Version:      5.0.2, MPICH Release date: ...".
        let first = text.split(',').next().unwrap_or_default();
        first.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Makes MPI return a communicator's errors.
    fn return_errors(&self, comm: Comm) -> Result<(), MpiError> {
        // SAFETY: the handles are a communicator's and an error handler's.
        let code =
            unsafe { self.functions.comm_set_errhandler(comm, self.constants.errors_return) };
        self.check("MPI_Comm_set_errhandler", code)
    }

    /// This process's place in a communicator.
    pub(super) fn rank(&self, comm: Comm) -> Result<Rank, MpiError> {
        let (mut rank, mut size): (c_int, c_int) = (0, 0);
        // SAFETY: the handle is a communicator's; the pointer is to an int.
        let code = unsafe { self.functions.comm_rank(comm, &raw mut rank) };
        self.check("MPI_Comm_rank", code)?;
        // SAFETY: the handle is a communicator's; the pointer is to an int.
        let code = unsafe { self.functions.comm_size(comm, &raw mut size) };
        self.check("MPI_Comm_size", code)?;
        // Negative numbers become far too large ones.
        Rank::new(rank.cast_unsigned(), size.cast_unsigned()).map_err(|error| MpiError::Call {
            call: "MPI_Comm_rank",
            code: 0,
            text: error.to_string(),
        })
    }

    pub(super) fn duplicate(&self, comm: Comm) -> Result<Comm, MpiError> {
        let mut new = comm;
        // SAFETY: the handle is a communicator's, and the pointer is to a handle that MPI
        // overwrites.
        let code = unsafe { self.functions.comm_dup(comm, &raw mut new) };
        self.check("MPI_Comm_dup", code)?;
        self.return_errors(new).map(|()| new)
    }

    pub(super) fn split(&self, comm: Comm, color: u32, key: u32) -> Result<Comm, MpiError> {
        const CALL: &str = "MPI_Comm_split";
        let (color, key) = (int(CALL, color)?, int(CALL, key)?);
        let mut new = comm;
        // SAFETY: the handle is a communicator's, and the pointer is to a handle that MPI
        // overwrites.
        let code = unsafe { self.functions.comm_split(comm, color, key, &raw mut new) };
        self.check(CALL, code)?;
        self.return_errors(new).map(|()| new)
    }

    /// Frees a communicator, which must not be used afterwards.
    pub(super) fn free(&self, mut comm: Comm) -> Result<(), MpiError> {
        // SAFETY: the pointer is to a communicator's handle.
        let code = unsafe { self.functions.comm_free(&raw mut comm) };
        self.check("MPI_Comm_free", code)
    }

    pub(super) fn all_reduce_sum<T: Element>(
        &self,
        comm: Comm,
        values: &mut [T],
    ) -> Result<(), MpiError> {
        const CALL: &str = "MPI_Allreduce";
        let Constants { in_place, sum, .. } = self.constants;
        // Without values, make the call all the same: other ranks wait for it.
        let only = values.is_empty().then_some(&mut [] as &mut [T]);
        for part in only.into_iter().chain(values.chunks_mut(MOST)) {
            let Buffer { first, count, datatype } =
                self.values(CALL, part.as_mut_ptr(), part.len())?;
            // SAFETY: these are `count` elements of this datatype that MPI reads and writes in
            // place, until it returns.
            let code =
                unsafe { self.functions.allreduce(in_place, first, count, datatype, sum, comm) };
            self.check(CALL, code)?;
        }
        Ok(())
    }

    /// Sums in place. This rank's part of the sum, of `part` elements, then comes first.
    pub(super) fn reduce_scatter_sum<T: Element>(
        &self,
        comm: Comm,
        values: &mut [T],
        part: usize,
    ) -> Result<(), MpiError> {
        const CALL: &str = "MPI_Reduce_scatter_block";
        let Constants { in_place, sum, .. } = self.constants;
        let Buffer { first, count, datatype } = self.values(CALL, values.as_mut_ptr(), part)?;
        // SAFETY: these are `count` elements of this datatype for each rank, as the caller has
        // checked. MPI reads and writes them in place until it returns.
        let code = unsafe {
            self.functions.reduce_scatter_block(in_place, first, count, datatype, sum, comm)
        };
        self.check(CALL, code)
    }

    /// Exchanges parts of `part` bytes in place.
    pub(super) fn all_to_all(
        &self,
        comm: Comm,
        bytes: &mut [u8],
        part: usize,
    ) -> Result<(), MpiError> {
        const CALL: &str = "MPI_Alltoall";
        let Constants { in_place, byte, .. } = self.constants;
        let (first, count) = (address(bytes.as_mut_ptr(), part), int(CALL, part)?);
        // SAFETY: these are `count` bytes for each rank, as the caller has checked. MPI reads and
        // writes them until it returns. The data to send is in place, so MPI does not read its
        // count and datatype.
        let code = unsafe { self.functions.alltoall(in_place, 0, byte, first, count, byte, comm) };
        self.check(CALL, code)
    }

    pub(super) fn broadcast(
        &self,
        comm: Comm,
        bytes: &mut [u8],
        root: u32,
    ) -> Result<(), MpiError> {
        const CALL: &str = "MPI_Bcast";
        let (byte, root) = (self.constants.byte, int(CALL, root)?);
        let only = bytes.is_empty().then_some(&mut [] as &mut [u8]);
        for part in only.into_iter().chain(bytes.chunks_mut(MOST)) {
            let (first, count) = (address(part.as_mut_ptr(), part.len()), int(CALL, part.len())?);
            // SAFETY: these are `count` bytes that MPI reads or writes until it returns.
            let code = unsafe { self.functions.bcast(first, count, byte, root, comm) };
            self.check(CALL, code)?;
        }
        Ok(())
    }

    pub(super) fn barrier(&self, comm: Comm) -> Result<(), MpiError> {
        // SAFETY: the handle is a communicator's.
        let code = unsafe { self.functions.barrier(comm) };
        self.check("MPI_Barrier", code)
    }

    /// Starts a call, which overwrites the request.
    fn start(
        &self,
        call: &'static str,
        start: impl FnOnce(*mut RequestHandle) -> c_int,
    ) -> Result<RequestHandle, MpiError> {
        let mut request = self.constants.request_null;
        self.check(call, start(&raw mut request)).map(|()| request)
    }

    /// Starts a sum in place.
    ///
    /// # Safety
    /// `values` are `count` elements that nothing else uses and that stay in place until the
    /// request is done.
    pub(super) unsafe fn start_all_reduce_sum<T: Element>(
        &self,
        comm: Comm,
        values: *mut T,
        count: usize,
    ) -> Result<RequestHandle, MpiError> {
        const CALL: &str = "MPI_Iallreduce";
        let Constants { in_place, sum, .. } = self.constants;
        let Buffer { first, count, datatype } = self.values(CALL, values, count)?;
        // SAFETY: the caller keeps the elements for MPI.
        self.start(CALL, |request| unsafe {
            self.functions.iallreduce(in_place, first, count, datatype, sum, comm, request)
        })
    }

    /// Starts a sum in place. This rank's part of the sum then comes first.
    ///
    /// # Safety
    /// `values` are `part` elements for each rank. Nothing else uses or moves them until the
    /// request is done.
    pub(super) unsafe fn start_reduce_scatter_sum<T: Element>(
        &self,
        comm: Comm,
        values: *mut T,
        part: usize,
    ) -> Result<RequestHandle, MpiError> {
        const CALL: &str = "MPI_Ireduce_scatter_block";
        let Constants { in_place, sum, .. } = self.constants;
        let Buffer { first, count, datatype } = self.values(CALL, values, part)?;
        // SAFETY: the caller keeps the elements for MPI.
        self.start(CALL, |request| unsafe {
            let start = Functions::ireduce_scatter_block;
            start(&self.functions, in_place, first, count, datatype, sum, comm, request)
        })
    }

    /// Starts to exchange parts of `part` bytes, in place.
    ///
    /// # Safety
    /// `bytes` are `part` bytes for each rank. Nothing else uses or moves them until the request is
    /// done.
    pub(super) unsafe fn start_all_to_all(
        &self,
        comm: Comm,
        bytes: *mut u8,
        part: usize,
    ) -> Result<RequestHandle, MpiError> {
        const CALL: &str = "MPI_Ialltoall";
        let Constants { in_place, byte, .. } = self.constants;
        let (first, count) = (address(bytes, part), int(CALL, part)?);
        // SAFETY: the caller keeps the bytes for MPI. The data to send is in place, so MPI does not
        // read its count and datatype.
        self.start(CALL, |request| unsafe {
            self.functions.ialltoall(in_place, 0, byte, first, count, byte, comm, request)
        })
    }

    /// Starts a broadcast.
    ///
    /// # Safety
    /// `bytes` are `count` bytes that nothing else uses and that stay in place until the request is
    /// done.
    pub(super) unsafe fn start_broadcast(
        &self,
        comm: Comm,
        bytes: *mut u8,
        count: usize,
        root: u32,
    ) -> Result<RequestHandle, MpiError> {
        const CALL: &str = "MPI_Ibcast";
        let (byte, root) = (self.constants.byte, int(CALL, root)?);
        let (first, count) = (address(bytes, count), int(CALL, count)?);
        // SAFETY: the caller keeps the bytes for MPI.
        self.start(CALL, |request| unsafe {
            self.functions.ibcast(first, count, byte, root, comm, request)
        })
    }

    pub(super) fn start_barrier(&self, comm: Comm) -> Result<RequestHandle, MpiError> {
        // SAFETY: the handle is a communicator's.
        self.start("MPI_Ibarrier", |request| unsafe { self.functions.ibarrier(comm, request) })
    }

    /// Starts to gather blocks of one length, in place.
    ///
    /// # Safety
    /// `blocks` has room for `count` bytes from every rank and already holds this rank's own. It
    /// stays in place, and nothing else uses it, until the request is done.
    pub(super) unsafe fn start_all_gather(
        &self,
        comm: Comm,
        blocks: *mut u8,
        count: usize,
    ) -> Result<RequestHandle, MpiError> {
        const CALL: &str = "MPI_Iallgather";
        let Constants { in_place, byte, .. } = self.constants;
        let (first, count) = (address(blocks, count), int(CALL, count)?);
        // SAFETY: the caller keeps the blocks for MPI. The data to send is in place, so MPI does
        // not read its count and datatype.
        self.start(CALL, |request| unsafe {
            self.functions.iallgather(in_place, 0, byte, first, count, byte, comm, request)
        })
    }

    /// Starts to gather blocks of different lengths, in place.
    ///
    /// # Safety
    /// `counts` and `places` have a number for every rank. `blocks` has `length` bytes, with room
    /// for `counts[rank]` bytes at `places[rank]` from every rank, and already holds this rank's
    /// own. All three stay in place, and nothing else uses `blocks` or writes to the others, until
    /// the request is done.
    pub(super) unsafe fn start_all_gather_varying(
        &self,
        comm: Comm,
        blocks: *mut u8,
        length: usize,
        counts: *const c_int,
        places: *const c_int,
    ) -> Result<RequestHandle, MpiError> {
        let Constants { in_place, byte, .. } = self.constants;
        let first = address(blocks, length);
        // SAFETY: the caller keeps all three for MPI. The data to send is in place, so MPI does not
        // read its count and datatype.
        self.start("MPI_Iallgatherv", |request| unsafe {
            let start = Functions::iallgatherv;
            start(&self.functions, in_place, 0, byte, first, counts, places, byte, comm, request)
        })
    }

    /// Returns whether a started call is done. The request is then null, which is always done.
    pub(super) fn test(
        &self,
        call: &'static str,
        request: &mut RequestHandle,
    ) -> Result<bool, MpiError> {
        let mut flag = 0;
        // SAFETY: the request is one that MPI returned, or null; the status is ignored.
        let code =
            unsafe { self.functions.test(request, &raw mut flag, self.constants.status_ignore) };
        self.check(call, code).map(|()| flag != 0)
    }

    /// Waits until a started call is done.
    pub(super) fn wait(
        &self,
        call: &'static str,
        request: &mut RequestHandle,
    ) -> Result<(), MpiError> {
        // SAFETY: the request is one that MPI returned, or null; the status is ignored.
        let code = unsafe { self.functions.wait(request, self.constants.status_ignore) };
        self.check(call, code)
    }

    /// Describes `count` numbers, in a buffer of one or several times as many.
    fn values<T: Element>(
        &self,
        call: &'static str,
        first: *mut T,
        count: usize,
    ) -> Result<Buffer, MpiError> {
        let datatype = match T::KIND {
            ElementKind::F32 => self.constants.float,
            ElementKind::F64 => self.constants.double,
        };
        Ok(Buffer { first: address(first, count), count: int(call, count)?, datatype })
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), MpiError> {
        // MPI_SUCCESS is 0 in every ABI.
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the callback's pointers are to a buffer as long as any ABI's longest text and to
        // an int.
        let text =
            one_line(|text, length| unsafe { self.functions.error_string(code, text, length) });
        Err(MpiError::Call {
            call,
            code,
            text: text.unwrap_or_else(|| "unknown to MPI_Error_string".to_owned()),
        })
    }
}

/// Numbers, as MPI expects them.
struct Buffer {
    first: *mut c_void,
    count: c_int,
    datatype: Datatype,
}

/// The address of a buffer, as MPI expects it.
fn address<T>(first: *mut T, count: usize) -> *mut c_void {
    // The address of an empty Vec of bytes is 1, which is MPI_IN_PLACE in two ABIs.
    if count == 0 { ptr::null_mut() } else { first.cast() }
}

/// Converts a number to an `int`.
pub(super) fn int<N: Copy + TryInto<c_int> + TryInto<u64>>(
    call: &'static str,
    number: N,
) -> Result<c_int, MpiError> {
    number
        .try_into()
        .map_err(|_| MpiError::TooLarge { call, value: number.try_into().unwrap_or(u64::MAX) })
}

/// A text that MPI writes, joined to one line.
fn one_line(write: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> Option<String> {
    let mut text = vec![0_u8; LONGEST_TEXT];
    let mut length = 0;
    if write(text.as_mut_ptr().cast(), &raw mut length) != 0 {
        return None;
    }
    text.truncate(usize::try_from(length).unwrap_or_default());
    let text = String::from_utf8_lossy(&text);
    let lines =
        text.trim_end_matches('\0').split('\n').map(str::trim).filter(|line| !line.is_empty());
    Some(lines.collect::<Vec<_>>().join(", "))
}
