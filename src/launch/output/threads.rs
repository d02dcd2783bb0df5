//! Copies the lines of each stream in a thread, on systems where the standard library offers
//! nothing better.

use std::io::{self, Read};
use std::process::{ChildStderr, ChildStdout};
use std::thread;

use super::lines::{Lines, Next};

/// How much to read at a time, in bytes.
const READ: usize = 64 << 10;

/// Starts the threads.
#[derive(Debug)]
pub(crate) struct Copier;

/// The reading end of a worker's pipe.
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

    /// Copies lines from this source until it ends.
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
