//! `mpienv::mpi`: calls MPI through a libmpi that is loaded at run time, so that one program works
//! with every MPI.
//!
//! This is for a program's own calls of MPI, without `unsafe`, but it is only as safe as MPI: ranks
//! that disagree on lengths may [overwrite memory](Communicator#lengths). It finds neither the
//! process's place nor a rank that hangs: `mpienv::collective` adds both, and compares lengths.
//!
//! MPI is not needed to build the program. The library is that of the launcher that started the
//! process. Its ABI is recognized after loading: Open MPI 4 and 5, MPICH and its derivatives (Intel
//! MPI, MVAPICH, Cray MPICH), or the ABI of the MPI 5 standard.
//!
//! ```no_run
//! use mpienv::mpi::{MpiVars, World};
//! use mpienv::{ClusterInfo, Environment};
//!
//! let environment = Environment::current();
//! let info = ClusterInfo::from_environment(&environment)?;
//! let world = World::init(info.launcher(), &MpiVars::of(&environment))?;
//! world.check(info.rank())?;
//! let mut sum = [info.rank().index() as f32];
//! world.communicator().all_reduce_sum(&mut sum)?;
//! world.finalize()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
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
//! | no MPI | as over PMIx; [`World::check`] then fails with more than one rank |
//!
//! mpienv looks for the libraries in these places, in this order:
//! 1. `OPAL_PREFIX/lib` (only Open MPI's library);
//! 2. `lib`, `lib64` and `lib/release` next to the `bin` folder of the launcher from which this
//!    process descends, so that a launcher from `pip install` or a module finds its own library;
//! 3. where the system's loader looks: `LD_LIBRARY_PATH` and the system's folders.
//!
//! # Errors and lost ranks
//! Calls return an [`MpiError`] with MPI's own text, because MPI_ERRORS_RETURN is set on every
//! communicator. If a rank is lost, a call seldom returns an error: usually the launcher kills the
//! other ranks. A blocking call waits forever for a rank that hangs. To limit the wait, use
//! [`Communicator::start_all_reduce_sum`] and [`Request::wait_within`], and abort the job with
//! [`World::abort`] if the wait fails.
//!
//! # Hints for Open MPI
//! Open MPI looks for networks between machines even if all ranks are on one machine. It also asks
//! the receiver before it sends more than 4 KiB to a rank on the same machine, and then writes past
//! the end of the receiver's buffer if the message is too long. To change this, pass [`Hints`] to
//! [`World::init_with`].
//!
//! # Limits
//! - MPI does not compare lengths. A message that is longer than its receiver expects may overwrite
//!   the receiver's memory, and calls may return wrong numbers: see
//!   [`Communicator`](Communicator#lengths).
//! - MPI can be initialized only once in a process. If the library provides less than
//!   MPI_THREAD_SERIALIZED, only the thread that initialized it may use it.
//! - If the library and the launcher belong to different MPIs, initialization may exit the process
//!   before it can return an error.
//! - `libmpi_abi` of Intel MPI 2021.18 exits the process on every error, because it mistakes
//!   MPI_ERRORS_RETURN for MPI_ERRORS_ABORT. Its `libmpi.so.12`, which is tried first, does not.
//! - Under Open MPI 4, a process that has asked PMIx (`mpienv::ask`) can no longer initialize
//!   MPI.

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

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use abi::Abi;
pub use api::Element;
pub use communicator::Communicator;
pub use error::MpiError;
pub use hints::Hints;
pub use started::Request;

use error::Result;
use library::{Loaded, load};
use mpienv_core::{Environment, Launcher, Rank};
use session::Session;

/// The environment variables that affect MPI.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct MpiVars<'a> {
    /// `MPIENV_MPI_LIB`: the only library to load.
    pub library: Option<&'a OsStr>,
    /// `OPAL_PREFIX`: where Open MPI is installed.
    pub opal_prefix: Option<&'a OsStr>,
    /// `SLURM_MPI_TYPE`: how Slurm's processes find each other: `pmix`, `pmi2`, ...
    pub slurm_mpi_type: Option<&'a OsStr>,
    /// Whether `mpirun --mca` or a user set Open MPI's transport: `OMPI_MCA_pml`, `OMPI_MCA_mtl` or
    /// `OMPI_MCA_btl`. [`Hints::one_machine`] then changes nothing.
    pub transport_is_set: bool,
    /// Whether `OMPI_MCA_btl_vader_eager_limit` or `OMPI_MCA_btl_sm_eager_limit` is set.
    /// [`Hints::eager_limit`] then changes nothing.
    pub eager_limit_is_set: bool,
    /// Whether `OMPI_MCA_btl_vader_single_copy_mechanism` or `OMPI_MCA_smsc` is set.
    /// [`Hints::single_copy`] then changes nothing.
    pub single_copy_is_set: bool,
    /// `MPIENV_SIMULATED`: the name of the launcher that `mpienv simulate` plays.
    pub simulated: Option<&'a OsStr>,
}

impl<'a> MpiVars<'a> {
    /// Reads the variables of an environment.
    #[must_use]
    pub fn of(environment: &'a Environment) -> MpiVars<'a> {
        let is_set = |names: &[&str]| names.iter().any(|name| environment.get(name).is_some());
        MpiVars {
            library: environment.get("MPIENV_MPI_LIB"),
            opal_prefix: environment.get("OPAL_PREFIX"),
            slurm_mpi_type: environment.get("SLURM_MPI_TYPE"),
            transport_is_set: is_set(&["OMPI_MCA_pml", "OMPI_MCA_mtl", "OMPI_MCA_btl"]),
            eager_limit_is_set: is_set(&[hints::VADER_EAGER_LIMIT, hints::SM_EAGER_LIMIT]),
            single_copy_is_set: is_set(&[hints::VADER_SINGLE_COPY, hints::SINGLE_COPY]),
            simulated: environment.get(mpienv_core::seam::SIMULATED),
        }
    }
}

/// Returns the file that [`World::init`] would load, and the library's name and version, such as
/// `Open MPI v4.1.4`.
///
/// The library is loaded and stays loaded, but MPI is not initialized.
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
/// Returns an error if no library can be loaded, or if the library's ABI is unknown.
pub fn find_library(launcher: Launcher, vars: &MpiVars<'_>) -> Result<(PathBuf, String)> {
    let Loaded { file, version, .. } = load(launcher, vars)?;
    Ok((file, version))
}

/// MPI in this process, from initialization to finalization, with all ranks of the job.
///
/// Finish with [`finalize`](World::finalize). If you drop the world and every communicator and
/// request made from it, MPI is also finalized, provided that no call has failed, every started
/// call is done, the thread is not panicking, and the other ranks do the same within 1 s. Otherwise
/// the process exits without MPI_Finalize, which would wait for ranks that never come. Launchers
/// then kill the other ranks.
///
/// If a program fails on its own, it should call [`abort`](World::abort), so that the other ranks
/// do not wait for it.
///
/// ```no_run
/// use std::time::Duration;
///
/// use mpienv::mpi::{Abi, Hints, MpiVars, World};
/// use mpienv::{ClusterInfo, Environment};
///
/// let environment = Environment::current();
/// let info = ClusterInfo::from_environment(&environment)?;
/// let hints = Hints::new().one_machine(info.node_count() == Some(1));
/// // SAFETY: this process has one thread.
/// let world = unsafe { World::init_with(info.launcher(), &MpiVars::of(&environment), &hints) }?;
/// world.check(info.rank())?;
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
pub struct World {
    communicator: Communicator,
    launcher: Launcher,
}

impl World {
    /// Loads the launcher's MPI library and initializes MPI (`MPI_Init_thread`).
    ///
    /// Waits for the other ranks without a time limit. Always call [`check`](World::check)
    /// afterwards: with a library of another MPI than the launcher's, this call returns no error,
    /// but each process is rank 0 of 1, and its sums have its own values only.
    ///
    /// ```no_run
    /// use mpienv::mpi::{MpiVars, World};
    /// use mpienv::{ClusterInfo, Environment};
    ///
    /// let environment = Environment::current();
    /// let info = ClusterInfo::from_environment(&environment)?;
    /// let world = World::init(info.launcher(), &MpiVars::of(&environment))?;
    /// world.check(info.rank())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if no library can be loaded, if the library's ABI is unknown, if the
    /// launcher is only simulated, or if MPI returns an error. A library that does not understand
    /// the launcher may also exit the process.
    pub fn init(launcher: Launcher, vars: &MpiVars<'_>) -> Result<World> {
        World::begin(launcher, vars, load(launcher, vars)?)
    }

    /// Like [`init`](World::init), with hints about the job, which become variables of this
    /// process's environment.
    ///
    /// # Errors
    /// As [`init`](World::init).
    ///
    /// # Safety
    /// During this call, no other thread may read or change the environment, except through
    /// `std::env`.
    #[expect(unsafe_code, reason = "it changes the environment of the process")]
    pub unsafe fn init_with(
        launcher: Launcher,
        vars: &MpiVars<'_>,
        hints: &Hints,
    ) -> Result<World> {
        let loaded = load(launcher, vars)?;
        // SAFETY: the caller keeps other threads from the environment.
        unsafe { hints.set(&loaded.version, vars) };
        World::begin(launcher, vars, loaded)
    }

    fn begin(launcher: Launcher, vars: &MpiVars<'_>, loaded: Loaded) -> Result<World> {
        // MPI would not find the launcher, and many a library then exits the process. A real
        // launcher may run in a simulated job of another one.
        if vars.simulated.is_some_and(|name| name == launcher.name()) {
            return Err(MpiError::Simulated { launcher });
        }
        let communicator = Communicator::world(Session::begin(loaded)?)?;
        Ok(World { communicator, launcher })
    }

    /// Returns the communicator of all ranks.
    #[must_use]
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// Compares MPI's rank and size with those of the environment.
    ///
    /// They differ if the library and the launcher belong to different MPIs. Each process is then
    /// rank 0 of 1, and would compute the whole job by itself.
    ///
    /// # Errors
    /// Returns an error if they differ.
    pub fn check(&self, rank: Rank) -> Result<()> {
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

    /// The name by which the library was loaded.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.communicator.session.loaded.file
    }

    /// Name and version of the library (`MPI_Get_library_version`): `Open MPI v4.1.4`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.communicator.session.loaded.version
    }

    /// Which ABI the library has.
    #[must_use]
    pub fn abi(&self) -> Abi {
        self.communicator.session.loaded.abi
    }

    /// Waits for the other ranks, at most 60 s, and finalizes MPI in this process (`MPI_Finalize`).
    ///
    /// The remaining communicators and requests then return [`MpiError::Finalized`].
    ///
    /// # Errors
    /// Returns an error if the other ranks do not arrive in time, if a started call has not been
    /// waited for, or if MPI returns an error.
    pub fn finalize(self) -> Result<()> {
        self.finalize_within(Duration::from_secs(60))
    }

    /// Like [`finalize`](World::finalize), with a time limit for the other ranks.
    ///
    /// # Errors
    /// As [`finalize`](World::finalize).
    pub fn finalize_within(self, limit: Duration) -> Result<()> {
        self.communicator.session.end(limit)
    }

    /// Exits this process and all other ranks: see [`Communicator::abort`].
    pub fn abort(&self, code: i32) -> ! {
        self.communicator.abort(code)
    }
}
