//! A library that can be called: with Rust types, and with errors instead of error codes.

#![expect(unsafe_code, reason = "an MPI library is a C library, and it is loaded at run time")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use super::abi::{Comm, Constants, Datatype, RequestHandle, Status};
use super::error::{MpiError, Result};
use super::functions::Functions;
use mpienv_core::Rank;

/// A loaded library: its functions and the constants of its ABI.
///
/// One thread uses it at a time. Between [`Api::init`] and [`Api::finalize`], every method may be
/// called; before and after, only those that say so.
pub(super) struct Api {
    pub functions: Functions,
    pub constants: Constants,
}

/// The longest text of any ABI: MPI_MAX_LIBRARY_VERSION_STRING of MPICH and of the standard.
const LONGEST_TEXT: usize = 8192;

impl Api {
    /// Returns whether MPI is initialized. May be called before init.
    pub(super) fn is_initialized(&self) -> Result<bool> {
        let mut flag = 0;
        // SAFETY: the argument points to an int.
        let code = unsafe { self.functions.initialized(&raw mut flag) };
        self.check("MPI_Initialized", code).map(|()| flag != 0)
    }

    /// Returns whether something else has finalized MPI.
    pub(super) fn is_finalized(&self) -> bool {
        let mut flag = 0;
        // SAFETY: the argument points to an int.
        let code = unsafe { self.functions.finalized(&raw mut flag) };
        self.check("MPI_Finalized", code).is_ok() && flag != 0
    }

    /// Initializes MPI, and returns the thread level that MPI provides.
    pub(super) fn init(&self) -> Result<c_int> {
        let mut provided = 0;
        // SAFETY: argc and argv may be null; `provided` is an int.
        let code = unsafe {
            self.functions.init_thread(
                ptr::null_mut(),
                ptr::null_mut(),
                self.constants.thread_serialized,
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

    pub(super) fn finalize(&self) -> Result<()> {
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
    fn return_errors(&self, comm: Comm) -> Result<()> {
        // SAFETY: the handles are a communicator's and an error handler's.
        let code =
            unsafe { self.functions.comm_set_errhandler(comm, self.constants.errors_return) };
        self.check("MPI_Comm_set_errhandler", code)
    }

    /// This process's place in a communicator.
    pub(super) fn rank(&self, comm: Comm) -> Result<Rank> {
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

    pub(super) fn duplicate(&self, comm: Comm) -> Result<Comm> {
        // SAFETY: the handle is a communicator's, and MPI writes one.
        self.create("MPI_Comm_dup", |new| unsafe { self.functions.comm_dup(comm, new) })
    }

    pub(super) fn split(&self, comm: Comm, color: u32, key: u32) -> Result<Comm> {
        const CALL: &str = "MPI_Comm_split";
        let (color, key) = (int(CALL, color)?, int(CALL, key)?);
        // SAFETY: as above.
        self.create(CALL, |new| unsafe { self.functions.comm_split(comm, color, key, new) })
    }

    /// Creates a communicator by a call that overwrites a handle and returns an error code.
    fn create(&self, call: &'static str, create: impl FnOnce(*mut Comm) -> c_int) -> Result<Comm> {
        let mut new = self.constants.comm_world;
        self.check(call, create(&raw mut new))?;
        self.return_errors(new).map(|()| new)
    }

    /// Frees a communicator, which must not be used afterwards.
    pub(super) fn free(&self, mut comm: Comm) -> Result<()> {
        // SAFETY: the pointer is to a communicator's handle.
        let code = unsafe { self.functions.comm_free(&raw mut comm) };
        self.check("MPI_Comm_free", code)
    }

    /// Starts a call, which overwrites the request and returns an error code.
    pub(super) fn start(
        &self,
        call: &'static str,
        start: impl FnOnce(*mut RequestHandle) -> Result<c_int>,
    ) -> Result<RequestHandle> {
        let mut request = self.constants.request_null;
        self.check(call, start(&raw mut request)?).map(|()| request)
    }

    /// Returns the status of a started call that is done. The request is then null, which is always
    /// done.
    pub(super) fn test(
        &self,
        call: &'static str,
        request: &mut RequestHandle,
    ) -> Result<Option<Status>> {
        let (mut flag, mut status) = (0, Status::default());
        // SAFETY: the request is one that MPI returned, or null; the others are of this thread.
        let code = unsafe { self.functions.test(request, &raw mut flag, status.place()) };
        self.check(call, code).map(|()| (flag != 0).then_some(status))
    }

    /// Waits until a started call is done, and returns its status.
    pub(super) fn wait(&self, call: &'static str, request: &mut RequestHandle) -> Result<Status> {
        let mut status = Status::default();
        // SAFETY: the request is one that MPI returned, or null; the status is of this thread.
        let code = unsafe { self.functions.wait(request, status.place()) };
        self.check(call, code).map(|()| status)
    }

    /// Fails if a message had fewer bytes than were expected. MPI itself refuses more. Its statuses
    /// count bytes, whatever the type of the values.
    pub(super) fn check_length(
        &self,
        call: &'static str,
        mut status: Status,
        from: u32,
        expected: usize,
    ) -> Result<()> {
        let mut count = 0;
        // SAFETY: the status is of a message, and the pointer is to an int.
        let code = unsafe {
            self.functions.get_count(status.place(), self.constants.byte, &raw mut count)
        };
        self.check("MPI_Get_count", code)?;
        match usize::try_from(count).unwrap_or_default() {
            received if received == expected => Ok(()),
            received => Err(MpiError::Shorter { call, from, received, expected }),
        }
    }

    /// Describes `count` values, in a buffer of one or several times as many.
    pub(super) fn buffer<T: Value>(
        &self,
        call: &'static str,
        first: *const T,
        count: usize,
    ) -> Result<Buffer> {
        // The address of an empty Vec of bytes is 1, which is MPI_IN_PLACE in two ABIs.
        let first = if count == 0 { ptr::null_mut() } else { first.cast_mut().cast() };
        let count = int(call, count.saturating_mul(T::COUNT))?;
        Ok(Buffer { first, count, datatype: (T::DATATYPE)(&self.constants) })
    }

    /// Returns the error for a code, unless it is that of success.
    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<()> {
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

/// Values, as MPI expects them.
pub(super) struct Buffer {
    pub first: *mut c_void,
    pub count: c_int,
    pub datatype: Datatype,
}

/// A number that ranks can sum: `f32` or `f64`.
///
/// ```no_run
/// use mpienv::mpi::{Communicator, Element, MpiError};
///
/// fn sum<T: Element>(world: &Communicator, value: T) -> Result<T, MpiError> {
///     let mut values = [value];
///     world.all_reduce_sum(&mut values)?;
///     Ok(values[0])
/// }
/// ```
pub trait Element: Value {}

impl Element for f32 {}
impl Element for f64 {}

/// A value that ranks can exchange: an integer of 8 to 64 bits, `f32` or `f64`.
///
/// ```no_run
/// use mpienv::mpi::{Communicator, MpiError, Value};
///
/// fn of_rank_0<T: Value>(world: &Communicator, value: T) -> Result<T, MpiError> {
///     let mut values = [value];
///     world.broadcast(&mut values, 0)?;
///     Ok(values[0])
/// }
/// ```
#[expect(private_bounds, reason = "only these types are values")]
pub trait Value: Typed + Copy + Default + 'static {}

/// A value of which MPI has a type, or which consists of so many of its bytes.
pub(super) trait Typed {
    const DATATYPE: fn(&Constants) -> Datatype;
    const COUNT: usize;
}

macro_rules! values {
    ($($value:ty = $count:literal $datatype:ident,)*) => {$(
        impl Value for $value {}

        impl Typed for $value {
            const DATATYPE: fn(&Constants) -> Datatype = |constants| constants.$datatype;
            const COUNT: usize = $count;
        }
    )*};
}

values! {
    f32 = 1 float, f64 = 1 double,
    u8 = 1 byte, u16 = 2 byte, u32 = 4 byte, u64 = 8 byte,
    i8 = 1 byte, i16 = 2 byte, i32 = 4 byte, i64 = 8 byte,
}

/// Converts a number to an `int`.
pub(super) fn int<N: Copy + TryInto<c_int> + TryInto<u64>>(
    call: &'static str,
    number: N,
) -> Result<c_int> {
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
