//! The three ABIs of MPI: the types of their handles and the constants in their headers.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr;

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

/// A handle of Open MPI and of the standard ABI (a pointer), or of MPICH's ABI (an `int`). Which of
/// the two it is, the library's ABI says.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Handle {
    pub pointer: *mut c_void,
    pub int: c_int,
}

/// A handle of a kind, so that passing a datatype for a communicator does not compile.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Typed<const KIND: char>(pub Handle);

/// `MPI_Comm`.
pub(super) type Comm = Typed<'c'>;
/// `MPI_Datatype`.
pub(super) type Datatype = Typed<'d'>;
/// `MPI_Op`.
pub(super) type Op = Typed<'o'>;
/// `MPI_Errhandler`.
pub(super) type Errhandler = Typed<'e'>;
/// `MPI_Request`.
pub(super) type RequestHandle = Typed<'r'>;

/// An `MPI_Status` of any ABI, which only the library reads. The longest is that of the standard:
/// 32 bytes, where Open MPI's has 24 and MPICH's 20.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Status([u64; 4]);

impl Status {
    pub(super) fn place(&mut self) -> *mut c_void {
        (&raw mut *self).cast()
    }
}

/// The constants of `mpi.h` that differ from ABI to ABI.
pub(super) struct Constants {
    pub comm_world: Comm,
    pub comm_self: Comm,
    pub byte: Datatype,
    pub float: Datatype,
    pub double: Datatype,
    pub sum: Op,
    pub min: Op,
    pub max: Op,
    pub errors_return: Errhandler,
    pub request_null: RequestHandle,
    pub in_place: *const c_void,
    pub proc_null: c_int,
    pub thread_funneled: c_int,
    pub thread_serialized: c_int,
}

impl Constants {
    /// As in the `mpi.h` of Open MPI 4 and 5 and of MPICH 3 to 5, and in the `mpi_abi.h` of the MPI
    /// 5 standard. Intel MPI has the same constants as MPICH, by the MPICH ABI initiative.
    ///
    /// `address` returns an object's address in Open MPI's library, or its name if the library
    /// lacks it.
    pub(super) fn of(
        abi: Abi,
        address: impl Fn(&'static str) -> Result<*mut c_void, &'static str>,
    ) -> Result<Constants, &'static str> {
        let handle = |open_mpi, mpich, standard| match abi {
            Abi::OpenMpi => address(open_mpi).map(|pointer| Handle { pointer }),
            Abi::Mpich => Ok(Handle { int: mpich }),
            Abi::Standard => Ok(Handle { pointer: ptr::without_provenance_mut(standard) }),
        };
        let is_standard = abi == Abi::Standard;
        let in_place = if abi == Abi::Mpich { usize::MAX } else { 1 };
        Ok(Constants {
            comm_world: Typed(handle(OPEN_MPI_WORLD, 0x4400_0000, 0x101)?),
            comm_self: Typed(handle("ompi_mpi_comm_self", 0x4400_0001, 0x102)?),
            byte: Typed(handle("ompi_mpi_byte", 0x4c00_010d, 0x247)?),
            float: Typed(handle("ompi_mpi_float", 0x4c00_040a, 0x210)?),
            double: Typed(handle("ompi_mpi_double", 0x4c00_080b, 0x214)?),
            sum: Typed(handle("ompi_mpi_op_sum", 0x5800_0003, 0x21)?),
            min: Typed(handle("ompi_mpi_op_min", 0x5800_0002, 0x22)?),
            max: Typed(handle("ompi_mpi_op_max", 0x5800_0001, 0x23)?),
            errors_return: Typed(handle("ompi_mpi_errors_return", 0x5400_0001, 0x143)?),
            request_null: Typed(handle("ompi_request_null", 0x2c00_0000, 0x180)?),
            in_place: ptr::without_provenance(in_place),
            proc_null: match abi {
                Abi::Mpich => -1,
                Abi::OpenMpi => -2,
                Abi::Standard => -3,
            },
            thread_funneled: if is_standard { 1024 } else { 1 },
            thread_serialized: if is_standard { 2048 } else { 2 },
        })
    }
}

/// Only Open MPI has this object.
pub(super) const OPEN_MPI_WORLD: &str = "ompi_mpi_comm_world";

/// Only libraries with the MPICH ABI have this function, and all of them do: it is their
/// `MPI_DUP_FN`.
pub(super) const MPICH_DUP_FN: &str = "MPIR_Dup_fn";
