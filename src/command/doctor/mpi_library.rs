//! Checks whether the MPI library that programs find belongs to the launcher.

use std::path::PathBuf;

use super::machine::Machine;
use crate::{ClusterInfo, Finding};
use mpienv_core::seam::MpiFamily;

/// An MPI library on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiLibrary {
    /// The file, or the name by which the system's loader found it.
    pub file: PathBuf,
    /// How the library describes itself: `Open MPI v4.1.4`, `MPICH Version: 4.0.2`.
    pub version: String,
}

impl MpiLibrary {
    /// Finds the library that programs of this launcher load, or else any other.
    #[cfg(feature = "mpi")]
    pub(super) fn here(info: &ClusterInfo) -> Option<MpiLibrary> {
        if info.world_size() == 1
            || matches!(
                info.launcher().spec().mpi,
                MpiFamily::CrayMpich | MpiFamily::Pmi | MpiFamily::None
            )
        {
            return None;
        }
        // `Launcher::Alone` stands for libraries of all families.
        let found = [info.launcher(), crate::Launcher::Alone]
            .into_iter()
            .find_map(|l| crate::mpi::find_library(l, info.environment()).ok());
        found.map(|(file, version)| MpiLibrary { file, version })
    }

    #[cfg(not(feature = "mpi"))]
    pub(super) fn here(_info: &ClusterInfo) -> Option<MpiLibrary> {
        None
    }

    /// Returns whether this is Open MPI, or IBM Spectrum MPI, which is based on it.
    fn is_open_mpi(&self) -> bool {
        self.version.starts_with("Open MPI") || self.version.contains("Spectrum MPI")
    }

    /// Returns whether this is Open MPI 5 or later, which finds its launcher only through PMIx.
    /// Older versions do not find that launcher.
    fn is_open_mpi_5(&self) -> bool {
        self.version.strip_prefix("Open MPI v").is_some_and(is_5_or_newer)
    }
}

fn is_5_or_newer(version: &str) -> bool {
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    major.is_some_and(|major| major >= 5)
}

/// Reports a library that does not find the launcher: each of its processes is rank 0 of 1, or
/// exits in MPI_Init.
pub(super) fn differs(info: &ClusterInfo, machine: &Machine) -> Option<Finding> {
    let library = machine.mpi.as_ref().filter(|_| info.world_size() > 1)?;
    // Open MPI 4 does not set its version in the environment.
    let value = |name| info.environment().get(name).and_then(|value| value.to_str());
    let mpirun_5 = value("OMPI_VERSION").is_some_and(is_5_or_newer);
    let by_pmix = value("SLURM_MPI_TYPE").is_some_and(|kind| kind.starts_with("pmix"));
    let of_launcher = "put the launcher's MPI first in LD_LIBRARY_PATH, or start the job with the mpiexec of that library";
    let (is_foreign, remedy) = match info.launcher().spec().mpi {
        MpiFamily::OpenMpi => {
            (!library.is_open_mpi() || mpirun_5 && !library.is_open_mpi_5(), of_launcher)
        }
        MpiFamily::Spectrum => (!library.is_open_mpi(), of_launcher),
        MpiFamily::Mpich => (library.is_open_mpi(), of_launcher),
        MpiFamily::PmiOrPmix => {
            (library.is_open_mpi_5() && !by_pmix, "start the job by `srun --mpi=pmix`")
        }
        MpiFamily::CrayMpich | MpiFamily::Pmi | MpiFamily::None => return None,
    };
    if !is_foreign {
        return None;
    }
    Some(Finding::warning(
        "mpi-library",
        format!(
            "{} started this process, but the MPI library here is {} ({})",
            info.launcher().title(),
            library.file.display(),
            library.version
        ),
        "a program that calls MPI does not find this launcher: each rank becomes a world of size 1, or fails in MPI_Init",
        remedy,
    ))
}
