//! Why a program was not started, the remedy, and the command that was probably meant.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;

use mpienv_core::Environment;

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
        let (remedy, meant) = advice(command, &error, path.as_deref());
        StartError { program, error, is_not_found, remedy, meant }
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
    let error: io::Error = match find(command) {
        None => Errno::NOENT.into(),
        Some(path) if path.is_dir() || !is_executable(&path) => Errno::ACCESS.into(),
        Some(path) => not_for_sh(&path)?,
    };
    Some(StartError::new(command, error))
}

/// Returns the words of the command that was probably meant.
pub fn meant(error: &StartError) -> Option<&[OsString]> {
    error.meant.as_deref()
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
    // Without the variable, the C library looks there.
    let path = path.unwrap_or_else(|| "/bin:/usr/bin".into());
    let files = std::env::split_paths(&path).map(|folder| folder.join(name));
    let files: Vec<_> = files.filter(|path| path.is_file()).collect();
    // The C library goes on after a file that is not executable.
    files.iter().find(|path| is_executable(path)).or(files.first()).cloned()
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}

/// How much of a file is read to find out what it is: more than the first line that Linux reads.
const HEAD: u64 = 512;

/// Characters that only a shell interprets.
const OF_SHELLS: [char; 6] = ['$', '&', ';', '|', '<', '>'];

/// Characters by which a shell joins or changes words.
const OF_WORDS: [char; 8] = ['\'', '"', '\\', '`', '*', '?', '[', '~'];

/// Returns what to do about a command that was not started, and the words of the command that was
/// probably meant. `path` is the file that the system found.
fn advice(
    command: &Command,
    error: &io::Error,
    path: Option<&Path>,
) -> (String, Option<Vec<OsString>>) {
    let meant = match (error.kind(), path) {
        (ErrorKind::NotFound, None) => not_found(command),
        (ErrorKind::PermissionDenied, Some(path)) if path.is_file() && !is_executable(path) => {
            let chmod = format!(
                "it is not executable: if it is your program, run `chmod +x {}`",
                path.display()
            );
            let Some(interpreter) = interpreter(path) else { return (chmod, None) };
            Some((format!("{chmod}, or name the interpreter"), vec![interpreter, path.into()]))
        }
        (_, Some(path)) if Errno::from_io_error(error) == Some(Errno::NOEXEC) => {
            let why = "its first line names no interpreter: write a line like \
                       #!/usr/bin/env python3, or name the interpreter";
            interpreter(path).map(|name| (why.to_owned(), vec![name, path.into()]))
        }
        _ => None,
    };
    match meant {
        Some((remedy, mut words)) => {
            words.extend(command.get_args().map(OsStr::to_owned));
            (remedy, Some(words))
        }
        None => (remedy(error, path), None),
    }
}

/// Returns why a command whose file was not found was probably not meant, and the first words of
/// the one that was.
fn not_found(command: &Command) -> Option<(String, Vec<OsString>)> {
    let name = command.get_program();
    let text = name.to_string_lossy();
    let has_blanks = text.contains(char::is_whitespace);
    let (why, words) = if text.contains(OF_SHELLS) || has_blanks && text.contains(OF_WORDS) {
        ("no shell interprets it: start a shell", of_shell(command))
    } else if has_blanks {
        let env = is_assignment(&text).then_some("env");
        let words = env.into_iter().chain(text.split_whitespace()).map(OsString::from);
        ("it is one word with blanks: omit the quotes", words.collect())
    } else if is_assignment(&text) {
        ("it is an assignment: put env before it", vec!["env".into(), name.to_owned()])
    } else if Path::new(name).is_file() {
        let path = Path::new(".").join(name);
        let is_program = is_executable(&path) && not_for_sh(&path).is_none();
        let words = match interpreter(&path).filter(|_| !is_program) {
            Some(interpreter) => vec![interpreter, name.to_owned()],
            None => vec![path.into_os_string()],
        };
        ("it is in this folder, which is not on PATH: name the folder or the interpreter", words)
    } else if text == "python" && is_on_path("python3") {
        ("this host has python3: use that name", vec!["python3".into()])
    } else {
        return None;
    };
    Some((why.to_owned(), words))
}

/// Returns the first words of a shell that interprets the command's name.
fn of_shell(command: &Command) -> Vec<OsString> {
    let mut words = vec!["sh".into(), "-c".into(), command.get_program().to_owned()];
    if command.get_args().len() > 0 {
        words[2].push(" \"$@\"");
        words.push("sh".into());
    }
    words
}

fn remedy(error: &io::Error, path: Option<&Path>) -> String {
    let text = match (error.kind(), path) {
        _ if Errno::from_io_error(error) == Some(Errno::MFILE) => {
            "this process cannot open more files: raise its limit (ulimit -n)"
        }
        _ if Errno::from_io_error(error) == Some(Errno::NFILE) => {
            "this host cannot open more files: raise its limit (fs.file-max)"
        }
        _ if Errno::from_io_error(error) == Some(Errno::NOEXEC) => {
            "it is neither a program for this machine nor a script: check its architecture with \
             `file`, or start it with a line like #!/bin/sh"
        }
        (ErrorKind::NotFound, None) => "check that it is installed on this host and on PATH",
        (ErrorKind::NotFound, Some(path)) => return what_it_needs(path),
        (ErrorKind::PermissionDenied, Some(path)) if path.is_dir() => {
            "it is a folder: choose a program in it"
        }
        (ErrorKind::PermissionDenied, _) => {
            "check the permissions of its folders and of the interpreter in its first line, and \
             whether its file system is mounted noexec"
        }
        (ErrorKind::ArgumentListTooLong, _) => {
            "its arguments and variables are longer than the system allows, one of them or all \
             together (getconf ARG_MAX, ulimit -s): shorten them, or pass them in a file"
        }
        (ErrorKind::WouldBlock, _) => {
            "no more processes can be started: raise the limit of this user (ulimit -u) or of the \
             container (pids.max), or start fewer"
        }
        (ErrorKind::OutOfMemory, _) => {
            "there is not enough memory: raise the limit (ulimit -v), or start fewer"
        }
        (ErrorKind::ExecutableFileBusy, _) => "another process is writing to it: try again later",
        _ => "check its path, its permissions and its first line",
    };
    text.to_owned()
}

/// Names the file that the system did not find, although the program itself exists.
fn what_it_needs(path: &Path) -> String {
    // An unreadable file is treated as empty.
    let head = head(path).unwrap_or_default();
    let Some(line) = head.strip_prefix(b"#!") else {
        return "its dynamic loader is not on this host, because it was built for another C library \
                or CPU (`file` shows which)"
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
        "its first line names the interpreter {interpreter:?}, which is not on this host: install \
         it, or correct the line"
    )
}

/// Returns the error for a Python script whose first line names no interpreter. The system would
/// start it with sh.
fn not_for_sh(path: &Path) -> Option<io::Error> {
    let is_python = path.extension().is_some_and(|extension| extension == "py");
    if !is_python || !is_executable(path) {
        return None;
    }
    let head = head(path).ok()?;
    let is_program = head.starts_with(b"#!") || head.starts_with(b"\x7fELF");
    (!is_program).then(|| Errno::NOEXEC.into())
}

fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path)?.take(HEAD).read_to_end(&mut head)?;
    Ok(head)
}

/// Returns whether a shell would read an assignment at the start.
fn is_assignment(text: &str) -> bool {
    let name = text.split_once('=').map_or("", |(name, _)| name);
    name.starts_with(|c: char| !c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Returns the program that runs scripts with this file's extension.
fn interpreter(path: &Path) -> Option<OsString> {
    let name = match path.extension()?.to_str()? {
        "py" if is_on_path("python") => "python",
        "py" => "python3",
        "sh" => "sh",
        _ => return None,
    };
    Some(name.into())
}

fn is_on_path(name: &str) -> bool {
    find(&Command::new(name)).is_some()
}
