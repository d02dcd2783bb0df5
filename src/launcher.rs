//! The launchers, one file each, and the order in which they are looked for.

pub(crate) mod alone;
pub mod aws_batch;
pub mod flux;
pub mod hydra;
pub mod jsm;
pub mod kubernetes;
pub mod mvapich;
pub mod open_mpi;
pub mod pals;
pub mod sagemaker;
pub mod slurm;
pub mod torchrun;
pub mod user;

use std::ffi::OsStr;

use crate::environment::{Environment, ReadError};
use crate::error::{Error, quote};
use crate::placement::{Launcher, Placement};

/// The variable that makes a launcher the one.
pub(crate) type Evidence = &'static str;

/// One launcher: how to see that it started this process, and how to read what it tells.
pub(crate) struct Row {
    pub launcher: Launcher,
    /// The variables that are read.
    pub variables: fn() -> Vec<String>,
    /// Never fails: a set that is only half there is evidence too, and reading it is the error.
    pub detect: fn(&Environment) -> Option<Evidence>,
    pub read: fn(&Environment) -> Result<Placement, Error>,
}

/// Every launcher, innermost first: the first that is detected started this process.
///
/// torchrun and mpirun are started inside Slurm steps and leave Slurm's variables behind; `srun`
/// itself sets PMI's, so that these alone are no evidence of Hydra before Slurm is ruled out.
pub(crate) static TABLE: &[Row] = &[
    Row {
        launcher: Launcher::Torchrun,
        variables: torchrun::variables,
        detect: torchrun::detect,
        read: torchrun::read,
    },
    Row { launcher: Launcher::OpenMpi, variables: open_mpi::variables, detect: open_mpi::detect, read: open_mpi::read },
    Row { launcher: Launcher::Mvapich, variables: mvapich::variables, detect: mvapich::detect, read: mvapich::read },
    Row { launcher: Launcher::Hydra, variables: hydra::variables, detect: hydra::detect, read: hydra::read },
    Row { launcher: Launcher::Pals, variables: pals::variables, detect: pals::detect, read: pals::read },
    Row { launcher: Launcher::Jsm, variables: jsm::variables, detect: jsm::detect, read: jsm::read },
    Row { launcher: Launcher::Flux, variables: flux::variables, detect: flux::detect, read: flux::read },
    Row { launcher: Launcher::Slurm, variables: slurm::variables, detect: slurm::detect, read: slurm::read },
    Row { launcher: Launcher::Hydra, variables: hydra::variables, detect: hydra::detect_bare, read: hydra::read },
    Row { launcher: Launcher::User, variables: user::variables, detect: user::detect, read: user::read },
    Row {
        launcher: Launcher::SageMaker,
        variables: sagemaker::variables,
        detect: sagemaker::detect,
        read: sagemaker::read,
    },
    Row {
        launcher: Launcher::Kubernetes,
        variables: kubernetes::variables,
        detect: kubernetes::detect,
        read: kubernetes::read,
    },
    Row {
        launcher: Launcher::AwsBatch,
        variables: aws_batch::variables,
        detect: aws_batch::detect,
        read: aws_batch::read,
    },
    Row { launcher: Launcher::Alone, variables: alone::variables, detect: alone::detect, read: alone::read },
];

/// The first of these variables that is set.
pub(crate) fn first_set(environment: &Environment, names: &[&'static str]) -> Option<Evidence> {
    names.iter().copied().find(|name| environment.has(name))
}

/// A variable with its value: `OMPI_COMM_WORLD_RANK="3"`.
pub(crate) fn shown(environment: &Environment, name: &str) -> String {
    let value = environment.get(name).map(OsStr::to_string_lossy).unwrap_or_default();
    format!("{name}={}", quote(value.trim()))
}

/// The error of a launcher's variables that cannot be read.
pub(crate) fn unreadable(
    environment: &Environment,
    launcher: Launcher,
    error: ReadError,
    evidence: Option<Evidence>,
) -> Error {
    let beside = evidence.map(|name| shown(environment, name)).unwrap_or_default();
    Error::read(launcher, error, &beside)
}

impl Launcher {
    /// The variables that are read of this launcher, in its own spelling.
    ///
    /// ```
    /// use mpienv::Launcher;
    ///
    /// assert!(Launcher::Hydra.variables().contains(&"PMI_RANK".to_owned()));
    /// ```
    #[must_use]
    pub fn variables(self) -> Vec<String> {
        let row = TABLE.iter().find(|row| row.launcher == self);
        row.map(|row| (row.variables)()).unwrap_or_default()
    }
}
