//! Lists the files that may be the launcher's MPI library, the most likely first.

#[cfg_attr(target_os = "macos", path = "library/file_on_macos.rs")]
mod file;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::MpiVars;
use mpienv_core::Launcher;
use mpienv_core::seam::{LauncherSeam as _, MpiFamily};

/// The files to try, in this order. The system's loader finds names without a folder.
///
/// `programs` are the programs that this process descends from, its parent first.
pub(super) fn candidates(
    launcher: Launcher,
    vars: &MpiVars<'_>,
    programs: &[PathBuf],
) -> Vec<PathBuf> {
    if let Some(library) = vars.library.filter(|name| !name.is_empty()) {
        return vec![PathBuf::from(library)];
    }
    let names = names(launcher, vars);
    let mut files = Vec::new();
    if let Some(prefix) = vars.opal_prefix.filter(|prefix| !prefix.is_empty()) {
        files.extend(
            names
                .iter()
                .filter(|name| is_of_open_mpi(name))
                .map(|name| Path::new(prefix).join("lib").join(name)),
        );
    }
    // The layout of `pip install` and HPC modules: bin/mpiexec, and lib/libmpi next to bin.
    for prefix in programs
        .iter()
        .filter(|program| is_launcher(program))
        .filter_map(|program| program.parent()?.parent())
    {
        for folder in ["lib", "lib64", "lib/release"] {
            files.extend(
                names
                    .iter()
                    .map(|name| prefix.join(folder).join(name))
                    .filter(|file| file.is_file()),
            );
        }
    }
    files.extend(names.iter().map(PathBuf::from));
    // Try a file only once, even if both OPAL_PREFIX and the launcher lead to it.
    let mut seen = Vec::new();
    files.retain(|file| {
        !seen.contains(file) && {
            seen.push(file.clone());
            true
        }
    });
    files
}

fn is_of_open_mpi(name: &str) -> bool {
    name == file::OPEN_MPI
}

fn names(launcher: Launcher, vars: &MpiVars<'_>) -> Vec<&'static str> {
    let [open_mpi, spectrum] = [file::OPEN_MPI, file::SPECTRUM];
    let open_mpi_first = || [&[open_mpi][..], &file::MPICH].concat();
    let mpich_first = || [&file::MPICH[..], &[open_mpi]].concat();
    match launcher.mpi_family() {
        // Never another MPI's library: MPICH's aborts under Open MPI's mpirun, and Open MPI's runs
        // as rank 0 of 1 under Hydra.
        MpiFamily::OpenMpi => vec![open_mpi],
        MpiFamily::Mpich | MpiFamily::CrayMpich => file::MPICH.to_vec(),
        MpiFamily::Spectrum => vec![spectrum, open_mpi],
        // Open MPI 5 can reach its launcher only over PMIx.
        MpiFamily::PmiOrPmix if vars.slurm_mpi_type.is_some_and(speaks_pmix) => open_mpi_first(),
        MpiFamily::PmiOrPmix | MpiFamily::Pmi => mpich_first(),
        MpiFamily::None => open_mpi_first(),
    }
}

fn speaks_pmix(mpi_type: &OsStr) -> bool {
    mpi_type.as_encoded_bytes().starts_with(b"pmix")
}

/// Returns whether a program is `mpirun`, or one that `mpirun` starts on every node.
fn is_launcher(program: &Path) -> bool {
    // orterun, orted: Open MPI 4; prterun, prted: 5; hydra_pmi_proxy: MPICH, Intel; mpispawn:
    // MVAPICH.
    const STARTS: [&str; 6] = ["mpirun", "mpiexec", "orte", "prte", "hydra", "mpispawn"];
    let name = program.file_name().and_then(OsStr::to_str).unwrap_or_default();
    STARTS.iter().any(|start| name.starts_with(start))
}

/// The programs that this process descends from, its parent first; none if the system does not list
/// them.
pub(super) fn programs_above() -> Vec<PathBuf> {
    // Enough for a launcher, `mpienv exec` and some wrapper scripts.
    const MOST: usize = 16;
    let mut programs = Vec::new();
    let mut process = "self".to_owned();
    while programs.len() < MOST {
        let Some(parent) = parent(&process) else { break };
        // Not readable if the process is another user's, as Slurm's daemons are.
        programs.push(std::fs::read_link(format!("/proc/{parent}/exe")).unwrap_or_default());
        process = parent;
    }
    programs
}

/// The ID of a process's parent; `None` for the first process, or without /proc.
fn parent(process: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim();
    (parent != "0").then(|| parent.to_owned())
}

// The names of the files are those on Linux.
#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn found(launcher: Launcher, vars: &MpiVars<'_>, programs: &[PathBuf]) -> Vec<String> {
        let files = candidates(launcher, vars, programs);
        files.into_iter().map(|file| file.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_users_choice_is_the_only_one() {
        let vars = MpiVars {
            library: Some(OsStr::new("/opt/mpi/libmpi.so")),
            opal_prefix: Some(OsStr::new("/opt/openmpi")),
            ..MpiVars::default()
        };
        for &launcher in Launcher::ALL {
            assert_eq!(found(launcher, &vars, &[]), ["/opt/mpi/libmpi.so"], "{launcher}");
        }
    }

    #[test]
    fn the_library_is_of_the_launchers_family() {
        let none = MpiVars::default();
        assert_eq!(found(Launcher::OpenMpi, &none, &[]), ["libmpi.so.40"]);
        assert_eq!(
            found(Launcher::Hydra, &none, &[]),
            ["libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"]
        );
        assert_eq!(found(Launcher::Jsm, &none, &[]), ["libmpi_ibm.so.3", "libmpi.so.40"]);
        assert_eq!(found(Launcher::Slurm, &none, &[])[0], "libmpi.so.12");
        for plugin in ["pmix", "pmix_v4"] {
            let vars = MpiVars { slurm_mpi_type: Some(OsStr::new(plugin)), ..MpiVars::default() };
            assert_eq!(found(Launcher::Slurm, &vars, &[])[0], "libmpi.so.40", "{plugin}");
        }
    }

    #[test]
    fn open_mpis_prefix_comes_first_and_only_for_open_mpis_library() {
        let vars = MpiVars { opal_prefix: Some(OsStr::new("/opt/ompi")), ..MpiVars::default() };
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
        let none = MpiVars::default();
        let names = ["libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"];
        assert_eq!(found(Launcher::Hydra, &none, std::slice::from_ref(&shell)), names);
        let expected = [&[library.to_str().unwrap()], &names[..]].concat();
        assert_eq!(found(Launcher::Hydra, &none, &[shell, proxy]), expected);
    }

    #[test]
    fn the_programs_above_end_with_the_first_process() {
        let programs = programs_above();
        assert!(!programs.is_empty() && programs.len() <= 16, "{programs:?}");
        // Cargo, a shell or a debugger starts a test, but never the test itself.
        assert_ne!(programs[0], std::env::current_exe().unwrap());
    }
}
