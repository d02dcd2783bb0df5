//! The functions of an MPI library, with their C types.

#![expect(unsafe_code, reason = "an MPI library is a C library, and it is loaded at run time")]

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

use super::abi::{Comm, Datatype, Errhandler, Op, RequestHandle};

/// Defines a table of functions and fills it, from each function's Rust name, C name and argument
/// types.
macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $name:literal($($argument:ty),*);)*) => {
        /// The functions of a loaded library. Each returns an error code, which is 0 for success.
        pub(super) struct Functions<W> {
            $($(#[$doc])* pub $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl<W> Functions<W> {
            /// Finds the functions of a library. The error is the name of the first missing one.
            ///
            /// # Safety
            /// `W` is the type of the library's handles, and the library is never unloaded.
            pub(super) unsafe fn find(library: &Library) -> Result<Functions<W>, &'static str> {
                Ok(Functions {
                    $($field: {
                        // SAFETY: the type is that of the function in the MPI standard, with this
                        // library's handles, of which the caller guarantees the type.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> c_int>($name)
                        };
                        *symbol.map_err(|_| $name)?
                    },)*
                })
            }
        }
    };
}

functions! {
    initialized = "MPI_Initialized"(*mut c_int);
    /// argc, argv, requested thread level, provided thread level.
    init_thread = "MPI_Init_thread"(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    finalize = "MPI_Finalize"();
    abort = "MPI_Abort"(Comm<W>, c_int);
    get_library_version = "MPI_Get_library_version"(*mut c_char, *mut c_int);
    error_string = "MPI_Error_string"(c_int, *mut c_char, *mut c_int);
    comm_set_errhandler = "MPI_Comm_set_errhandler"(Comm<W>, Errhandler<W>);
    comm_rank = "MPI_Comm_rank"(Comm<W>, *mut c_int);
    comm_size = "MPI_Comm_size"(Comm<W>, *mut c_int);
    comm_dup = "MPI_Comm_dup"(Comm<W>, *mut Comm<W>);
    /// Communicator, color, key, new communicator.
    comm_split = "MPI_Comm_split"(Comm<W>, c_int, c_int, *mut Comm<W>);
    comm_free = "MPI_Comm_free"(*mut Comm<W>);
    /// Send buffer, receive buffer, count, ...
    allreduce = "MPI_Allreduce"(*const c_void, *mut c_void, c_int, Datatype<W>, Op<W>, Comm<W>);
    /// Buffer, count, datatype, root, communicator.
    bcast = "MPI_Bcast"(*mut c_void, c_int, Datatype<W>, c_int, Comm<W>);
    barrier = "MPI_Barrier"(Comm<W>);
    iallreduce = "MPI_Iallreduce"(
        *const c_void, *mut c_void, c_int, Datatype<W>, Op<W>, Comm<W>, *mut RequestHandle<W>
    );
    ibcast = "MPI_Ibcast"(*mut c_void, c_int, Datatype<W>, c_int, Comm<W>, *mut RequestHandle<W>);
    ibarrier = "MPI_Ibarrier"(Comm<W>, *mut RequestHandle<W>);
    iallgather = "MPI_Iallgather"(
        *const c_void, c_int, Datatype<W>, *mut c_void, c_int, Datatype<W>, Comm<W>, *mut RequestHandle<W>
    );
    /// As MPI_Iallgather, with a count and a displacement for each rank.
    iallgatherv = "MPI_Iallgatherv"(
        *const c_void, c_int, Datatype<W>, *mut c_void, *const c_int, *const c_int, Datatype<W>, Comm<W>,
        *mut RequestHandle<W>
    );
    /// As MPI_Allreduce; the count is that of one rank's part.
    reduce_scatter_block = "MPI_Reduce_scatter_block"(
        *const c_void, *mut c_void, c_int, Datatype<W>, Op<W>, Comm<W>
    );
    ireduce_scatter_block = "MPI_Ireduce_scatter_block"(
        *const c_void, *mut c_void, c_int, Datatype<W>, Op<W>, Comm<W>, *mut RequestHandle<W>
    );
    /// As MPI_Allgather; the counts are those of one rank's part.
    alltoall = "MPI_Alltoall"(
        *const c_void, c_int, Datatype<W>, *mut c_void, c_int, Datatype<W>, Comm<W>
    );
    ialltoall = "MPI_Ialltoall"(
        *const c_void, c_int, Datatype<W>, *mut c_void, c_int, Datatype<W>, Comm<W>, *mut RequestHandle<W>
    );
    /// Request, whether it is done, status.
    test = "MPI_Test"(*mut RequestHandle<W>, *mut c_int, *mut c_void);
    wait = "MPI_Wait"(*mut RequestHandle<W>, *mut c_void);
}
