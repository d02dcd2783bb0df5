//! Why a program was not started, and the remedy.

mod meant;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::environment::Environment;

use self::meant::Meant;

/// How much of a file is read to find out what it is: more than the first line that Linux reads.
const HEAD: u64 = 512;
/// Too many open files in this process, too many on this host, and a file that is neither a program
/// nor a script. All Unix systems use these numbers, and the standard library has no names for
/// them.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;
const ENOEXEC: i32 = 8;

/// Why a program was not started: the system's error, and a remedy that fits the cause.
///
/// ```
/// use std::process::Command;
/// use mpienv::StartError;
///
/// let mut command = Command::new("no-such-program");
/// let said = command.spawn().unwrap_err();
/// let error = StartError::new(&command, said);
/// assert!(error.is_not_found());
/// assert_eq!(error.remedy(), "check that it is installed on this host and on PATH");
/// assert!(error.to_string().starts_with("cannot start \"no-such-program\": "));
/// assert_eq!(error.into_io().kind(), std::io::ErrorKind::NotFound);
/// ```
pub struct StartError {
    program: OsString,
    error: io::Error,
    is_not_found: bool,
    remedy: String,
    /// The words of the command that was probably meant.
    meant: Option<Vec<OsString>>,
}

impl StartError {
    /// Creates the error for a command that was not started, with the system's error.
    #[must_use]
    pub fn new(command: &Command, error: io::Error) -> StartError {
        let program = command.get_program().to_owned();
        let path = find(command);
        let is_not_found = error.kind() == io::ErrorKind::NotFound && path.is_none();
        let (remedy, meant) = match meant::meant(command, &error, path.as_deref()) {
            Some(Meant { why, words }) => (why, Some(words)),
            None => (remedy(&error, path.as_deref()), None),
        };
        StartError { program, error, is_not_found, remedy, meant }
    }

    /// Returns the error for a command that the system would start in a way that the user does not
    /// intend.
    #[cfg(unix)]
    pub(crate) fn before(command: &Command) -> Option<StartError> {
        let error = find(command).and_then(|path| meant::not_for_sh(&path))?;
        Some(StartError::new(command, error))
    }

    /// Returns the error that starting the command would give, as far as its file shows.
    pub(crate) fn foreseen(command: &Command) -> Option<StartError> {
        let error = match find(command) {
            None => io::ErrorKind::NotFound.into(),
            Some(path) if !is_executable(&path) => io::ErrorKind::PermissionDenied.into(),
            Some(path) => meant::not_for_sh(&path)?,
        };
        Some(StartError::new(command, error))
    }

    /// Returns the words of the command that was probably meant.
    pub(crate) fn meant(&self) -> Option<&[OsString]> {
        self.meant.as_deref()
    }

    /// Returns whether the program itself is missing, rather than something that it needs.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.is_not_found
    }

    /// Returns the remedy.
    #[must_use]
    pub fn remedy(&self) -> &str {
        &self.remedy
    }

    /// Returns the system's error.
    #[must_use]
    pub fn into_io(self) -> io::Error {
        self.error
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot start {:?}: {}; {}", self.program, self.error, self.remedy)
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

debug_is_text!(StartError);

/// Returns the file that the system would start, if there is one.
pub(crate) fn find(command: &Command) -> Option<PathBuf> {
    let name = Path::new(command.get_program());
    if name.components().count() != 1 || command.get_program().as_encoded_bytes().contains(&b'/') {
        let folder = command.get_current_dir().unwrap_or(Path::new(""));
        return Some(folder.join(name)).filter(|path| path.exists());
    }
    let given = command.get_envs().find(|(name, _)| *name == OsStr::new("PATH"));
    let path = match given {
        Some((_, path)) => path.map(OsStr::to_owned),
        None => Environment::current().get("PATH").map(OsStr::to_owned),
    };
    std::env::split_paths(&path?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn remedy(error: &io::Error, path: Option<&Path>) -> String {
    let by_number = match error.raw_os_error() {
        Some(EMFILE) => Some("this process cannot open more files: raise its limit (ulimit -n)"),
        Some(ENFILE) => Some("this host cannot open more files: raise its limit (fs.file-max)"),
        Some(ENOEXEC) => Some(
            "it is neither a program for this machine nor a script: check its architecture with `file`, or start it \
             with a line like #!/bin/sh",
        ),
        _ => None,
    };
    let text = match (error.kind(), path) {
        _ if by_number.is_some() => by_number.unwrap_or_default(),
        (io::ErrorKind::NotFound, None) => "check that it is installed on this host and on PATH",
        (io::ErrorKind::NotFound, Some(path)) => return what_it_needs(path),
        (io::ErrorKind::PermissionDenied, Some(path)) if path.is_dir() => {
            "it is a folder: choose a program in it"
        }
        (io::ErrorKind::PermissionDenied, Some(path)) if !is_executable(path) => {
            return format!("it is not executable: chmod +x {}", path.display());
        }
        (io::ErrorKind::PermissionDenied, _) => {
            "check the permissions of its folders and of the interpreter in its first line, and whether its file system is \
             mounted noexec"
        }
        (io::ErrorKind::ArgumentListTooLong, _) => {
            "its arguments and variables are longer than the system allows, one of them or all together (getconf ARG_MAX, \
             ulimit -s): shorten them, or pass them in a file"
        }
        (io::ErrorKind::WouldBlock, _) => {
            "no more processes can be started: raise the limit of this user (ulimit -u) or of the container (pids.max), or \
             start fewer"
        }
        (io::ErrorKind::OutOfMemory, _) => {
            "there is not enough memory: raise the limit (ulimit -v), or start fewer"
        }
        (io::ErrorKind::ExecutableFileBusy, _) => {
            "another process is writing to it: try again later"
        }
        _ => "check its path, its permissions and its first line",
    };
    text.to_owned()
}

/// Names the file that the system did not find, although the program itself exists.
fn what_it_needs(path: &Path) -> String {
    let mut head = Vec::new();
    // An unreadable file is treated as empty.
    let _ = File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    let Some(line) = head.strip_prefix(b"#!") else {
        return "its dynamic loader is not on this host, because it was built for another C library or CPU (`file` shows \
                which)"
            .to_owned();
    };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let interpreter = String::from_utf8_lossy(line.trim_ascii()).into_owned();
    let interpreter = interpreter.split_ascii_whitespace().next().unwrap_or_default();
    if line.ends_with(b"\r") {
        return format!(
            "its first line ends with a carriage return, as on Windows, so the system looks for \
             \"{interpreter}\\r\": sed -i 's/\\r$//' {}",
            path.display()
        );
    }
    format!(
        "its first line names the interpreter {interpreter:?}, which is not on this host: install it, or correct the line"
    )
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(_: &Path) -> bool {
    true
}
