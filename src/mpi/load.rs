//! Loads an MPI library and recognizes its ABI.

#![expect(unsafe_code, reason = "an MPI library is a C library, and it is loaded at run time")]

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::Library;

use super::abi::{Abi, Constants, MPICH_DUP_FN, OPEN_MPI_WORLD};
use super::api::Api;
use super::error::{MpiError, Result};
use super::functions::Functions;
use mpienv_core::Launcher;

/// A library with a known ABI, ready to be called.
pub(super) struct Loaded {
    pub api: Api,
    pub abi: Abi,
    /// The name by which it was loaded.
    pub file: PathBuf,
}

/// Loads the first file that can be loaded.
pub(super) fn load(launcher: Launcher, candidates: Vec<PathBuf>) -> Result<Loaded> {
    let mut tried = Vec::new();
    for file in candidates {
        match open(&file) {
            Ok(library) => {
                return match recognize(library) {
                    Ok((api, abi)) => Ok(Loaded { api, abi, file }),
                    Err(missing) => Err(MpiError::NotRecognized { library: file, missing }),
                };
            }
            Err(error) => tried.push((file, reason(&error))),
        }
    }
    Err(MpiError::NoLibrary { launcher, tried })
}

/// The loader's own error text, without libloading's.
fn reason(error: &libloading::Error) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), |source| source.to_string())
}

fn open(name: &Path) -> Result<Library, libloading::Error> {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    // Global, because the plug-ins of older Open MPI versions look up libmpi's symbols.
    // SAFETY: libmpi's initializers only set up its own data.
    unsafe { Library::open(Some(name.as_os_str()), RTLD_NOW | RTLD_GLOBAL) }.map(Into::into)
}

/// What is missing if a library has MPI's functions but no known ABI.
const UNKNOWN_ABI: &str =
    "ompi_mpi_comm_world, no MPIR_Dup_fn, and no MPI_Abi_get_version that returns a version";

/// Recognizes the ABI by the library's symbols. The error names what the library lacks.
fn recognize(library: Library) -> Result<(Api, Abi), &'static str> {
    // Never unload the library: MPI leaves threads and exit handlers behind.
    let library = ManuallyDrop::new(library);
    address(&library, "MPI_Init_thread")?;
    // Check this first: a library with the standard ABI may depend on one that has Open MPI's
    // objects.
    let (abi, constants) = if is_standard(&library) {
        (Abi::Standard, Constants::standard())
    } else if address(&library, OPEN_MPI_WORLD).is_ok() {
        (Abi::OpenMpi, Constants::open_mpi(|name| address(&library, name))?)
    } else {
        address(&library, MPICH_DUP_FN).map_err(|_| UNKNOWN_ABI)?;
        (Abi::Mpich, Constants::mpich())
    };
    // SAFETY: the library has this ABI, and it stays.
    let functions = unsafe { Functions::find(&library, abi) }?;
    Ok((Api::new(functions, constants), abi))
}

/// The address of a symbol. The error is its name, if the library lacks it.
fn address(library: &Library, name: &'static str) -> Result<*mut c_void, &'static str> {
    // SAFETY: this only takes the address and does not read from it.
    let symbol = unsafe { library.get::<*mut c_void>(name) };
    symbol.map(|symbol| *symbol).map_err(|_| name)
}

/// Returns whether the library's handles and constants are those of the standard ABI.
fn is_standard(library: &Library) -> bool {
    type AbiGetVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    // SAFETY: the type is that of the function in the MPI 5 standard.
    let Ok(version) = (unsafe { library.get::<AbiGetVersion>("MPI_Abi_get_version") }) else {
        return false;
    };
    let (mut major, mut minor) = (-1, -1);
    // SAFETY: both point to an int, and the standard allows the call before MPI_Init. A library
    // that has the function but another ABI, such as MPICH 5's libmpi.so.12, returns version -1.
    let code = unsafe { version(&raw mut major, &raw mut minor) };
    code == 0 && major >= 1
}
