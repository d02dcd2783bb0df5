//! Calls MPI, with a libmpi that is loaded at run time: one program for every MPI.
//!
//! Nothing of MPI is needed to build. The library is that of the launcher which started the
//! process, and its ABI is recognised once it is loaded: Open MPI 4 and 5, MPICH and its kin (Intel
//! MPI, MVAPICH, Cray MPICH), or the MPI 5 standard's.
//!
//! ```no_run
//! use mpienv::mpi::{MpiVars, World};
//! use mpienv::{ClusterInfo, Environment};
//!
//! let environment = Environment::current();
//! let info = ClusterInfo::builder().from_environment(&environment)?;
//! let world = World::init(info.launcher(), &MpiVars::of(&environment))?;
//! world.check(info.world())?;
//! let mut sum = [info.rank() as f32];
//! world.communicator().all_reduce_sum(&mut sum)?;
//! world.finalize()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which library
//! `MPIENV_MPI_LIB` alone, where it is set. Otherwise by the MPI whose programs the launcher starts, the first that can be
//! loaded:
//!
//! | the launcher starts programs of | libraries |
//! | --- | --- |
//! | Open MPI | `libmpi.so.40` |
//! | MPICH or its kin, as Hydra does | `libmpi.so.12`, `libmpich.so.12`, `libmpi_abi.so.1` |
//! | IBM Spectrum MPI, as JSM does | `libmpi_ibm.so.3`, `libmpi.so.40` |
//! | any MPI, by PMIx (`SLURM_MPI_TYPE=pmix...`) | `libmpi.so.40`, `libmpi.so.12`, `libmpich.so.12`, `libmpi_abi.so.1` |
//! | any MPI, by PMI, as Slurm and Flux do | `libmpi.so.12`, `libmpich.so.12`, `libmpi_abi.so.1`, `libmpi.so.40` |
//! | no MPI | as by PMIx; [`World::check`] then fails with more than one rank |
//!
//! Each is looked for in `OPAL_PREFIX/lib` (Open MPI's only), then in `lib`, `lib64` and
//! `lib/release` beside the `bin` of the launcher that this process descends from (so that a
//! launcher from `pip install` or a module finds its own library), then where the system's loader
//! looks: `LD_LIBRARY_PATH` and the system's folders.
//!
//! # Errors and lost ranks
//! Errors come back as [`MpiError`], with MPI's own text: MPI_ERRORS_RETURN is set on every
//! communicator. That a rank is lost is told by the launcher, which ends the others, and seldom by
//! an error: a plain call waits for ever for a rank that hangs. [`Communicator::start_all_reduce_sum`]
//! and [`Request::wait_within`] wait within a limit; [`World::abort`] then ends the job.
//!
//! # What MPI does not know
//! Open MPI looks for networks between machines even where all ranks are on one, and asks before it sends more than 4 KiB
//! to a rank on the same machine. [`World::init_with`] tells it better, by [`Hints`].
//!
//! # Limits
//! MPI is initialized once in a process, and used by the thread that did it (MPI_THREAD_FUNNELED).
//! A library of another MPI than the launcher's may end the process in its initialization, before
//! an error can come back. `libmpi_abi` of Intel MPI 2021.18 ends the process on every error: it takes
//! MPI_ERRORS_RETURN for MPI_ERRORS_ABORT (its `libmpi.so.12`, which is tried first, does not). Under Open MPI 4, a process that has asked PMIx (feature `pmix`) cannot
//! initialize MPI any more.

mod abi;
mod api;
mod communicator;
mod element;
mod error;
mod functions;
mod hints;
mod library;
mod load;
mod request;
mod session;

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::Duration;

pub use abi::Abi;
pub use communicator::Communicator;
pub use element::Element;
pub use error::MpiError;
pub use hints::Hints;
pub use request::Request;

use crate::environment::Environment;
use crate::value::placement::Launcher;
use crate::value::rank::Rank;
use load::Loaded;
use session::Session;

/// What the environment says of MPI.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct MpiVars<'a> {
    /// `MPIENV_MPI_LIB`: the library to load, and no other.
    pub library: Option<&'a OsStr>,
    /// `OPAL_PREFIX`: where Open MPI is installed.
    pub opal_prefix: Option<&'a OsStr>,
    /// `SLURM_MPI_TYPE`: how Slurm's processes meet: `pmix`, `pmi2`, ...
    pub slurm_mpi_type: Option<&'a OsStr>,
    /// Whether `OMPI_MCA_pml`, `OMPI_MCA_mtl` or `OMPI_MCA_btl` is set, by `mpirun --mca` or a user: over what Open MPI's
    /// ranks talk. [`Hints::one_machine`] then changes nothing.
    pub transport_is_set: bool,
    /// Whether `OMPI_MCA_btl_vader_eager_limit` or `OMPI_MCA_btl_sm_eager_limit` is set. [`Hints::eager_limit`] then
    /// changes nothing.
    pub eager_limit_is_set: bool,
}

impl<'a> MpiVars<'a> {
    /// Those of an environment.
    #[must_use]
    pub fn of(environment: &'a Environment) -> MpiVars<'a> {
        let is_set = |names: &[&str]| names.iter().any(|name| environment.get(name).is_some());
        MpiVars {
            library: environment.get("MPIENV_MPI_LIB"),
            opal_prefix: environment.get("OPAL_PREFIX"),
            slurm_mpi_type: environment.get("SLURM_MPI_TYPE"),
            transport_is_set: is_set(&["OMPI_MCA_pml", "OMPI_MCA_mtl", "OMPI_MCA_btl"]),
            eager_limit_is_set: is_set(&[hints::VADER_EAGER_LIMIT, hints::SM_EAGER_LIMIT]),
        }
    }
}

/// The library that [`World::init`] would load and what it calls itself, such as `Open MPI v4.1.4`.
///
/// It is loaded, and stays so, and MPI is not initialized.
///
/// ```no_run
/// use mpienv::mpi::{MpiVars, find_library};
/// use mpienv::{Environment, Launcher};
///
/// let environment = Environment::current();
/// let (file, version) = find_library(Launcher::OpenMpi, &MpiVars::of(&environment))?;
/// println!("{version}: {}", file.display());
/// # Ok::<(), mpienv::mpi::MpiError>(())
/// ```
///
/// # Errors
/// When no library can be loaded, or it is none of a known ABI.
pub fn find_library(launcher: Launcher, vars: &MpiVars<'_>) -> Result<(PathBuf, String), MpiError> {
    let (loaded, file) = load_for(launcher, vars)?;
    Ok((file, loaded.version()))
}

fn load_for(launcher: Launcher, vars: &MpiVars<'_>) -> Result<(Loaded, PathBuf), MpiError> {
    load::load(launcher, library::candidates(launcher, vars, &library::programs_above()))
}

/// All ranks of the job, and MPI in this process from its initialization to its end.
///
/// End it with [`finalize`](World::finalize). A world that goes out of scope, with every communicator
/// and request made from it, is finalized too if no call has failed, the process does not panic, and
/// the other ranks come to the end within 1 s. Otherwise the process leaves without MPI_Finalize,
/// which would wait for ranks that never come; launchers then kill the others.
///
/// After its own error, a program calls [`abort`](World::abort), rather than to let the others
/// wait.
///
/// ```no_run
/// use std::time::Duration;
///
/// use mpienv::mpi::{Abi, Hints, MpiVars, World};
/// use mpienv::{ClusterInfo, Environment};
///
/// let environment = Environment::current();
/// let info = ClusterInfo::builder().from_environment(&environment)?;
/// // SAFETY: this process has one thread.
/// let hints = unsafe { Hints::new() }.one_machine(info.node_count() == Some(1));
/// let world = World::init_with(info.launcher(), &MpiVars::of(&environment), &hints)?;
/// world.check(info.world())?;
/// if world.abi() == Abi::Standard {
///     println!("{}: {}", world.version(), world.library().display());
/// }
/// if let Err(error) = world.communicator().barrier() {
///     eprintln!("{error}");
///     world.abort(1);
/// }
/// world.finalize_within(Duration::from_secs(10))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct World {
    communicator: Communicator,
    launcher: Launcher,
}

impl World {
    /// Loads the launcher's MPI library and initializes MPI (`MPI_Init_thread`).
    ///
    /// It waits for the other ranks, without a limit. [`check`](World::check) is to follow.
    ///
    /// # Errors
    /// When no library can be loaded, it is none of a known ABI, or MPI returns an error. A library
    /// may also end the process, when it does not understand the launcher.
    pub fn init(launcher: Launcher, vars: &MpiVars<'_>) -> Result<World, MpiError> {
        let (loaded, library) = load_for(launcher, vars)?;
        World::begin(launcher, loaded, library)
    }

    /// As [`init`](World::init), with what the program knows of its job.
    ///
    /// # Errors
    /// As [`init`](World::init).
    pub fn init_with(launcher: Launcher, vars: &MpiVars<'_>, hints: &Hints) -> Result<World, MpiError> {
        let (loaded, library) = load_for(launcher, vars)?;
        hints.set(&loaded.version(), vars);
        World::begin(launcher, loaded, library)
    }

    fn begin(launcher: Launcher, loaded: Loaded, library: PathBuf) -> Result<World, MpiError> {
        let communicator = match loaded {
            Loaded::OpenMpi(api) => Communicator::of_pointers(Session::begin(api, library, Abi::OpenMpi)?),
            Loaded::Standard(api) => Communicator::of_pointers(Session::begin(api, library, Abi::Standard)?),
            Loaded::Mpich(api) => Communicator::of_ints(Session::begin(api, library, Abi::Mpich)?),
        }?;
        Ok(World { communicator, launcher })
    }

    /// All ranks, to call MPI with.
    #[must_use]
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// Compares MPI's rank and size with those of the environment.
    ///
    /// They differ when the library belongs to another MPI than the launcher: each process is then
    /// rank 0 of 1, and would compute the whole job by itself.
    ///
    /// # Errors
    /// When they differ.
    pub fn check(&self, rank: Rank) -> Result<(), MpiError> {
        if self.communicator.rank() == rank {
            return Ok(());
        }
        Err(MpiError::Differs {
            library: self.library().to_owned(),
            version: self.version().to_owned(),
            launcher: self.launcher,
            mpi: self.communicator.rank(),
            environment: rank,
        })
    }

    /// The library, by the name that it was loaded by.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.communicator.about().library
    }

    /// Name and version of the library (`MPI_Get_library_version`): `Open MPI v4.1.4`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.communicator.about().version
    }

    /// Which ABI the library has.
    #[must_use]
    pub fn abi(&self) -> Abi {
        self.communicator.about().abi
    }

    /// Waits for the other ranks, at most 60 s, and ends MPI in this process (`MPI_Finalize`).
    ///
    /// What is left of communicators and requests then returns [`MpiError::Finalized`].
    ///
    /// # Errors
    /// When the others do not come in time, a call that was started has not been waited for, or MPI
    /// returns an error.
    pub fn finalize(self) -> Result<(), MpiError> {
        self.finalize_within(Duration::from_secs(60))
    }

    /// As [`finalize`](World::finalize), with a time limit for the other ranks.
    ///
    /// # Errors
    /// As [`finalize`](World::finalize).
    pub fn finalize_within(self, limit: Duration) -> Result<(), MpiError> {
        self.communicator.end(limit)
    }

    /// Ends this process and all other ranks (`MPI_Abort`), with an exit code where MPI can.
    ///
    /// Nothing is dropped and no buffer of this process is flushed. It waits for 0.1 s first, for the
    /// launcher to pass on what this process has written: Hydra ends the job faster than that, and
    /// then loses one last line in ten.
    pub fn abort(&self, code: i32) -> ! {
        thread::sleep(Duration::from_millis(100));
        self.communicator.abort(code);
        // MPI is finalized, or cannot.
        process::abort()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut world = f.debug_struct("World");
        world
            .field("rank", &self.communicator.rank())
            .field("library", &self.library())
            .field("version", &self.version())
            .finish()
    }
}
