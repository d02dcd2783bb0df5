//! A thread for each stream copies its lines, where a system offers no more to the standard library.

use std::io::{self, Read};
use std::process::{ChildStderr, ChildStdout};
use std::thread;

use super::lines::{Lines, Next};

/// What is read at a time, in bytes.
const READ: usize = 64 << 10;

/// Starts the threads.
#[derive(Debug)]
pub(in crate::launch) struct Copier;

/// A worker's end of a pipe.
pub(super) type Source = Box<dyn Read + Send>;

pub(super) fn stdout(from: ChildStdout) -> Source {
    Box::new(from)
}

pub(super) fn stderr(from: ChildStderr) -> Source {
    Box::new(from)
}

impl Copier {
    pub(super) fn start() -> io::Result<Copier> {
        Ok(Copier)
    }

    /// Copies what comes from there until it ends.
    pub(super) fn copy(&self, mut from: Source, mut lines: Lines) -> io::Result<()> {
        let copy = move || {
            let mut buffer = vec![0; READ];
            loop {
                lines.progress.set_idle(true);
                let read = from.read(&mut buffer);
                lines.progress.set_idle(false);
                match read {
                    Ok(0) => return,
                    Ok(length) if lines.take(&buffer[..length]) == Next::Read => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(_) | Err(_) => return,
                }
            }
        };
        thread::Builder::new().name("copy lines".to_owned()).spawn(copy).map(drop)
    }
}
