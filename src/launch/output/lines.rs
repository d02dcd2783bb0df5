//! Turns a worker's bytes into whole lines of this process's stdout or stderr, with the worker's
//! name before each.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::Faults;
use super::tail::Tail;
use crate::running::Role;

/// The longest line that is kept whole, in bytes, so that no program can fill the memory.
const LONGEST_LINE: usize = 16 << 20;
/// The pause before writing again to a non-blocking output that is full.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// Locked while a line is written, because stdout and stderr may be the same terminal.
static WRITING: Mutex<()> = Mutex::new(());

/// How many lines this process has written.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// Returns how many lines of workers this process has written.
pub(super) fn written() -> u64 {
    WRITTEN.load(Ordering::SeqCst)
}

/// Where lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sink {
    Stdout,
    Stderr,
}

impl Sink {
    fn name(self) -> &'static str {
        match self {
            Sink::Stdout => "stdout",
            Sink::Stderr => "stderr",
        }
    }

    fn write(self, line: &[u8]) -> io::Result<()> {
        match self {
            Sink::Stdout => write(&mut io::stdout(), line),
            Sink::Stderr => write(&mut io::stderr(), line),
        }
    }
}

/// How far one stream of a worker has been copied.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    is_finished: AtomicBool,
    /// Whether the copier is waiting for more of the stream.
    is_idle: AtomicBool,
    /// How many bytes have been read.
    bytes: AtomicU64,
    tail: Mutex<Tail>,
}

impl Progress {
    pub(super) fn is_finished(&self) -> bool {
        self.is_finished.load(Ordering::SeqCst)
    }

    /// Returns whether there is nothing to write now.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_finished() || self.is_idle.load(Ordering::SeqCst)
    }

    pub(super) fn set_idle(&self, is_idle: bool) {
        self.is_idle.store(is_idle, Ordering::SeqCst);
    }

    /// Returns how many bytes have been read.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    pub(super) fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lines of one stream of a worker. Dropped once all have been copied.
#[derive(Debug)]
pub(super) struct Lines {
    prefix: String,
    /// The prefix, and the part of the current line that has arrived.
    line: Vec<u8>,
    sink: Sink,
    faults: Faults,
    /// Whether writing has failed. The rest is then read and dropped until the worker is stopped,
    /// so that the worker neither blocks nor gets the blame.
    has_failed: bool,
    pub(super) progress: Arc<Progress>,
}

impl Lines {
    pub(super) fn new(role: Role, sink: Sink, faults: &Faults) -> Lines {
        let prefix = format!("[{role}] ");
        let line = prefix.clone().into_bytes();
        let (faults, progress) = (faults.clone(), Arc::default());
        Lines { prefix, line, sink, faults, has_failed: false, progress }
    }

    /// Takes bytes as they arrive, and writes the lines that they complete. Breaks off if the
    /// output has no reader, which the worker must notice.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> ControlFlow<()> {
        self.progress.bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        while !bytes.is_empty() && !self.has_failed {
            let end = bytes.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
            let length = end.unwrap_or(bytes.len());
            // One more byte for the line end.
            let is_too_long =
                self.length() + length > LONGEST_LINE || self.line.try_reserve(length + 1).is_err();
            if is_too_long && self.length() > 0 {
                // What does not fit begins another line.
                self.end_line()?;
                continue;
            }
            self.line.extend_from_slice(&bytes[..length]);
            bytes = &bytes[length..];
            if end.is_some() {
                self.end_line()?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns how much of the current line has arrived.
    fn length(&self) -> usize {
        self.line.len() - self.prefix.len()
    }

    fn end_line(&mut self) -> ControlFlow<()> {
        self.progress.tail().keep(&self.line[self.prefix.len()..]);
        if !self.line.ends_with(b"\n") {
            self.line.push(b'\n');
        }
        let whole = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let written = self.sink.write(&self.line);
        if written.is_ok() {
            let number = WRITTEN.fetch_add(1, Ordering::SeqCst) + 1;
            self.progress.tail().number = number;
        }
        drop(whole);
        self.line.truncate(self.prefix.len());
        let Err(error) = written else { return ControlFlow::Continue(()) };
        self.has_failed = true;
        self.faults.add(self.sink.name(), error)
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if self.length() > 0 && !self.has_failed {
            // The stream has ended, whether or not the line could be written.
            let _ = self.end_line();
        }
        self.progress.is_finished.store(true, Ordering::SeqCst);
    }
}

/// Writes all bytes, even to an output that another process has made non-blocking.
fn write(to: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(length) => bytes = &bytes[length..],
            Err(error) => pause(error)?,
        }
    }
    while let Err(error) = to.flush() {
        pause(error)?;
    }
    Ok(())
}

/// Waits if that helps, and otherwise returns the error.
fn pause(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock => {
            thread::sleep(FULL_PAUSE);
            Ok(())
        }
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts a few bytes at a time, and often none.
    struct Narrow {
        taken: Vec<u8>,
        turn: usize,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.turn += 1;
            if self.turn.is_multiple_of(2) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let length = bytes.len().min(3);
            self.taken.extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.turn += 1;
            if self.turn.is_multiple_of(2) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        }
    }

    #[test]
    fn a_writer_that_would_block_gets_every_byte() {
        let mut to = Narrow { taken: Vec::new(), turn: 0 };
        write(&mut to, b"one line\n").unwrap();
        write(&mut to, b"another\n").unwrap();
        assert_eq!(to.taken, b"one line\nanother\n");
    }
}
