//! The launchers, one file each, and the order in which they are looked for.

pub(crate) mod alone;
pub mod aws_batch;
pub(crate) mod context;
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

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::sync::LazyLock;

use crate::environment::{Environment, ReadError};
use crate::error::{Error, quote};
use crate::launcher::context::Seen;
use crate::value::placement::{Launcher, Placement};

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

/// Variables that more than one launcher sets: that one of them has changed does not tell whose it is.
const SHARED: &[&str] =
    &["LOCAL_RANK", "LOCAL_WORLD_SIZE", "PMIX_NAMESPACE", "PMI_ID", "PMI_RANK", "PMI_SIZE", "RANK", "WORLD_SIZE"];

/// Variables that tell a process its place on its node. In a node's workers they are those of the process that started
/// the workers, and a launcher in between sets its own.
pub(crate) const LOCAL: &[&str] = &[
    "FLUX_TASK_LOCAL_ID",
    "JSM_NAMESPACE_LOCAL_RANK",
    "JSM_NAMESPACE_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "MVP_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PALS_LOCAL_RANKID",
    "PALS_LOCAL_SIZE",
    "SLURM_GTIDS",
    "SLURM_LOCALID",
];

/// Variables that are others in every job, each with those that its launcher sets beside it, and that another version of
/// the launcher does not set.
pub(crate) const IDENTITIES: &[(&str, &[&str])] =
    &[(open_mpi::HNP_URI, &[open_mpi::NUM_NODES, open_mpi::LOCAL_DAEMON_URI]), (hydra::UUID, &[hydra::NODE_ID])];

/// What has changed of a launcher's variables since somebody looked, the surer sign first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// A variable that this launcher alone sets.
    Own,
    /// One that others set too.
    Shared,
}

impl Row {
    /// Whether this launcher, or one that sets the same variables, has started somebody since they were seen.
    pub(crate) fn change(&self, environment: &Environment, seen: &Seen) -> Option<Change> {
        (self.detect)(environment)?;
        let changed = (self.variables)().into_iter().filter(|name| seen.is_changed(environment, name));
        changed.map(|name| if SHARED.contains(&name.as_str()) { Change::Shared } else { Change::Own }).min()
    }
}

/// Every variable that is read of a launcher.
pub(crate) static VARIABLES: LazyLock<BTreeSet<String>> =
    LazyLock::new(|| TABLE.iter().flat_map(|row| (row.variables)()).collect());

/// Every launcher's variables as they are.
pub(crate) fn seen(environment: &Environment) -> Seen {
    Seen::of(environment, VARIABLES.iter().map(String::as_str))
}

/// The first of these variables that is set.
pub(crate) fn first_set(environment: &Environment, names: &[&'static str]) -> Option<Evidence> {
    names.iter().copied().find(|name| environment.is_set(name))
}

/// A variable with its value: `OMPI_COMM_WORLD_RANK="3"`.
pub(crate) fn display_variable(environment: &Environment, name: &str) -> String {
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
    let beside = evidence.map(|name| display_variable(environment, name)).unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_several_launchers_and_of_a_place_on_a_node_are_those_of_the_table() {
        let mut readers: std::collections::BTreeMap<String, Vec<Launcher>> = Default::default();
        for launcher in Launcher::ALL {
            for name in launcher.variables() {
                readers.entry(name).or_default().push(*launcher);
            }
        }
        for (name, launchers) in &readers {
            // srun sets it too, and Slurm's reader does not need it.
            let shared = launchers.len() > 1 || ["PMIX_NAMESPACE", "PMI_ID"].contains(&name.as_str());
            assert_eq!(SHARED.contains(&name.as_str()), shared, "{name}: {launchers:?}");
        }
        for name in LOCAL {
            assert!(readers.contains_key(*name), "{name}");
        }
    }
}
