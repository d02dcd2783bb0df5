//! The three ABIs of MPI: the types of their handles and the constants in their headers.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr;

use super::request::{Call, Started};

/// Which binary interface an MPI library has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Abi {
    /// Open MPI 4 and 5: handles are addresses of objects in the library.
    OpenMpi,
    /// MPICH, Intel MPI, MVAPICH, Cray MPICH: handles have the type `int`.
    Mpich,
    /// The ABI of the MPI 5 standard, `libmpi_abi`: handles are pointers with small integers as
    /// values.
    Standard,
}

impl fmt::Display for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Abi::OpenMpi => "Open MPI",
            Abi::Mpich => "MPICH",
            Abi::Standard => "MPI 5 standard",
        })
    }
}

/// The type of an ABI's handles: an `int` or a pointer.
pub(super) trait Handle: Copy + 'static {
    /// Wraps a started call of a library with such handles.
    fn started(call: Call<Self>) -> Started;
}

/// A handle of Open MPI and of the standard ABI.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Pointer(pub *mut c_void);

impl Handle for Pointer {
    fn started(call: Call<Pointer>) -> Started {
        Started::Pointers(call)
    }
}

impl Handle for c_int {
    fn started(call: Call<c_int>) -> Started {
        Started::Ints(call)
    }
}

// One type for each kind of handle, so that passing a datatype for a communicator does not compile.

/// `MPI_Comm`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Comm<W>(pub W);

/// `MPI_Datatype`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Datatype<W>(pub W);

/// `MPI_Op`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Op<W>(pub W);

/// `MPI_Errhandler`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Errhandler<W>(pub W);

/// `MPI_Request`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct RequestHandle<W>(pub W);

/// The constants of `mpi.h` that differ from ABI to ABI.
pub(super) struct Constants<W> {
    pub comm_world: Comm<W>,
    pub comm_self: Comm<W>,
    pub byte: Datatype<W>,
    pub float: Datatype<W>,
    pub double: Datatype<W>,
    pub sum: Op<W>,
    pub errors_return: Errhandler<W>,
    pub request_null: RequestHandle<W>,
    pub in_place: *const c_void,
    pub status_ignore: *mut c_void,
    pub thread_funneled: c_int,
}

impl Constants<c_int> {
    /// As in the `mpi.h` of MPICH 3 to 5. Intel MPI has the same constants, by the MPICH ABI
    /// initiative.
    pub(super) fn mpich() -> Constants<c_int> {
        Constants {
            comm_world: Comm(0x4400_0000),
            comm_self: Comm(0x4400_0001),
            byte: Datatype(0x4c00_010d),
            float: Datatype(0x4c00_040a),
            double: Datatype(0x4c00_080b),
            sum: Op(0x5800_0003),
            errors_return: Errhandler(0x5400_0001),
            request_null: RequestHandle(0x2c00_0000),
            in_place: ptr::without_provenance(usize::MAX),
            status_ignore: ptr::without_provenance_mut(1),
            thread_funneled: 1,
        }
    }
}

impl Constants<Pointer> {
    /// As in the `mpi_abi.h` of the MPI 5 standard.
    pub(super) fn standard() -> Constants<Pointer> {
        let handle = |number| Pointer(ptr::without_provenance_mut(number));
        Constants {
            comm_world: Comm(handle(0x101)),
            comm_self: Comm(handle(0x102)),
            byte: Datatype(handle(0x247)),
            float: Datatype(handle(0x210)),
            double: Datatype(handle(0x214)),
            sum: Op(handle(0x21)),
            errors_return: Errhandler(handle(0x143)),
            request_null: RequestHandle(handle(0x180)),
            in_place: ptr::without_provenance(1),
            status_ignore: ptr::null_mut(),
            thread_funneled: 1024,
        }
    }

    /// As in the `mpi.h` of Open MPI 4 and 5. `address` returns an object's address in the library,
    /// or its name if the library lacks it.
    pub(super) fn open_mpi(
        address: impl Fn(&'static str) -> Result<*mut c_void, &'static str>,
    ) -> Result<Constants<Pointer>, &'static str> {
        let handle = |name| address(name).map(Pointer);
        Ok(Constants {
            comm_world: Comm(handle(OPEN_MPI_WORLD)?),
            comm_self: Comm(handle("ompi_mpi_comm_self")?),
            byte: Datatype(handle("ompi_mpi_byte")?),
            float: Datatype(handle("ompi_mpi_float")?),
            double: Datatype(handle("ompi_mpi_double")?),
            sum: Op(handle("ompi_mpi_op_sum")?),
            errors_return: Errhandler(handle("ompi_mpi_errors_return")?),
            request_null: RequestHandle(handle("ompi_request_null")?),
            in_place: ptr::without_provenance(1),
            status_ignore: ptr::null_mut(),
            thread_funneled: 1,
        })
    }
}

/// Only Open MPI has this object.
pub(super) const OPEN_MPI_WORLD: &str = "ompi_mpi_comm_world";

/// Only libraries with the MPICH ABI have this function, and all of them do: it is their
/// `MPI_DUP_FN`.
pub(super) const MPICH_DUP_FN: &str = "MPIR_Dup_fn";
