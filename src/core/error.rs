//! Errors in an environment: launcher, variable, value, reason and remedy.

use std::borrow::Cow;
use std::fmt;
use std::num::ParseIntError;
use std::process::ExitStatus;
use std::str::FromStr;

use crate::cluster::interface::InterfaceError;
use crate::environment::{Environment, ReadError};
use crate::launcher::Launcher;
use crate::value::host::HostError;
use crate::value::port::{PortError, PortRangeError};
use crate::value::rank::RankError;
use crate::value::sourced::Sourced;
use crate::value::token::MungeError;

/// Prints an error's text for `Debug` too, because `main` prints errors with `Debug`. The errors of
/// parsing a value do without it: a failed assertion then names their variant.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_is_text {
    ($error:ty) => {
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                // In one piece: a `main` that returns the error prints it unbuffered, and a rank may
                // be killed meanwhile.
                f.write_str(&self.to_string())
            }
        }
    };
}

/// The error of an environment from which a process's place in its job cannot be read.
///
/// Its text is one paragraph: the launcher, the variable and its value, the reason and the remedy.
///
/// ```
/// use mpienv::{ClusterInfo, Launcher, Reason};
///
/// let error = ClusterInfo::from_vars([
///     ("OMPI_COMM_WORLD_RANK", "four"),
///     ("OMPI_COMM_WORLD_SIZE", "8"),
/// ])
/// .unwrap_err();
/// assert_eq!(error.launcher(), Some(Launcher::OpenMpi));
/// assert_eq!(error.variable(), Some("OMPI_COMM_WORLD_RANK"));
/// assert_eq!(error.value(), Some("four"));
/// assert_eq!(error.reason(), &Reason::NotANumber);
/// assert_eq!(error.kind().exit_code(), 1);
/// assert!(error.remedy().starts_with("start the process with mpirun"));
/// assert_eq!(
///     error.to_string(),
///     "Open MPI: OMPI_COMM_WORLD_RANK=\"four\": not a whole number from 0 to 4294967295; \
///      start the process with mpirun, or unset OMPI_COMM_WORLD_RANK if it is left from \
///      another job"
/// );
/// ```
// Boxed to keep the crate's `Result`s small.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Details>);

debug_is_text!(Error);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Details {
    launcher: Option<Launcher>,
    variable: Option<Cow<'static, str>>,
    value: Option<String>,
    reason: Reason,
    remedy: Cow<'static, str>,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// A variable is missing, although another variable that requires it is set.
    #[error("not set, although {present} is")]
    #[non_exhaustive]
    Missing {
        /// The variable that is set, with its value.
        present: String,
    },
    /// The value is not a plain decimal number, or it is too large.
    #[error("not a whole number from 0 to {}", u32::MAX)]
    NotANumber,
    /// The value is not text.
    #[error("not UTF-8")]
    NotUnicode,
    /// A rank or size contradicts the others.
    #[error(transparent)]
    OutOfRange(#[from] RankError),
    /// The value is not the name or address of a host.
    #[error("not a host: {0}")]
    NotAHost(HostError),
    /// The value is not a TCP port.
    #[error("not a port from 1 to 65535")]
    NotAPort,
    /// The value is not a range of TCP ports.
    #[error("{0}")]
    NotAPortRange(PortRangeError),
    /// The value is not a network interface or a range of addresses.
    #[error("{0}")]
    NotAnInterface(InterfaceError),
    /// This host has no such network interface, or several.
    #[error("{0}")]
    NoInterface(String),
    /// The value does not say how ranks authenticate.
    #[error(
        "not a way for ranks to authenticate: munge, auto, or one of them with the absolute path of munged's socket, as \
         in munge:SOCKET"
    )]
    NotMunge,
    /// The value does not have the form that its launcher documents.
    #[error("{0}")]
    Malformed(String),
    /// No launcher has this name.
    #[error("unknown launcher")]
    UnknownLauncher,
    /// The launcher that was selected did not start this process.
    #[error("{} ({}) is selected, but its variables do not show that it started this process", .0.name(), .0.title())]
    LauncherAbsent(Launcher),
    /// There may be several nodes, and no variable names rank 0's host.
    #[error("{}", master_unknown(*world_size, why.as_deref()))]
    #[non_exhaustive]
    MasterUnknown {
        /// How many ranks there are.
        world_size: u32,
        /// Why the launcher's variables do not name it, if they name another host.
        why: Option<String>,
    },
    /// The program needs a launcher
    /// ([`ClusterInfo::require_launcher`](crate::ClusterInfo::require_launcher)), and none started
    /// this process, or one that has only some of the job.
    #[error("{0}")]
    NoLauncher(String),
    /// A port derived from the job was requested, but the launcher does not identify the job.
    #[error(
        "a port derived from the job was requested, but the launcher does not identify the job"
    )]
    NoJobIdentity,
    /// A setting that protects the meeting of the ranks is set, but has no value.
    #[error("set but empty, so it would leave the job without the protection that it stands for")]
    BlankSecurity,
    /// The file that should hold the job's secret cannot be used.
    #[error("{0}")]
    TokenFile(String),
    /// This host's own address on the way to rank 0 is not known.
    #[error("this host's own address on the way there is not known: {0}")]
    NoOwnAddr(String),
    /// The program needs the local rank, but the launcher does not provide it.
    #[error("{program} needs the local rank, but the launcher does not provide it")]
    #[non_exhaustive]
    NoLocalRank {
        /// The program.
        program: &'static str,
    },
    /// The program needs the hosts of all ranks, but the launcher does not provide them.
    #[error(
        "{program} needs the hosts of all {world_size} ranks, but the launcher does not provide them"
    )]
    #[non_exhaustive]
    HostsUnknown {
        /// The program.
        program: &'static str,
        /// How many ranks there are.
        world_size: u32,
    },
    /// The program needs a value that the launcher does not provide.
    #[error("{program} needs {what}")]
    #[non_exhaustive]
    ProgramNeeds {
        /// The program.
        program: &'static str,
        /// What it needs, and why that is not known.
        what: String,
    },
    /// The launcher's PMIx server did not answer.
    #[error("PMIx gave no answer: {0}")]
    Pmix(String),
    /// The launcher's PMI server did not answer.
    #[error("{0}")]
    Pmi(String),
    /// Workers were requested from a process that is not the only one on its node.
    #[error(
        "this process cannot start workers, because it must be the job's only process on its node: {0}"
    )]
    NotPerNode(String),
    /// The number of workers is 0 or too large.
    #[error("a job cannot have {nodes} nodes with {workers} workers on each")]
    #[non_exhaustive]
    TooManyWorkers {
        /// The number of nodes.
        nodes: u32,
        /// The number of workers on each.
        workers: u32,
    },
}

/// What each error of parsing a value says of a variable. A text says it itself.
macro_rules! reasons {
    ($($error:ty: $found:pat => $reason:expr;)+) => {
        $(impl From<$error> for Reason {
            fn from($found: $error) -> Reason {
                $reason
            }
        })+
    };
}

reasons! {
    HostError: error => Reason::NotAHost(error);
    InterfaceError: error => Reason::NotAnInterface(error);
    MungeError: _ => Reason::NotMunge;
    &str: why => Reason::Malformed(why.to_owned());
    String: why => Reason::Malformed(why);
    ParseIntError: _ => Reason::NotANumber;
    PortError: _ => Reason::NotAPort;
    PortRangeError: error => Reason::NotAPortRange(error);
}

impl Environment {
    /// Returns the text of a variable that users or platforms set.
    pub(crate) fn setting_text(&self, variable: &str) -> Result<Option<&str>, Error> {
        self.get_str(variable).map_err(Error::reading_setting)
    }

    /// Returns the value of a variable that users or platforms set.
    pub(crate) fn setting<T>(&self, variable: &'static str) -> Result<Option<Sourced<T>>, Error>
    where
        T: FromStr<Err: Into<Reason>>,
    {
        let Some(text) = self.setting_text(variable)? else { return Ok(None) };
        let value = text.parse().map_err(|error| Error::of_setting(error, variable, text))?;
        Ok(Some(Sourced::new(value, variable)))
    }
}

impl Error {
    /// Returns what the error means for an exit code: always [`ErrorKind::Environment`].
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Environment
    }

    #[doc(hidden)]
    #[must_use]
    pub fn new(reason: impl Into<Reason>, remedy: impl Into<Cow<'static, str>>) -> Error {
        Error(Box::new(Details {
            launcher: None,
            variable: None,
            value: None,
            reason: reason.into(),
            remedy: remedy.into(),
        }))
    }

    #[doc(hidden)]
    #[must_use]
    pub fn by(mut self, launcher: Launcher) -> Error {
        self.0.launcher = Some(launcher);
        self
    }

    #[doc(hidden)]
    #[must_use]
    pub fn of(mut self, variable: impl Into<Cow<'static, str>>) -> Error {
        self.0.variable = Some(variable.into());
        self
    }

    #[doc(hidden)]
    #[must_use]
    pub fn found(mut self, value: impl ToString) -> Error {
        self.0.value = Some(value.to_string());
        self
    }

    /// Returns the error for a variable that users or platforms set, with a value that cannot be
    /// used.
    pub(crate) fn of_setting(reason: impl Into<Reason>, variable: &str, value: &str) -> Error {
        let reason = reason.into();
        let remedy = match reason {
            Reason::NotAPort if value.starts_with("tcp://") => format!(
                "Kubernetes sets {variable} in all pods if a Service has the name before its _PORT: set `enableServiceLinks: false` \
                 in the pods' template, or unset {variable}"
            ),
            _ => format!("correct {variable} or unset it"),
        };
        Error::new(reason, remedy).of(variable.to_owned()).found(value)
    }

    /// Returns the error for a variable that users or platforms set and that cannot be read.
    pub(crate) fn reading_setting(error: ReadError) -> Error {
        match error {
            ReadError::NotUnicode { name, value } => {
                Error::of_setting(Reason::NotUnicode, &name, &value)
            }
            other => Error::new(other.to_string(), "correct it or unset it"),
        }
    }

    /// Returns the launcher whose variables were read, if one was found.
    #[must_use]
    pub fn launcher(&self) -> Option<Launcher> {
        self.0.launcher
    }

    /// Returns the variable that is wrong or missing, if the error concerns a single one.
    #[must_use]
    pub fn variable(&self) -> Option<&str> {
        self.0.variable.as_deref()
    }

    /// Returns the variable's value as found, or `None` if it is not set.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        self.0.value.as_deref()
    }

    /// Returns what is wrong.
    #[must_use]
    pub fn reason(&self) -> &Reason {
        &self.0.reason
    }

    /// Returns what to do about the error.
    #[must_use]
    pub fn remedy(&self) -> &str {
        &self.0.remedy
    }
}

/// The longest part of a value that an error quotes, in characters.
const LONGEST_QUOTE: usize = 120;

/// Quotes a value, escapes control characters, and truncates a very long value.
#[doc(hidden)]
#[must_use]
pub fn quote(value: &str) -> String {
    match value.char_indices().nth(LONGEST_QUOTE) {
        None => format!("{value:?}"),
        Some((end, _)) => format!("{:?}...", &value[..end]),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let details = &self.0;
        // The title of `user` consists of its variables, which the text names anyway.
        if let Some(launcher) = details.launcher.filter(|launcher| *launcher != Launcher::User) {
            write!(f, "{}: ", launcher.title())?;
        }
        match (&details.variable, &details.value) {
            (Some(variable), Some(value)) => write!(f, "{variable}={}: ", quote(value))?,
            (Some(variable), None) if matches!(details.reason, Reason::Missing { .. }) => {
                write!(f, "{variable} is ")?
            }
            (Some(variable), None) => write!(f, "{variable}: ")?,
            (None, _) => {}
        }
        write!(f, "{}; {}", details.reason, details.remedy)
    }
}

// The text contains the reason, so it is not the source once more.
impl std::error::Error for Error {}
fn master_unknown(world_size: u32, why: Option<&str>) -> String {
    let text = format!(
        "the {world_size} ranks may be on several nodes, and no variable names rank 0's host"
    );
    why.map_or(text, str::to_owned)
}

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

/// The kind of an error that involves several ranks. [`ErrorKind::exit_code`] is the code that a
/// program should exit with.
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
    /// with the same codes. For a program with a group, see `mpienv::collective::CollectiveError`.
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
