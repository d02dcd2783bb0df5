//! `mpienv::mpi`: calls MPI through a libmpi that is loaded at run time, so that one program works
//! with every MPI.
//!
//! A program makes its own calls of MPI here, without `unsafe`. `mpienv::collective` also compares
//! [lengths](Communicator#lengths), and names a rank that hangs.
//!
//! MPI is not needed to build the program. The library is that of the launcher that started the
//! process. Its ABI is recognized after loading: Open MPI 4 and 5, MPICH and its derivatives (Intel
//! MPI, MVAPICH, Cray MPICH), or the ABI of the MPI 5 standard.
//!
//! ```no_run
//! use mpienv::{ClusterInfo, mpi::World};
//!
//! let info = ClusterInfo::from_env()?;
//! let world = World::init(&info)?;
//! let mut sum = [info.rank().index() as f32];
//! world.communicator().all_reduce_sum(&mut sum)?;
//! world.finalize()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Calls
//! Reductions take `f32` and `f64`. The other calls take any [`Value`]: these and integers.
//!
//! | | blocking | nonblocking |
//! | --- | --- | --- |
//! | sums | `all_reduce_sum`, `reduce_scatter_sum` | `start_` with these names |
//! | the smallest or largest | `all_reduce_min`, `all_reduce_max` | |
//! | values of all ranks | `broadcast`, `all_gather_into`, `all_to_all` | `start_broadcast`, `start_all_gather`, `start_all_to_all` |
//! | bytes of all ranks, of any lengths | `all_gather`, also `_within` a time and `_unless` stopped | |
//! | values of two ranks | `send_receive` | `start_send`, `start_receive` |
//! | nothing | `barrier`, `split` | `start_barrier` |
//!
//! # Which library
//! If `MPIENV_MPI_LIB` is set, only that library is loaded. Otherwise, it is the first of these
//! that can be loaded:
//!
//! | the launcher starts programs for | libraries |
//! | --- | --- |
//! | Open MPI | `libmpi.so.40` |
//! | MPICH or a derivative, as Hydra does | `libmpi.so.12`, `libmpich.so.12`, `libmpi_abi.so.1` |
//! | IBM Spectrum MPI, as JSM does | `libmpi_ibm.so.3`, `libmpi.so.40` |
//! | any MPI over PMIx (`SLURM_MPI_TYPE=pmix*`) | `libmpi.so.40`, `libmpi.so.12`, `libmpich.so.12`, `libmpi_abi.so.1` |
//! | any MPI over PMI, as Slurm and Flux do | `libmpi.so.12`, `libmpich.so.12`, `libmpi_abi.so.1`, `libmpi.so.40` |
//! | no MPI | as over PMIx; [`World::init`] then fails with more than one rank |
//!
//! mpienv looks for the libraries in these places, in this order:
//! 1. `OPAL_PREFIX/lib` (only Open MPI's library);
//! 2. `lib`, `lib64` and `lib/release` next to the `bin` folder of the launcher from which this
//!    process descends, so that a launcher from `pip install` or a module finds its own library;
//! 3. where the system's loader looks: `LD_LIBRARY_PATH` and the system's folders.
//!
//! # Errors and lost ranks
//! Calls return an [`MpiError`] with MPI's own text, because MPI_ERRORS_RETURN is set on every
//! communicator. If a rank is lost, the launcher usually kills the others before a call returns an
//! error. A blocking call waits forever for a rank that hangs. To limit the wait, start the call,
//! and use [`Request::wait_within`]. If that fails, call [`World::abort`].
//!
//! # Hints for Open MPI
//! Open MPI looks for networks even if all ranks are on one machine, and asks the receiver before
//! it sends more than 4 KiB to a rank on the same machine. [`Hints`] change this. Pass them to
//! [`World::init_with`].
//!
//! # Limits
//! - MPI can be initialized only once in a process. If the library provides less than
//!   MPI_THREAD_SERIALIZED, only the thread that initialized it may use it.
//! - If the library and the launcher belong to different MPIs, initialization may exit the process
//!   before it can return an error.
//! - `libmpi_abi` of Intel MPI 2021.18 exits the process on every error, because it mistakes
//!   MPI_ERRORS_RETURN for MPI_ERRORS_ABORT. Its `libmpi.so.12`, which is tried first, does not.
//! - A process that has asked its launcher over PMI (`mpienv::ask::read` under MPICH, Intel MPI or
//!   MVAPICH) can no longer initialize MPI.

// docs.rs shows which feature enables each item.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_debug_implementations)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[macro_use]
extern crate mpienv_core;

mod abi;
mod api;
mod communicator;
mod error;
mod functions;
mod hints;
mod library;
mod session;
mod started;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use abi::Abi;
pub use api::{Element, Value};
pub use communicator::Communicator;
pub use error::MpiError;
pub use hints::Hints;
pub use started::Request;

use error::Result;
use library::{Loaded, load};
use mpienv_core::seam::SIMULATED;
use mpienv_core::{ClusterInfo, Environment, Launcher};
use session::Session;

/// Returns the file that [`World::init`] would load, and the library's name and version, such as
/// `Open MPI v4.1.4`.
///
/// The library is loaded and stays loaded, but MPI is not initialized.
///
/// ```no_run
/// use mpienv::{Environment, Launcher, mpi};
///
/// let (file, version) = mpi::find_library(Launcher::OpenMpi, &Environment::current())?;
/// println!("{version}: {}", file.display());
/// # Ok::<(), mpienv::mpi::MpiError>(())
/// ```
///
/// # Errors
/// Returns an error if no library can be loaded, or if the library's ABI is unknown.
pub fn find_library(launcher: Launcher, environment: &Environment) -> Result<(PathBuf, String)> {
    let Loaded { file, version, .. } = load(launcher, environment)?;
    Ok((file, version))
}

/// MPI in this process, from initialization to finalization, with all ranks of the job.
///
/// Finish with [`finalize`](World::finalize). Dropping the world and every communicator and request
/// made from it also finalizes MPI, but only if no call has failed, every started call is done, the
/// thread is not panicking, and the other ranks do the same within 1 s. Otherwise MPI is not
/// finalized. When this process then exits, launchers kill the other ranks. After a drop that found
/// others still at work, an exit with 0 makes the job end with 3 (on Linux with glibc).
///
/// If a program fails on its own, it should call [`abort`](World::abort), so that the other ranks
/// do not wait for it.
///
/// ```no_run
/// use std::time::Duration;
///
/// use mpienv::ClusterInfo;
/// use mpienv::mpi::{Abi, Hints, World};
///
/// let info = ClusterInfo::from_env()?;
/// let hints = Hints::new().one_machine(info.node_count() == Some(1));
/// let world = World::init_with(&info, &hints)?;
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
#[derive(Debug)]
pub struct World(Communicator);

impl World {
    /// Loads the launcher's MPI library, initializes MPI (`MPI_Init_thread`), and compares MPI's
    /// rank and size with those of the place. Prints the place's
    /// [warnings](ClusterInfo::warn) first.
    ///
    /// Waits for the other ranks without a time limit. Open MPI reads and sets variables of the
    /// environment meanwhile: no other thread may read or change it, except through `std::env`.
    ///
    /// ```no_run
    /// use mpienv::{ClusterInfo, mpi::World};
    ///
    /// let world = World::init(&ClusterInfo::from_env()?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If no library can be loaded, if the library's ABI is unknown, if the launcher is only
    /// simulated, if MPI returns an error, or if its rank or size differs: with a library of
    /// another MPI than the launcher's, each process is rank 0 of 1. Such a library may also exit
    /// the process. Also if no launcher gave the place, rank 0 of 1, although this process is
    /// probably one of several, unless `MPIENV_LAUNCHER` chooses it.
    pub fn init(info: &ClusterInfo) -> Result<World> {
        World::init_with(info, &Hints::new())
    }

    /// Like [`init`](World::init), with hints about the job, which become variables of this
    /// process's environment before MPI is initialized.
    ///
    /// # Errors
    /// As [`init`](World::init).
    pub fn init_with(info: &ClusterInfo, hints: &Hints) -> Result<World> {
        info.clone().require_place()?;
        info.warn();
        World::of_group(info, hints)
    }

    /// The same for a group, which has printed the warnings if it should.
    #[doc(hidden)]
    pub fn of_group(info: &ClusterInfo, hints: &Hints) -> Result<World> {
        let (environment, launcher) = (Environment::current(), info.launcher());
        let loaded = load(launcher, &environment)?;
        // MPI would not find the launcher, and many a library then exits the process. A real
        // launcher may run in a simulated job of another one.
        if environment.get(SIMULATED).is_some_and(|name| name == launcher.name()) {
            return Err(MpiError::Simulated { launcher });
        }
        let world = World(Communicator::world(Session::begin(loaded, hints, &environment)?));
        let (mpi, own) = (world.0.rank(), info.rank());
        if mpi == own {
            return Ok(world);
        }
        let (library, version) = (world.library().to_owned(), world.version().to_owned());
        let starts_mpi = launcher.starts_mpi(&environment);
        let is_chosen = environment.get("MPIENV_LAUNCHER").is_some();
        let environment = own;
        Err(MpiError::Differs {
            library,
            version,
            launcher,
            mpi,
            environment,
            starts_mpi,
            is_chosen,
        })
    }

    /// Returns the communicator of all ranks.
    #[must_use]
    pub fn communicator(&self) -> &Communicator {
        &self.0
    }

    /// The name by which the library was loaded.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.0.session.loaded.file
    }

    /// Name and version of the library (`MPI_Get_library_version`): `Open MPI v4.1.4`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.0.session.loaded.version
    }

    /// Which ABI the library has.
    #[must_use]
    pub fn abi(&self) -> Abi {
        self.0.session.loaded.abi
    }

    /// Waits for the other ranks, at most 60 s, and finalizes MPI in this process (`MPI_Finalize`).
    ///
    /// All ranks must call this. Communicators that remain then return [`MpiError::Finalized`].
    ///
    /// # Errors
    /// If the other ranks do not arrive in time, a started call is not done, or MPI returns an
    /// error. MPI is then not finalized: [abort](World::abort) the job.
    pub fn finalize(&self) -> Result<()> {
        self.finalize_within(Duration::from_secs(60))
    }

    /// Like [`finalize`](World::finalize), with a time limit for the other ranks.
    ///
    /// # Errors
    /// As [`finalize`](World::finalize).
    pub fn finalize_within(&self, limit: Duration) -> Result<()> {
        self.0.session.end(limit)
    }

    /// Exits this process and all other ranks: see [`Communicator::abort`].
    pub fn abort(&self, code: i32) -> ! {
        self.0.abort(code)
    }
}
