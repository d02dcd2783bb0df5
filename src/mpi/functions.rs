//! The functions of an MPI library, with their C types.

#![expect(unsafe_code, reason = "an MPI library is a C library, and it is loaded at run time")]

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

use super::abi::{Abi, Comm, Datatype, Errhandler, Op, RequestHandle, Typed};

/// An argument of a function of a library whose handles have the type `W`.
pub(super) trait Argument<W> {
    /// Its type in C.
    type InC;

    /// # Safety
    /// The library's handles have the type `W`.
    unsafe fn in_c(self) -> Self::InC;
}

impl<W: Copy, const KIND: char> Argument<W> for Typed<KIND> {
    type InC = W;
    unsafe fn in_c(self) -> W {
        // SAFETY: the caller knows which field of the union the handle is.
        unsafe { (&raw const self.0).cast::<W>().read() }
    }
}

/// A place where a library writes a handle, which begins where the union does.
impl<W, const KIND: char> Argument<W> for *mut Typed<KIND> {
    type InC = *mut W;
    unsafe fn in_c(self) -> *mut W {
        self.cast()
    }
}

/// Implements [`Argument`] for types that are the same for all libraries.
macro_rules! arguments {
    ($($plain:ty),*) => {
        $(impl<W> Argument<W> for $plain {
            type InC = $plain;
            unsafe fn in_c(self) -> $plain {
                self
            }
        })*
    };
}

arguments! {
    c_int, *mut c_int, *const c_int, *mut c_char, *mut *mut *mut c_char, *const c_void, *mut c_void
}

/// Defines a table of functions and fills it, from each function's Rust name, C name and arguments.
macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $name:literal($($argument:ident: $type:ty),*);)*) => {
        /// The functions of a library whose handles have the type `W`.
        pub(super) struct Table<W: Copy> {
            $($field: unsafe extern "C" fn($(<$type as Argument<W>>::InC),*) -> c_int,)*
        }

        impl<W: Copy> Table<W> {
            /// # Safety
            /// `W` is the type of the library's handles, and the library is never unloaded.
            unsafe fn find(library: &Library) -> Result<Box<Table<W>>, &'static str> {
                Ok(Box::new(Table {
                    $($field: {
                        // SAFETY: the type, which is the field's, is that of the function in the MPI
                        // standard, with this library's handles, which the caller guarantees.
                        let symbol = unsafe { library.get($name) };
                        *symbol.map_err(|_| $name)?
                    },)*
                }))
            }
        }

        #[expect(clippy::too_many_arguments, reason = "MPI's functions have as many")]
        impl Functions {
            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// What the MPI standard requires of the arguments, with handles of this library.
                pub(super) unsafe fn $field(&self, $($argument: $type),*) -> c_int {
                    // SAFETY: the caller's, and the table is that of the library's handles.
                    unsafe {
                        match self {
                            Functions::Pointers(table) => (table.$field)(
                                $(Argument::<*mut c_void>::in_c($argument)),*
                            ),
                            Functions::Ints(table) => (table.$field)(
                                $(Argument::<c_int>::in_c($argument)),*
                            ),
                        }
                    }
                }
            )*
        }
    };
}

/// The functions of a loaded library. Each returns an error code, which is 0 for success.
pub(super) enum Functions {
    Pointers(Box<Table<*mut c_void>>),
    Ints(Box<Table<c_int>>),
}

impl Functions {
    /// Finds the functions of a library. The error is the name of the first missing one.
    ///
    /// # Safety
    /// The library has this ABI, and is never unloaded.
    pub(super) unsafe fn find(library: &Library, abi: Abi) -> Result<Functions, &'static str> {
        // SAFETY: the handles of each ABI have this type, and the library stays loaded.
        unsafe {
            match abi {
                Abi::OpenMpi | Abi::Standard => Table::find(library).map(Functions::Pointers),
                Abi::Mpich => Table::find(library).map(Functions::Ints),
            }
        }
    }
}

functions! {
    initialized = "MPI_Initialized"(flag: *mut c_int);
    init_thread = "MPI_Init_thread"(
        argc: *mut c_int, argv: *mut *mut *mut c_char, required: c_int, provided: *mut c_int
    );
    finalize = "MPI_Finalize"();
    finalized = "MPI_Finalized"(flag: *mut c_int);
    abort = "MPI_Abort"(comm: Comm, code: c_int);
    get_library_version = "MPI_Get_library_version"(text: *mut c_char, length: *mut c_int);
    error_string = "MPI_Error_string"(code: c_int, text: *mut c_char, length: *mut c_int);
    comm_set_errhandler = "MPI_Comm_set_errhandler"(comm: Comm, handler: Errhandler);
    comm_rank = "MPI_Comm_rank"(comm: Comm, rank: *mut c_int);
    comm_size = "MPI_Comm_size"(comm: Comm, size: *mut c_int);
    comm_dup = "MPI_Comm_dup"(comm: Comm, new: *mut Comm);
    comm_split = "MPI_Comm_split"(comm: Comm, color: c_int, key: c_int, new: *mut Comm);
    comm_free = "MPI_Comm_free"(comm: *mut Comm);
    allreduce = "MPI_Allreduce"(
        send: *const c_void, receive: *mut c_void, count: c_int, datatype: Datatype, op: Op,
        comm: Comm
    );
    bcast = "MPI_Bcast"(
        buffer: *mut c_void, count: c_int, datatype: Datatype, root: c_int, comm: Comm
    );
    barrier = "MPI_Barrier"(comm: Comm);
    /// The counts are those of one rank.
    allgather = "MPI_Allgather"(
        send: *const c_void, sent: c_int, of_sent: Datatype, receive: *mut c_void, count: c_int,
        datatype: Datatype, comm: Comm
    );
    sendrecv = "MPI_Sendrecv"(
        send: *const c_void, sent: c_int, of_sent: Datatype, to: c_int, tag_sent: c_int,
        receive: *mut c_void, count: c_int, datatype: Datatype, from: c_int, tag: c_int,
        comm: Comm, status: *mut c_void
    );
    iallreduce = "MPI_Iallreduce"(
        send: *const c_void, receive: *mut c_void, count: c_int, datatype: Datatype, op: Op,
        comm: Comm, request: *mut RequestHandle
    );
    ibcast = "MPI_Ibcast"(
        buffer: *mut c_void, count: c_int, datatype: Datatype, root: c_int, comm: Comm,
        request: *mut RequestHandle
    );
    ibarrier = "MPI_Ibarrier"(comm: Comm, request: *mut RequestHandle);
    iallgather = "MPI_Iallgather"(
        send: *const c_void, sent: c_int, of_sent: Datatype, receive: *mut c_void, count: c_int,
        datatype: Datatype, comm: Comm, request: *mut RequestHandle
    );
    /// The count is that of one rank's part.
    reduce_scatter_block = "MPI_Reduce_scatter_block"(
        send: *const c_void, receive: *mut c_void, count: c_int, datatype: Datatype, op: Op,
        comm: Comm
    );
    ireduce_scatter_block = "MPI_Ireduce_scatter_block"(
        send: *const c_void, receive: *mut c_void, count: c_int, datatype: Datatype, op: Op,
        comm: Comm, request: *mut RequestHandle
    );
    /// The counts are those of one rank's part.
    alltoall = "MPI_Alltoall"(
        send: *const c_void, sent: c_int, of_sent: Datatype, receive: *mut c_void, count: c_int,
        datatype: Datatype, comm: Comm
    );
    ialltoall = "MPI_Ialltoall"(
        send: *const c_void, sent: c_int, of_sent: Datatype, receive: *mut c_void, count: c_int,
        datatype: Datatype, comm: Comm, request: *mut RequestHandle
    );
    isend = "MPI_Isend"(
        buffer: *const c_void, count: c_int, datatype: Datatype, to: c_int, tag: c_int, comm: Comm,
        request: *mut RequestHandle
    );
    irecv = "MPI_Irecv"(
        buffer: *mut c_void, count: c_int, datatype: Datatype, from: c_int, tag: c_int, comm: Comm,
        request: *mut RequestHandle
    );
    test = "MPI_Test"(request: *mut RequestHandle, flag: *mut c_int, status: *mut c_void);
    wait = "MPI_Wait"(request: *mut RequestHandle, status: *mut c_void);
    get_count = "MPI_Get_count"(status: *const c_void, datatype: Datatype, count: *mut c_int);
}
