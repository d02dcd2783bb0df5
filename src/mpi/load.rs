//! Loads an MPI library and recognises its ABI.

#![expect(unsafe_code, reason = "an MPI library is a C library, and it is loaded at run time")]

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::Library;

use super::abi::{Constants, MPICH_DUP_FN, OPEN_MPI_WORLD, Pointer};
use super::api::Api;
use super::error::MpiError;
use super::functions::Functions;
use crate::value::placement::Launcher;

/// A library of a known ABI, ready to be called.
pub(super) enum Loaded {
    OpenMpi(Api<Pointer>),
    Mpich(Api<c_int>),
    Standard(Api<Pointer>),
}

impl Loaded {
    /// What the library calls itself.
    pub(super) fn version(&self) -> String {
        match self {
            Loaded::OpenMpi(api) | Loaded::Standard(api) => api.version(),
            Loaded::Mpich(api) => api.version(),
        }
    }
}

/// Loads the first file that can be loaded; also returns its name.
pub(super) fn load(launcher: Launcher, candidates: Vec<PathBuf>) -> Result<(Loaded, PathBuf), MpiError> {
    let mut tried = Vec::new();
    for name in candidates {
        match open(&name) {
            Ok(library) => match recognise(library) {
                Ok(loaded) => return Ok((loaded, name)),
                Err(missing) => return Err(MpiError::NotRecognised { library: name, missing }),
            },
            Err(error) => tried.push((name, reason(&error))),
        }
    }
    Err(MpiError::NoLibrary { launcher, tried })
}

/// What the loader said, without its wrapping.
fn reason(error: &libloading::Error) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), |source| source.to_string())
}

#[cfg(unix)]
fn open(name: &Path) -> Result<Library, libloading::Error> {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    // Global: the plug-ins of older Open MPI look libmpi's symbols up.
    // SAFETY: libmpi's initializers only set up its own data.
    unsafe { Library::open(Some(name.as_os_str()), RTLD_NOW | RTLD_GLOBAL) }.map(Into::into)
}

#[cfg(not(unix))]
fn open(name: &Path) -> Result<Library, libloading::Error> {
    // SAFETY: libmpi's initializers only set up its own data.
    unsafe { Library::new(name.as_os_str()) }
}

/// What is missing where the functions are MPI's.
const UNKNOWN_ABI: &str = "ompi_mpi_comm_world, no MPIR_Dup_fn, and no MPI_Abi_get_version that returns a version";

/// Tells the ABI by what the library says and has; the error is what it lacks.
fn recognise(library: Library) -> Result<Loaded, &'static str> {
    // Never unloaded: MPI leaves threads and exit handlers behind.
    let library = ManuallyDrop::new(library);
    address(&library, "MPI_Init_thread")?;
    // First: a library of the standard ABI may stand on one that has Open MPI's objects.
    if is_standard(&library) {
        // SAFETY: handles of the standard ABI are pointers, and the library stays.
        let functions = unsafe { Functions::find(&library) }?;
        return Ok(Loaded::Standard(Api::new(functions, Constants::standard())));
    }
    if address(&library, OPEN_MPI_WORLD).is_ok() {
        let constants = Constants::open_mpi(|name| address(&library, name))?;
        // SAFETY: handles of Open MPI are pointers, and the library stays.
        let functions = unsafe { Functions::find(&library) }?;
        return Ok(Loaded::OpenMpi(Api::new(functions, constants)));
    }
    address(&library, MPICH_DUP_FN).map_err(|_| UNKNOWN_ABI)?;
    // SAFETY: handles of the MPICH ABI are ints, and the library stays.
    let functions = unsafe { Functions::find(&library) }?;
    Ok(Loaded::Mpich(Api::new(functions, Constants::mpich())))
}

/// The address of a symbol, or its name where there is none.
fn address(library: &Library, name: &'static str) -> Result<*mut c_void, &'static str> {
    // SAFETY: nothing is read: an address is all that is taken.
    let symbol = unsafe { library.get::<*mut c_void>(name) };
    symbol.map(|symbol| *symbol).map_err(|_| name)
}

/// Whether handles and constants are the standard's.
fn is_standard(library: &Library) -> bool {
    type AbiGetVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    // SAFETY: the type is that of the function in the MPI 5 standard.
    let Ok(version) = (unsafe { library.get::<AbiGetVersion>("MPI_Abi_get_version") }) else { return false };
    let (mut major, mut minor) = (-1, -1);
    // SAFETY: both point to an int; the standard allows the call before MPI_Init. A library that
    // has the function and another ABI, as MPICH 5's libmpi.so.12, says version -1.
    let code = unsafe { version(&raw mut major, &raw mut minor) };
    code == 0 && major >= 1
}
