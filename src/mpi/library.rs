//! Finds the launcher's MPI library, loads it and recognizes its ABI.

#![expect(unsafe_code, reason = "an MPI library is a C library, and it is loaded at run time")]

use std::collections::HashSet;
use std::ffi::{OsStr, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::Library;

use super::abi::{Abi, Constants, MPICH_DUP_FN, OPEN_MPI_WORLD};
use super::api::Api;
use super::error::{MpiError, Result};
use super::functions::Functions;
use mpienv_core::seam::{MpiFamily, programs_above};
use mpienv_core::{Environment, Launcher};

/// The file names of the libraries.
const OPEN_MPI: &str = if ON_MACOS { "libmpi.40.dylib" } else { "libmpi.so.40" };
const SPECTRUM: &str = if ON_MACOS { "libmpi_ibm.3.dylib" } else { "libmpi_ibm.so.3" };
const MPICH: [&str; 3] = match ON_MACOS {
    true => ["libmpi.12.dylib", "libmpich.12.dylib", "libmpi_abi.1.dylib"],
    false => ["libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"],
};
const ON_MACOS: bool = cfg!(target_os = "macos");

/// The variable that names the only library to load.
const CHOICE: &str = "MPIENV_MPI_LIB";

/// A library with a known ABI, ready to be called.
pub(super) struct Loaded {
    pub api: Api,
    pub abi: Abi,
    /// The name by which it was loaded.
    pub file: PathBuf,
    /// Its name and version, as it reports them.
    pub version: String,
}

impl Loaded {
    /// Fails if a thread level is below the one that is needed.
    pub(super) fn check_threads(
        &self,
        provided: c_int,
        needed: c_int,
        level: &'static str,
    ) -> Result<()> {
        if provided >= needed {
            return Ok(());
        }
        Err(MpiError::ThreadLevel { library: self.file.clone(), provided, needed, level })
    }
}

/// Loads the launcher's library: the first file that can be loaded.
pub(super) fn load(launcher: Launcher, environment: &Environment) -> Result<Loaded> {
    let mut tried = Vec::new();
    for file in candidates(launcher, environment, &programs_above()) {
        match open(&file).map(recognize) {
            Ok(Ok((api, abi))) => {
                return Ok(Loaded { version: api.version(), api, abi, file });
            }
            Ok(Err(missing)) => return Err(MpiError::NotRecognized { library: file, missing }),
            Err(error) => tried.push((file, reason(&error))),
        }
    }
    Err(MpiError::NoLibrary { launcher, tried, is_set: environment.get(CHOICE).is_some() })
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
    let abi = if is_standard(&library) {
        Abi::Standard
    } else if address(&library, OPEN_MPI_WORLD).is_ok() {
        Abi::OpenMpi
    } else {
        address(&library, MPICH_DUP_FN).map_err(|_| UNKNOWN_ABI)?;
        Abi::Mpich
    };
    let constants = Constants::of(abi, |name| address(&library, name))?;
    // SAFETY: the library has this ABI, and it stays.
    let functions = unsafe { Functions::find(&library, abi) }?;
    Ok((Api { functions, constants }, abi))
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

/// The files to try, in this order. The system's loader finds names without a folder.
///
/// `programs` are the programs that this process descends from, its parent first.
fn candidates(launcher: Launcher, environment: &Environment, programs: &[PathBuf]) -> Vec<PathBuf> {
    let path = |name| environment.get(name).filter(|path| !path.is_empty());
    if let Some(library) = path(CHOICE) {
        return vec![PathBuf::from(library)];
    }
    let names = names(launcher, environment);
    let mut files = Vec::new();
    if let Some(prefix) = path("OPAL_PREFIX")
        && names.contains(&OPEN_MPI)
    {
        files.push(Path::new(prefix).join("lib").join(OPEN_MPI));
    }
    // The layout of `pip install` and HPC modules: bin/mpiexec, and lib/libmpi next to bin.
    let launchers = programs.iter().filter(|program| is_launcher(program));
    for prefix in launchers.filter_map(|program| program.parent()?.parent()) {
        for folder in ["lib", "lib64", "lib/release"] {
            let beside = names.iter().map(|name| prefix.join(folder).join(name));
            files.extend(beside.filter(|file| file.is_file()));
        }
    }
    files.extend(names.iter().map(PathBuf::from));
    // Try a file only once, even if both OPAL_PREFIX and the launcher lead to it.
    let mut seen = HashSet::new();
    files.retain(|file| seen.insert(file.clone()));
    files
}

fn names(launcher: Launcher, environment: &Environment) -> Vec<&'static str> {
    // How Slurm's processes find each other: `pmix`, `pmi2`, ...
    let plugin = environment.get("SLURM_MPI_TYPE").unwrap_or_default();
    let speaks_pmix = plugin.as_encoded_bytes().starts_with(b"pmix");
    let open_mpi_first = || [&[OPEN_MPI][..], &MPICH].concat();
    let mpich_first = || [&MPICH[..], &[OPEN_MPI]].concat();
    match launcher.spec().mpi {
        // Never another MPI's library: MPICH's aborts under Open MPI's mpirun, and Open MPI's runs
        // as rank 0 of 1 under Hydra.
        MpiFamily::OpenMpi => vec![OPEN_MPI],
        MpiFamily::Mpich | MpiFamily::CrayMpich => MPICH.to_vec(),
        MpiFamily::Spectrum => vec![SPECTRUM, OPEN_MPI],
        // Open MPI 5 can reach its launcher only over PMIx.
        MpiFamily::PmiOrPmix if speaks_pmix => open_mpi_first(),
        MpiFamily::PmiOrPmix | MpiFamily::Pmi => mpich_first(),
        MpiFamily::None => open_mpi_first(),
    }
}

/// Returns whether a program is `mpirun`, or one that `mpirun` starts on every node.
fn is_launcher(program: &Path) -> bool {
    // orterun, orted: Open MPI 4; prterun, prted: 5; hydra_pmi_proxy: MPICH, Intel; mpispawn:
    // MVAPICH.
    const STARTS: [&str; 6] = ["mpirun", "mpiexec", "orte", "prte", "hydra", "mpispawn"];
    let name = program.file_name().and_then(OsStr::to_str).unwrap_or_default();
    STARTS.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(launcher: Launcher, vars: &[(&str, &str)], programs: &[PathBuf]) -> Vec<String> {
        let environment = Environment::from_vars(vars.iter().copied());
        let files = candidates(launcher, &environment, programs);
        files.into_iter().map(|file| file.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_users_choice_is_the_only_one() {
        let vars = [("MPIENV_MPI_LIB", "/opt/mpi/libmpi.so"), ("OPAL_PREFIX", "/opt/openmpi")];
        for &launcher in Launcher::ALL {
            assert_eq!(found(launcher, &vars, &[]), ["/opt/mpi/libmpi.so"], "{launcher}");
        }
    }

    #[test]
    fn the_library_is_of_the_launchers_family() {
        assert_eq!(found(Launcher::OpenMpi, &[], &[]), ["libmpi.so.40"]);
        assert_eq!(
            found(Launcher::Hydra, &[], &[]),
            ["libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"]
        );
        assert_eq!(found(Launcher::Jsm, &[], &[]), ["libmpi_ibm.so.3", "libmpi.so.40"]);
        assert_eq!(found(Launcher::Slurm, &[], &[])[0], "libmpi.so.12");
        for plugin in ["pmix", "pmix_v4"] {
            let vars = [("SLURM_MPI_TYPE", plugin)];
            assert_eq!(found(Launcher::Slurm, &vars, &[])[0], "libmpi.so.40", "{plugin}");
        }
    }

    #[test]
    fn open_mpis_prefix_comes_first_and_only_for_open_mpis_library() {
        let vars = [("OPAL_PREFIX", "/opt/ompi")];
        assert_eq!(
            found(Launcher::OpenMpi, &vars, &[]),
            ["/opt/ompi/lib/libmpi.so.40", "libmpi.so.40"]
        );
        assert_eq!(found(Launcher::Hydra, &vars, &[])[0], "libmpi.so.12");
    }

    #[test]
    fn a_library_next_to_the_launcher_comes_before_the_systems() {
        let prefix = tempfile::tempdir().unwrap();
        std::fs::create_dir(prefix.path().join("lib")).unwrap();
        let library = prefix.path().join("lib/libmpi_abi.so.1");
        std::fs::write(&library, "").unwrap();
        let shell = prefix.path().join("bin/bash");
        let proxy = prefix.path().join("bin/hydra_pmi_proxy");
        let names = ["libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"];
        assert_eq!(found(Launcher::Hydra, &[], std::slice::from_ref(&shell)), names);
        let expected = [&[library.to_str().unwrap()], &names[..]].concat();
        assert_eq!(found(Launcher::Hydra, &[], &[shell, proxy]), expected);
    }

    #[test]
    fn the_programs_above_begin_with_the_parent() {
        let programs = programs_above();
        assert!(!programs.is_empty(), "{programs:?}");
        // Cargo, a shell or a debugger starts a test, but never the test itself.
        assert_ne!(programs[0], std::env::current_exe().unwrap());
    }
}
