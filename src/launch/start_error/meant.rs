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

/// Returns the command that was probably meant. `path` is the file that the system found.
pub(super) fn meant(command: &Command, error: &io::Error, path: Option<&Path>) -> Option<Meant> {
    let name = command.get_program();
    let text = name.to_string_lossy();
    let instead = |why: &str, first: Vec<OsString>| {
        let words = first.into_iter().chain(command.get_args().map(OsStr::to_owned)).collect();
        Some(Meant { why: why.to_owned(), words })
    };
    match (error.kind(), path) {
        (io::ErrorKind::NotFound, None) if text.contains(OF_SHELLS) => {
            instead("no shell interprets it: start a shell", vec!["sh".into(), "-c".into(), name.to_owned()])
        }
        (io::ErrorKind::NotFound, None) if text.contains(char::is_whitespace) => instead(
            "it is one word with blanks: omit the quotes",
            text.split_whitespace().map(OsString::from).collect(),
        ),
        (io::ErrorKind::NotFound, None) if text.contains('=') && !text.contains('/') => {
            instead("it is an assignment: put env before it", vec!["env".into(), name.to_owned()])
        }
        (io::ErrorKind::NotFound, None) if Path::new(name).is_file() => {
            let first = match interpreter(Path::new(name)) {
                Some(interpreter) => vec![interpreter, name.to_owned()],
                None => vec![Path::new(".").join(name).into_os_string()],
            };
            instead("it is in this folder, which is not on PATH: name the folder or the interpreter", first)
        }
        (io::ErrorKind::NotFound, None) if text == "python" && is_on_path("python3") => {
            instead("this host has python3: use that name", vec!["python3".into()])
        }
        (io::ErrorKind::PermissionDenied, Some(path)) if path.is_file() && !is_executable(path) => {
            let interpreter = interpreter(path)?;
            let why = format!("it is not executable: chmod +x {}, or name the interpreter", path.display());
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

/// Returns the error for a Python script whose first line names no interpreter. The system would start it with sh.
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
