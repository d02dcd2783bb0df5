//! The command that was probably meant by one that cannot be started.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::Command;

use super::{ENOEXEC, find, is_executable};

/// The words to start instead, and why.
pub(super) struct Meant {
    pub(super) why: String,
    pub(super) words: Vec<OsString>,
}

/// Characters that only a shell interprets.
const OF_SHELLS: [char; 6] = ['$', '&', ';', '|', '<', '>'];

/// Characters by which a shell joins or changes words.
const OF_WORDS: [char; 8] = ['\'', '"', '\\', '`', '*', '?', '[', '~'];

/// Returns the first words of a shell that interprets the command's name.
fn of_shell(command: &Command) -> Vec<OsString> {
    let mut words = vec!["sh".into(), "-c".into(), command.get_program().to_owned()];
    if command.get_args().len() > 0 {
        words[2].push(" \"$@\"");
        words.push("sh".into());
    }
    words
}

/// Returns the command that was probably meant. `path` is the file that the system found.
pub(super) fn meant(command: &Command, error: &io::Error, path: Option<&Path>) -> Option<Meant> {
    let name = command.get_program();
    let text = name.to_string_lossy();
    let instead = |why: &str, first: Vec<OsString>| {
        let words = first.into_iter().chain(command.get_args().map(OsStr::to_owned)).collect();
        Some(Meant { why: why.to_owned(), words })
    };
    match (error.kind(), path) {
        (io::ErrorKind::NotFound, None)
            if text.contains(OF_SHELLS)
                || text.contains(char::is_whitespace) && text.contains(OF_WORDS) =>
        {
            instead("no shell interprets it: start a shell", of_shell(command))
        }
        (io::ErrorKind::NotFound, None) if text.contains(char::is_whitespace) => {
            let env = Some("env").filter(|_| is_assignment(&text));
            let words = env.into_iter().chain(text.split_whitespace()).map(OsString::from);
            instead("it is one word with blanks: omit the quotes", words.collect())
        }
        (io::ErrorKind::NotFound, None) if is_assignment(&text) => {
            instead("it is an assignment: put env before it", vec!["env".into(), name.to_owned()])
        }
        (io::ErrorKind::NotFound, None) if Path::new(name).is_file() => {
            let path = Path::new(".").join(name);
            let is_program = is_executable(&path) && not_for_sh(&path).is_none();
            let first = match interpreter(&path).filter(|_| !is_program) {
                Some(interpreter) => vec![interpreter, name.to_owned()],
                None => vec![path.into_os_string()],
            };
            instead(
                "it is in this folder, which is not on PATH: name the folder or the interpreter",
                first,
            )
        }
        (io::ErrorKind::NotFound, None) if text == "python" && is_on_path("python3") => {
            instead("this host has python3: use that name", vec!["python3".into()])
        }
        (io::ErrorKind::PermissionDenied, Some(path)) if path.is_file() && !is_executable(path) => {
            let interpreter = interpreter(path)?;
            let why = format!(
                "it is not executable: chmod +x {}, or name the interpreter",
                path.display()
            );
            instead(&why, vec![interpreter, path.into()])
        }
        _ if error.raw_os_error() == Some(ENOEXEC) => {
            let path = path?;
            let why = "its first line names no interpreter: write a line like #!/usr/bin/env python3, or name the \
                       interpreter";
            instead(why, vec![interpreter(path)?, path.into()])
        }
        _ => None,
    }
}

/// Returns the error for a Python script whose first line names no interpreter. The system would
/// start it with sh.
pub(super) fn not_for_sh(path: &Path) -> Option<io::Error> {
    let is_python = path.extension().is_some_and(|extension| extension == "py");
    if !is_python || !is_executable(path) {
        return None;
    }
    let mut head = Vec::new();
    File::open(path).and_then(|file| file.take(4).read_to_end(&mut head)).ok()?;
    let is_program = head.starts_with(b"#!") || head.starts_with(b"\x7fELF");
    (!is_program).then(|| io::Error::from_raw_os_error(ENOEXEC))
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
