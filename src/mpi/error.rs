//! Why MPI cannot be used, or why a call failed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mpienv_core::{ErrorKind, Launcher, Rank};

/// What calls return.
pub(super) type Result<T, E = MpiError> = std::result::Result<T, E>;

/// Why MPI cannot be used, or why a call failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MpiError {
    /// No MPI library could be loaded.
    #[error(
        "cannot load an MPI library for a process started by {}, tried {}: {}", .launcher.title(), list(.tried),
        remedy(*.is_set)
    )]
    #[non_exhaustive]
    NoLibrary {
        /// The launcher that the library was chosen for.
        launcher: Launcher,
        /// Each name that was tried, and the loader's error.
        tried: Vec<(PathBuf, String)>,
        /// Whether `MPIENV_MPI_LIB` names the library.
        is_set: bool,
    },
    /// The library lacks the functions or handles of every known MPI.
    #[error(
        "{} is not an MPI library of a known ABI, it has no {missing}: set MPIENV_MPI_LIB to the libmpi of Open MPI, \
         MPICH or Intel MPI, or to a libmpi_abi", .library.display()
    )]
    #[non_exhaustive]
    NotRecognized {
        /// The name by which the library was loaded.
        library: PathBuf,
        /// What the library lacks.
        missing: &'static str,
    },
    /// Other code has already initialized MPI in this process.
    #[error(
        "MPI is already initialized in this process: it can be initialized only once, and mpienv must do it; split the \
         first communicator or group, or use another backend for the second"
    )]
    AlreadyInitialized,
    /// No launcher's variables place this process, but it is probably one of several.
    #[error(transparent)]
    Environment(#[from] mpienv_core::Error),
    /// This process has asked the launcher for rank 0's host, and `MPI_Init` would abort it.
    #[error(
        "this process has asked the launcher for rank 0's host, and cannot use MPI after that: initialize MPI without \
         `ask::read`, or use another backend"
    )]
    Asked,
    /// `mpienv simulate` plays the launcher, whose MPI has not been started.
    #[error(
        "{} is only simulated, and no MPI can be initialized: use another backend, or start the program with the launcher \
         itself", .launcher.title()
    )]
    #[non_exhaustive]
    Simulated {
        /// The launcher that is simulated.
        launcher: Launcher,
    },
    /// The library cannot be used by a process that has threads.
    #[error(
        "{} provides thread level {provided}, but {needed} ({level}) is needed: use an MPI that was built with support \
         for threads", .library.display()
    )]
    #[non_exhaustive]
    ThreadLevel {
        /// The name by which the library was loaded.
        library: PathBuf,
        /// The level that MPI_Init_thread returned.
        provided: i32,
        /// The number of the level that is needed, in this library.
        needed: i32,
        /// Its name, and what needs it.
        level: &'static str,
    },
    /// An MPI function returned an error.
    #[error("{call}: {text} (error {code}): {}", failure(.call, .text).1)]
    #[non_exhaustive]
    Call {
        /// The function.
        call: &'static str,
        /// The error code.
        code: i32,
        /// The text that MPI_Error_string returns for the code, in one line.
        text: String,
    },
    /// A message had fewer bytes than this rank was to receive.
    #[error(
        "{call}: rank {from} sent {received} bytes where this rank receives {expected}: a message needs the same count \
         on both ranks"
    )]
    #[non_exhaustive]
    Shorter {
        /// The function.
        call: &'static str,
        /// The rank that sent the message, by its number in the communicator.
        from: u32,
        /// How many bytes it sent.
        received: usize,
        /// How many bytes this rank was to receive.
        expected: usize,
    },
    /// Not all other ranks arrived in time.
    #[error(
        "{call}{} did not complete within {} s: a rank hangs, is lost, or makes another call; stop the job with abort",
        .from.map_or(String::new(), |from| format!(" from rank {from}")), .limit.as_secs_f64()
    )]
    #[non_exhaustive]
    TimedOut {
        /// The function.
        call: &'static str,
        /// The rank whose message did not arrive, by its number in the communicator.
        from: Option<u32>,
        /// How long this rank waited.
        limit: Duration,
    },
    /// MPI and the launcher's variables disagree on the rank or the size.
    #[error(
        "MPI says rank {mpi} of {}, but the environment ({}) says rank {environment} of {}: {}",
        .mpi.size(), .launcher.title(), .environment.size(), cause(.library, .version, *.mpi, *.starts_mpi, *.is_chosen)
    )]
    #[non_exhaustive]
    Differs {
        /// The name by which the library was loaded.
        library: PathBuf,
        /// The library's name and version, as it reports them.
        version: String,
        /// The launcher that the library was chosen for.
        launcher: Launcher,
        /// The rank and size according to MPI.
        mpi: Rank,
        /// The rank and size according to the environment.
        environment: Rank,
        /// Whether the launcher starts programs of MPI.
        starts_mpi: bool,
        /// Whether `MPIENV_LAUNCHER` chooses the launcher.
        is_chosen: bool,
    },
    /// A number does not fit in a C `int`.
    #[error(
        "{call}: {value} does not fit MPI's 32-bit numbers: use a smaller number, or several calls"
    )]
    #[non_exhaustive]
    TooLarge {
        /// The function.
        call: &'static str,
        /// The number.
        value: u64,
    },
    /// A buffer does not divide into equal parts, one for each rank.
    #[error(
        "{call}: {length} values do not divide into {size} equal parts{}: add padding, or use another call",
        .part.map_or(String::new(), |part| format!(" of {part}"))
    )]
    #[non_exhaustive]
    Indivisible {
        /// The function.
        call: &'static str,
        /// How many values there are.
        length: usize,
        /// How many ranks there are.
        size: usize,
        /// How many values of each rank the other buffer has, if there is one.
        part: Option<usize>,
    },
    /// Calls that were started but not waited for prevent MPI_Finalize.
    #[error(
        "cannot finalize MPI, {count} started calls were not waited for: wait for them, or stop the job with abort"
    )]
    #[non_exhaustive]
    Unfinished {
        /// How many calls were not waited for.
        count: u32,
    },
    /// MPI has already been finalized.
    #[error(
        "MPI is already finalized in this process: finalize the world, or close the group of all ranks, after the last call"
    )]
    Finalized,
    /// This process was forked from the one that initialized MPI, and must not call it. MPI goes on
    /// there.
    #[error(
        "this process was forked from process {initialized}, which alone can call MPI: have the fork start a new program, \
         or call MPI in its parent"
    )]
    #[non_exhaustive]
    Forked {
        /// The ID of the process that initialized MPI.
        initialized: u32,
    },
}

debug_is_text!(MpiError);

impl MpiError {
    /// Returns what the error means for an exit code.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        use MpiError::{
            Call, Differs, Environment, NoLibrary, NotRecognized, ThreadLevel, TimedOut,
        };
        match self {
            NoLibrary { .. }
            | NotRecognized { .. }
            | ThreadLevel { .. }
            | Differs { .. }
            | Environment(_) => ErrorKind::Environment,
            Call { call, text, .. } => failure(call, text).0,
            TimedOut { .. } => ErrorKind::TimedOut,
            _ => ErrorKind::Refused,
        }
    }
}

/// What an error of MPI's may mean. Open MPI and MPICH write the same words with other capitals.
fn failure(call: &str, text: &str) -> (ErrorKind, &'static str) {
    let text = text.to_ascii_lowercase();
    // Of a call of all ranks, another call may be the cause.
    let is_message = ["MPI_Irecv", "MPI_Sendrecv"].contains(&call);
    let causes = [
        (
            true,
            "communicators",
            "this MPI has no room for another group: drop those that are no longer needed",
        ),
        (true, "invalid rank", "choose a rank from 0 to one below the size of the communicator"),
        (
            is_message,
            "truncated",
            "a rank has sent more than this one receives: a message needs the same count on both ranks",
        ),
    ];
    let cause = causes.into_iter().find(|(may_be, sign, _)| *may_be && text.contains(sign));
    match cause {
        Some((.., cause)) => (ErrorKind::Refused, cause),
        None => (
            ErrorKind::Lost,
            "either a rank was lost, or the ranks do not make the same calls in the same order, with the same lengths \
             and a root within the group",
        ),
    }
}

/// The names that were tried, with the loader's errors.
fn list(names: &[(PathBuf, String)]) -> String {
    let name = |(name, reason): &(PathBuf, String)| format!("{} ({reason})", name.display());
    names.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// What helps if no library can be loaded.
fn remedy(is_set: bool) -> &'static str {
    if is_set {
        "set MPIENV_MPI_LIB to the libmpi of the MPI that the launcher belongs to, or unset it"
    } else {
        "install the MPI that the launcher belongs to, add its folder to LD_LIBRARY_PATH, or set MPIENV_MPI_LIB to its \
         libmpi"
    }
}

/// Why MPI may differ from the environment, which has another rank or size, and what to do.
fn cause(library: &Path, version: &str, mpi: Rank, starts_mpi: bool, is_chosen: bool) -> String {
    let library = library.display();
    match mpi.size() {
        1 if !starts_mpi => format!(
            "this launcher does not start programs of MPI, as `mpienv launch` and torchrun do not, so {library} makes \
             each process a world of size 1: start the job with mpirun, or under Slurm with srun --mpi=pmix or pmi2, or \
             do without MPI; if mpirun did start it, {library} ({version}) belongs to another MPI: set MPIENV_MPI_LIB"
        ),
        1 => format!(
            "{library} ({version}) did not find the launcher, so each process is a world of size 1, because it belongs to \
             another MPI or the variables are left from another job: start the job with the mpiexec of that library \
             (under Slurm: srun --mpi=pmix or pmi2), set MPIENV_MPI_LIB to the libmpi of the launcher or unset it, unset \
             the variables, or do without MPI"
        ),
        _ if is_chosen => {
            "MPIENV_LAUNCHER chooses this launcher, and another one started the process: unset \
                           MPIENV_LAUNCHER"
                .to_owned()
        }
        _ => format!(
            "the variables are left from another job, or another launcher inside it started {library} ({version}): \
             unset the variables of the launcher that did not start this process"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_with_wrong_arguments_does_not_blame_another_rank() {
        for (text, kind, end) in [
            (
                "Too many communicators (0/2048 free on this process)",
                ErrorKind::Refused,
                "drop those that are no longer needed",
            ),
            (
                "MPI_ERR_RANK: invalid rank",
                ErrorKind::Refused,
                "below the size of the communicator",
            ),
            (
                "Message truncated; 16 bytes received",
                ErrorKind::Refused,
                "same count on both ranks",
            ),
            ("MPI_ERR_OTHER: known error not in list", ErrorKind::Lost, "a root within the group"),
        ] {
            let error = MpiError::Call { call: "MPI_Irecv", code: 15, text: text.to_owned() };
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().ends_with(end), "{error}");
        }
    }
}
