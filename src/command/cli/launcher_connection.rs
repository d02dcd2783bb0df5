//! The process that holds the connection over which a rank has asked its launcher.
//!
//! Over PMI, the launcher takes the exit of a process that has used PMI for the failure of an MPI
//! program, and kills the other ranks of its node, unless the process has said goodbye
//! (`finalize`). After that, no MPI program can start in its place. What `mpienv exec` becomes may
//! be either. So a process of its own waits until the rank exits, and says goodbye if the rank has
//! succeeded and no MPI program has said it.
//!
//! Over PMIx, the rank has said goodbye, but the launcher must not see the end of the connection
//! before the rank exits (`src/ask/pmix/relay.rs`).

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::process::{self, Command, Stdio};

use mpienv_ask::seam::{Connection, Link, inherited};
use mpienv_core::seam::Server;
use mpienv_launch::seam::stat_fields;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, pidfd_open, setsid};

/// The first word of the process that starts the keeper, and that of the keeper. They are not
/// subcommands, because users do not call them. The rank's process and what it has asked over
/// follow.
const START: &str = "__start-keeper";
const KEEP: &str = "__keeper";
/// How often the keeper looks whether the rank still runs, on a system that does not tell it.
const EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// The field of `/proc/PID/stat` that has the exit status, counted from the one after the name.
const STATUS: usize = 49;

/// Starts the keeper of a connection.
pub(super) fn start(connection: Connection) -> io::Result<()> {
    let Connection { server, socket, process } = connection;
    let mut starter = Command::new(std::env::current_exe()?);
    starter.args([START, &process.to_string(), server.word()]).stdin(Stdio::from(socket));
    let status = starter.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other("it was not started")) }
}

/// Does the part of this process if it was started as one of the two. Returns whether it was.
pub(super) fn serve() -> Option<process::ExitCode> {
    let mut words = std::env::args_os().skip(1);
    let word = words.next()?;
    let run = match word.to_str()? {
        START => start_keeper,
        KEEP => keep,
        _ => return None,
    };
    let rank = words.next().and_then(|word| Pid::from_raw(word.to_str()?.parse().ok()?));
    let done = rank.zip(words.next()).is_some_and(|(rank, server)| run(rank, &server).is_ok());
    Some(if done { process::ExitCode::SUCCESS } else { process::ExitCode::FAILURE })
}

/// Starts the keeper and exits: a program that waits for all its children must not wait for it.
fn start_keeper(rank: Pid, server: &OsStr) -> io::Result<()> {
    // The keeper must not hold a pipe or a lock whose end another program waits for.
    for entry in fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(open) = number.and_then(inherited)
            && let Ok(flags) = fcntl_getfd(open)
        {
            fcntl_setfd(open, flags | FdFlags::CLOEXEC)?;
        }
    }
    let mut keeper = Command::new(std::env::current_exe()?);
    keeper.arg(KEEP).arg(rank.as_raw_nonzero().to_string()).arg(server).current_dir("/");
    keeper.spawn().map(drop)
}

fn keep(rank: Pid, server: &OsStr) -> io::Result<()> {
    // The terminal's signals are for the rank.
    let _ = setsid();
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    // A rank of which nothing is left cannot say that it has failed.
    let has_succeeded = || exit_status(rank).is_none_or(|(_, status)| status == "0");
    if wait(rank, &socket)? && server == Server::Pmi.word() && has_succeeded() {
        // The launcher may have ended meanwhile.
        let _ = Link::of(socket).finalize();
    }
    Ok(())
}

/// Waits until the rank exits, and returns true, or until the launcher closes the connection.
fn wait(rank: Pid, socket: &impl AsFd) -> io::Result<bool> {
    let process = match pidfd_open(rank, PidfdFlags::empty()) {
        Ok(process) => Some(process),
        Err(Errno::SRCH) => return Ok(true),
        // Before Linux 5.3.
        Err(_) => None,
    };
    loop {
        // What arrives is for the program: only the end counts.
        let mut fds = vec![PollFd::new(socket, PollFlags::RDHUP)];
        fds.extend(process.iter().map(|process| PollFd::new(process, PollFlags::IN)));
        match poll(&mut fds, process.is_none().then_some(&EVERY)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [is_closed, has_exited] =
            [0, 1].map(|at| fds.get(at).is_some_and(|fd| !fd.revents().is_empty()));
        if is_closed {
            return Ok(false);
        }
        if has_exited
            || process.is_none() && exit_status(rank).is_none_or(|(state, _)| state == "Z")
        {
            return Ok(true);
        }
    }
}

/// Returns the state and the exit status of a process.
fn exit_status(rank: Pid) -> Option<(String, String)> {
    let stat = fs::read(format!("/proc/{}/stat", rank.as_raw_nonzero())).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let (_, fields) = stat_fields(&stat)?;
    Some((fields.first()?.to_string(), fields.get(STATUS)?.to_string()))
}
