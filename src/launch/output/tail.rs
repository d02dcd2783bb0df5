//! The last lines that a worker wrote, which an error quotes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use super::lines::written;
use mpienv_core::seam::commands;

/// How many lines of stderr a report quotes: those of a short traceback.
const LINES: usize = 12;
/// How much of a line an error quotes, in characters.
const WIDTH: usize = 300;
/// How much of a file's end is searched for its last lines, in bytes.
const BYTES: u64 = 8 << 10;

/// How many lines of other workers may follow the last line of a stderr before it counts as out of
/// sight.
const IN_SIGHT: u64 = 12;

/// The last lines of a stream.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// As they were written: few of them are ever shown.
    lines: VecDeque<Vec<u8>>,
    /// The number of the last line among all lines that this process has written, or 0.
    pub(super) number: u64,
}

impl Tail {
    /// Returns the last lines of a file, or none if it cannot be read.
    pub(super) fn of_file(file: File) -> Tail {
        let mut tail = Tail::default();
        let bytes = last_bytes(file).unwrap_or_default();
        bytes.split(|byte| *byte == b'\n').for_each(|line| tail.keep(line));
        tail
    }

    /// Adds a line to the last ones, unless it is blank. This is cheap, because it is done for
    /// every line.
    pub(super) fn keep(&mut self, line: &[u8]) {
        let line = shown(line);
        if text(line).is_empty() {
            return;
        }
        let oldest = if self.lines.len() == LINES { self.lines.pop_front() } else { None };
        let mut kept = oldest.unwrap_or_default();
        kept.clear();
        kept.extend_from_slice(line);
        self.lines.push_back(kept);
    }

    /// Returns the last line.
    pub(super) fn last(&self) -> Option<String> {
        self.lines.back().map(|line| text(line))
    }

    /// Returns whether the last line was written and is still in sight, so that it need not be
    /// shown again.
    pub(super) fn is_in_sight(&self) -> bool {
        !self.lines.is_empty() && self.number > 0 && written() - self.number <= IN_SIGHT
    }

    /// Returns all lines that were kept.
    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.iter().map(|line| text(line)).collect()
    }
}

/// Returns the part of a line that is shown. Of a progress bar, only the last state counts.
fn shown(line: &[u8]) -> &[u8] {
    let line = line.trim_ascii_end().rsplit(|byte| *byte == b'\r').next().unwrap_or_default();
    &line[..line.len().min(4 * WIDTH)]
}

/// Returns a line without characters that control a terminal.
fn text(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let text: String = text.chars().filter(|c| !commands(*c)).take(WIDTH).collect();
    text.trim_end().to_owned()
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
        let mut tail = Tail::default();
        tail.keep("\u{1b}[31mred \u{202e}back\u{2028}more\n".as_bytes());
        assert_eq!(tail.lines(), ["[31mred backmore"]);
    }
}
