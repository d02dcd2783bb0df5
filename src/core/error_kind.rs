//! What errors mean for a program's exit code.

use std::process::ExitStatus;

/// The exit code for [`ErrorKind::Environment`].
pub const ENVIRONMENT: u8 = 1;
/// The exit code for [`ErrorKind::Usage`].
pub const USAGE: u8 = 2;
/// The exit code for [`ErrorKind::Lost`], [`ErrorKind::Refused`] and [`ErrorKind::Canceled`].
pub const RANKS: u8 = 3;
/// The exit code for [`ErrorKind::TimedOut`].
pub const TIMED_OUT: u8 = 124;
/// The exit code for [`ErrorKind::ReaderGone`].
pub const READER_GONE: u8 = 141;

/// The kind of an error that involves several ranks. It gives the exit code that a program should
/// use:
/// [`ErrorKind::exit_code`].
///
/// | kind | exit code | may another attempt succeed? |
/// | --- | --- | --- |
/// | [`Environment`](ErrorKind::Environment) | 1 | no |
/// | [`Usage`](ErrorKind::Usage) | 2 | no |
/// | [`Lost`](ErrorKind::Lost) | 3 | yes |
/// | [`Refused`](ErrorKind::Refused) | 3 | no |
/// | [`Canceled`](ErrorKind::Canceled) | 3 | the program decides |
/// | [`TimedOut`](ErrorKind::TimedOut) | 124 | yes |
/// | [`ReaderGone`](ErrorKind::ReaderGone) | 141 | no |
/// | [`Failed`](ErrorKind::Failed) | the worker's code, or 128 plus the number of its signal | depends on the worker |
/// | [`Stopped`](ErrorKind::Stopped) | 128 plus the number of the signal | yes |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The environment or the machine is not usable.
    Environment,
    /// The program asked for what cannot be done.
    Usage,
    /// A rank or a node was lost.
    Lost,
    /// The ranks, their settings or their calls do not fit together, this rank's call is wrong, or
    /// another program uses the port on which the ranks meet.
    Refused,
    /// Another thread of this process canceled the call.
    Canceled,
    /// A rank did not arrive by the deadline, or no rank was active for too long.
    TimedOut,
    /// The program that reads the workers' output has exited.
    ReaderGone,
    /// A worker failed with this status.
    Failed(ExitStatus),
    /// This signal ended the job.
    Stopped(i32),
}

impl ErrorKind {
    /// Returns the code with which a program should exit for this error. The command `mpienv` exits
    /// with the same codes. For a program with a group, see `mpienv::collective::ConnectError`.
    ///
    /// ```
    /// use std::process::ExitCode;
    /// use mpienv::ClusterInfo;
    /// use mpienv::rendezvous::Rendezvous;
    ///
    /// fn main() -> ExitCode {
    ///     let info = match ClusterInfo::from_env() {
    ///         Ok(info) => info,
    ///         Err(error) => {
    ///             eprintln!("{error}");
    ///             return ExitCode::from(error.kind().exit_code());
    ///         }
    ///     };
    ///     let rendezvous = Rendezvous::of(&info, mpienv::Host::LOOPBACK, info.master_port());
    ///     match rendezvous.all_gather("ready") {
    ///         Ok(_meeting) => ExitCode::SUCCESS,
    ///         Err(error) => {
    ///             eprintln!("{error}");
    ///             ExitCode::from(error.kind().exit_code())
    ///         }
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Environment => ENVIRONMENT,
            ErrorKind::Usage => USAGE,
            ErrorKind::Lost | ErrorKind::Refused | ErrorKind::Canceled => RANKS,
            ErrorKind::TimedOut => TIMED_OUT,
            ErrorKind::ReaderGone => READER_GONE,
            ErrorKind::Failed(status) => of_child(status),
            ErrorKind::Stopped(signal) => of_signal(signal),
        }
    }
}

/// Returns a child's own exit code, or 128 plus the signal's number if a signal killed it, as in
/// shells.
fn of_child(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.or(signal(status).map(of_signal)).unwrap_or(ENVIRONMENT)
}

/// Returns 128 plus a signal's number.
fn of_signal(number: i32) -> u8 {
    u8::try_from(number.saturating_add(128)).unwrap_or(ENVIRONMENT)
}

/// Returns the number of the signal that killed a process.
pub fn signal(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn each_kind_has_the_exit_code_of_its_table() {
        for (kind, code) in [
            (ErrorKind::Environment, 1),
            (ErrorKind::Usage, 2),
            (ErrorKind::Lost, 3),
            (ErrorKind::Refused, 3),
            (ErrorKind::Canceled, 3),
            (ErrorKind::TimedOut, 124),
            (ErrorKind::ReaderGone, 141),
            (ErrorKind::Failed(ExitStatus::from_raw(7 << 8)), 7),
            (ErrorKind::Failed(ExitStatus::from_raw(9)), 137),
            (ErrorKind::Stopped(15), 143),
            (ErrorKind::Stopped(i32::MAX), 1),
        ] {
            assert_eq!(kind.exit_code(), code, "{kind:?}");
        }
    }
}
