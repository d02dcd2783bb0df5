//! The last lines that a worker wrote to stderr, which an error quotes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::lines::written;
use mpienv_core::seam::commands;

/// How many lines of stderr a report quotes: those of a short traceback.
const LINES: usize = 12;
/// How many of these lines an error quotes in its one line.
const LINES_OF_ERROR: usize = 3;
/// How much of a line an error quotes, in characters.
const WIDTH: usize = 300;
/// How much of a file's end is searched for its last lines, in bytes.
const BYTES: u64 = 8 << 10;

/// How many lines of other workers may follow the last line of a stderr before it counts as out of
/// sight.
const IN_SIGHT: u64 = 12;

/// The last lines of a stderr.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail {
    lines: Arc<Mutex<VecDeque<String>>>,
    /// The number of the last line among all lines that this process has written, or 0.
    number: Arc<AtomicU64>,
}

impl Tail {
    /// Returns the last lines of a file, or none if it cannot be read.
    pub(super) fn of_file(file: File) -> Tail {
        let tail = Tail::default();
        last_bytes(file)
            .unwrap_or_default()
            .split(|byte| *byte == b'\n')
            .for_each(|line| tail.keep(line));
        tail
    }

    /// Adds a line to the last ones, unless it is blank.
    pub(super) fn keep(&self, line: &[u8]) {
        // Of a progress bar, only the last state counts. Characters that control a terminal are
        // removed.
        let line = line.trim_ascii_end().rsplit(|byte| *byte == b'\r').next().unwrap_or_default();
        let start = &line[..line.len().min(4 * WIDTH)];
        let text: String =
            String::from_utf8_lossy(start).chars().filter(|c| !commands(*c)).take(WIDTH).collect();
        if text.trim().is_empty() {
            return;
        }
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(text.trim_end().to_owned());
    }

    /// Returns the last few lines joined into one.
    pub(super) fn text(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let last = lines.iter().skip(lines.len().saturating_sub(LINES_OF_ERROR));
        last.map(|line| line.trim()).collect::<Vec<_>>().join(" | ")
    }

    /// Notes that the last line was written as this number of all lines.
    pub(super) fn is_written(&self, number: u64) {
        self.number.store(number, Ordering::SeqCst);
    }

    /// Returns whether the last line was written and is still in sight, so that it need not be
    /// shown again.
    pub(super) fn is_in_sight(&self) -> bool {
        let number = self.number.load(Ordering::SeqCst);
        number > 0 && written() - number <= IN_SIGHT
    }

    /// Returns all lines that were kept.
    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

fn last_bytes(mut file: File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
    let mut bytes = Vec::new();
    file.take(BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_that_is_kept_commands_a_terminal_or_reorders_text() {
        let tail = Tail::default();
        tail.keep("\u{1b}[31mred \u{202e}back\u{2028}more\n".as_bytes());
        assert_eq!(tail.lines(), ["[31mred backmore"]);
    }
}
