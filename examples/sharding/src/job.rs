//! How a rank joins the others and exits with them.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use mpienv::ClusterInfo;
use mpienv::collective::{self, Group};

use crate::error::{self, Error, Reach};

/// The transport to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// Shared memory on one host; on several, MPI if the launcher starts MPI programs and its
    /// library can be loaded, otherwise shared memory and TCP
    Auto,
    /// The launcher's MPI library, or the one that MPIENV_MPI_LIB names
    #[cfg(feature = "mpi")]
    Mpi,
    /// Memory that the ranks of a host share, and TCP between hosts
    SharedMemory,
    /// TCP connections between the ranks, which meet at MASTER_ADDR:MASTER_PORT
    Tcp,
}

/// Connects to the other ranks. If there are any, the transport's name is passed to `remark`, and
/// warnings to `warn`.
pub fn connect(
    backend: Backend,
    info: &ClusterInfo,
    timeout: Duration,
    remark: &dyn Fn(&str),
    warn: &dyn Fn(&str),
) -> Result<Group, Error> {
    let builder = Group::builder(info).timeout(timeout).backend(match backend {
        Backend::Auto => collective::Backend::Auto,
        #[cfg(feature = "mpi")]
        Backend::Mpi => collective::Backend::Mpi,
        Backend::SharedMemory => collective::Backend::SharedMemory,
        Backend::Tcp => collective::Backend::Tcp,
    });
    let builder = builder.on_lost(|lost| {
        let program = std::env::current_exe().unwrap_or_default();
        say(&program.file_stem().unwrap_or_default().to_string_lossy(), lost);
        error::exit_code(lost.kind(), error::TRAINING_FAILED)
    });
    #[cfg(feature = "mpi")]
    let builder = builder.mpi_hints({
        let is_one_machine = info.local_world_size() == Some(info.world_size());
        // Makes the linear model's gradient, 31,400 bytes, an eager message.
        mpienv::mpi::Hints::new().one_machine(is_one_machine).eager_limit(32 * 1024)
    });
    let group = builder.connect().map_err(|error| match error {
        #[cfg(feature = "mpi")]
        collective::CollectiveError::Mpi(error) => {
            Error::input(format!("{error}; use --backend tcp to train without MPI"))
        }
        error => Error::from(error),
    })?;
    if group.size() > 1 {
        remark(&format!("gradients over {}", group.describe()));
    }
    if group.rejected() > 0 {
        warn(&format!(
            "connections to rank {} that were not from ranks of this job: {}; they came from a port scanner, a health \
             check, or another job with the same MASTER_PORT",
            info.rank(),
            group.rejected()
        ));
    }
    Ok(group)
}

/// Runs a rank's `work`, then leaves the group. An error of all ranks is printed while they are
/// still connected: a launcher that received a stop signal may kill this rank while the group
/// closes.
pub fn run<P>(
    program: &str,
    connected: Result<Group, Error>,
    prepared: Result<P, Error>,
    work: impl FnOnce(Result<P, Error>, &mut Group) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut group = match connected {
        Ok(group) => group,
        Err(error) => return Err(prepared.err().unwrap_or(error)),
    };
    let Err(error) = work(prepared, &mut group) else { return Ok(group.close()?) };
    if !error.is_of_all_ranks() {
        // Without the abort, the other ranks would wait for this one until they time out.
        group.abort(error.code, &error.text);
        return Err(error);
    }
    if error.reach != Reach::First || group.rank().is_first() {
        say(program, &error);
    }
    // The first error is the one to return.
    let _ = group.close();
    Err(Error { text: String::new(), ..error })
}

/// Shares whether each rank can start, and returns what this rank has prepared if all can. Every
/// rank of `group` must call this.
///
/// # Errors
/// On all ranks, if one cannot start: they immediately learn which, and why.
pub fn all_ready<T>(own: Result<T, Error>, group: &mut Group) -> Result<T, Error> {
    let reason = match &own {
        Ok(_) => Vec::new(),
        Err(error) => format!("{}\n{error}", mpienv::host_name().unwrap_or_default()).into_bytes(),
    };
    let all = group.all_gather(&reason)?;
    let own = own.map_err(|error| error.reaching(Reach::All))?;
    match (0..).zip(all).find(|(_, reason)| !reason.is_empty()) {
        None => Ok(own),
        Some((rank, reason)) => {
            let text = String::from_utf8_lossy(&reason);
            let (host, reason) = text.split_once('\n').unwrap_or_default();
            // Another process's text must be safe to print on a terminal.
            let text = format!("rank {rank} on {host} cannot start: {reason}");
            Err(Error::input(text.replace(char::is_control, " ")).reaching(Reach::Other))
        }
    }
}

/// Returns the most frequent of what ranks hold, which counts as right. Of equally frequent ones,
/// the lowest rank's does.
pub fn majority<T: PartialEq>(all: &[T]) -> Option<&T> {
    if all.iter().all(|one| *one == all[0]) {
        return all.first();
    }
    let votes = |one: &T| all.iter().filter(|other| *other == one).count();
    // Of several maxima, `max_by_key` returns the last.
    all.iter().rev().max_by_key(|one| votes(one))
}

/// Writes `text`, which is the program's `what`.
pub fn print(text: &[u8], what: &str, out: &mut dyn Write) -> Result<(), Error> {
    let written = out.write_all(text).and_then(|()| out.flush());
    written.map_err(|error| Error::output(what, &error))
}

/// Prints why a program fails, unless there is nothing to print. A single write keeps the lines of
/// ranks that share a terminal apart.
pub fn say(program: &str, why: &dyn Display) {
    let why = why.to_string();
    if why.is_empty() {
        return;
    }
    // EMFILE is 24 on Linux and macOS. Opening any file or connection can hit this limit.
    let is_limit = why.contains("(os error 24)") && !why.contains("ulimit -n");
    let remedy =
        if is_limit { "; raise this process's limit of open files (ulimit -n)" } else { "" };
    // If stderr cannot be written, the exit code still shows the failure.
    let _ = io::stderr().write_all(format!("{program}: {why}{remedy}\n").as_bytes());
}

/// Returns a program's exit code. Prints its error unless it has been reported.
pub fn finish(program: &str, result: Result<(), Error>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    say(program, &error);
    error.code.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpienv::collective::threads;

    #[test]
    fn the_first_rank_that_cannot_begin_is_named_by_those_that_can() {
        let host = mpienv::host_name().unwrap_or_default();
        let of_all = |failing: &[u32]| {
            threads::run(4, Duration::from_secs(1200), |rank| {
                let index = rank.rank().index();
                let fails = failing.contains(&index);
                let own = if fails {
                    Err(Error::input(format!("no {index}\u{1b}[2J")))
                } else {
                    Ok(index)
                };
                match all_ready(own, rank) {
                    Ok(own) => format!("all, {own}"),
                    Err(error) => {
                        assert!(error.is_of_all_ranks());
                        error.to_string()
                    }
                }
            })
            .unwrap()
        };
        assert_eq!(of_all(&[]), ["all, 0", "all, 1", "all, 2", "all, 3"]);
        let other = format!("rank 1 on {host} cannot start: no 1 [2J");
        assert_eq!(of_all(&[1, 3]), [&other, "no 1\u{1b}[2J", &other, "no 3\u{1b}[2J"]);
    }
}
