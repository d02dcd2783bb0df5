//! Copies the lines of each stream in a thread, on systems where the standard library offers
//! nothing better.

use std::io::{self, Read};

use super::lines::Lines;
use crate::launch::thread::small_thread;

/// How much to read at a time, in bytes.
const READ: usize = 64 << 10;

/// Starts the threads.
#[derive(Debug)]
pub(crate) struct Copier;

impl Copier {
    pub(super) fn start() -> io::Result<Copier> {
        Ok(Copier)
    }

    /// Copies lines from this pipe until it ends.
    pub(super) fn copy(
        &self,
        mut from: impl Read + Send + 'static,
        mut lines: Lines,
    ) -> io::Result<()> {
        let copy = move || {
            let mut buffer = vec![0; READ];
            loop {
                lines.progress.set_idle(true);
                let read = from.read(&mut buffer);
                lines.progress.set_idle(false);
                match read {
                    Ok(0) => return,
                    Ok(length) if lines.take(&buffer[..length]).is_continue() => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(_) | Err(_) => return,
                }
            }
        };
        small_thread("copy lines")?.spawn(copy).map(drop)
    }
}
