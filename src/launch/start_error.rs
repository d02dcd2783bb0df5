//! Why a program was not started, and the remedy.

mod advice;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use mpienv_core::Environment;

use self::advice::{Advice, not_for_sh};

/// No such file: the same number on every Unix, and on Windows.
const ENOENT: i32 = 2;
/// No permission.
const EACCES: i32 = 13;

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
    advice: Advice,
}

impl StartError {
    /// Creates the error for a command that was not started, with the system's error.
    #[must_use]
    pub fn new(command: &Command, error: io::Error) -> StartError {
        let program = command.get_program().to_owned();
        let path = find(command);
        let is_not_found = error.kind() == io::ErrorKind::NotFound && path.is_none();
        let advice = Advice::on(command, &error, path.as_deref());
        StartError { program, error, is_not_found, advice }
    }

    /// Returns whether the program itself is missing, rather than something that it needs.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.is_not_found
    }

    /// Returns the remedy.
    #[must_use]
    pub fn remedy(&self) -> &str {
        &self.advice.remedy
    }

    /// Returns the system's error.
    #[must_use]
    pub fn into_io(self) -> io::Error {
        self.error
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot start {:?}: {}; {}", self.program, self.error, self.advice.remedy)
    }
}

// The text contains the system's error, so it is not the source once more.
impl std::error::Error for StartError {}

debug_is_text!(StartError);

/// Returns the error for a command that the system would start in a way that the user does not
/// intend.
pub fn before(command: &Command) -> Option<StartError> {
    let error = find(command).and_then(|path| not_for_sh(&path))?;
    Some(StartError::new(command, error))
}

/// Returns the error that starting the command would give, as far as its file shows.
pub fn foreseen(command: &Command) -> Option<StartError> {
    let error = match find(command) {
        None => io::Error::from_raw_os_error(ENOENT),
        Some(path) if path.is_dir() || !is_executable(&path) => {
            io::Error::from_raw_os_error(EACCES)
        }
        Some(path) => not_for_sh(&path)?,
    };
    Some(StartError::new(command, error))
}

/// Returns the words of the command that was probably meant.
pub fn meant(error: &StartError) -> Option<&[OsString]> {
    error.advice.meant.as_deref()
}

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

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}
