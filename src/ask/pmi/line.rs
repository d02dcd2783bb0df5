//! One line of PMI-1: `cmd=get_result rc=0 msg=success value=...`.

use super::{FORM, PmiError};
use mpienv_core::error::quote;

/// The longest line that is accepted, in bytes. Servers announce values of at most a few kilobytes.
pub(super) const LONGEST: usize = 1 << 16;

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Line {
    request: &'static str,
    text: String,
}

impl Line {
    /// Checks that these bytes are the line that answers this request with this command.
    pub(super) fn new(
        request: &'static str,
        expected: &str,
        bytes: &[u8],
    ) -> Result<Line, PmiError> {
        // Flux' names of jobs begin with ƒ, so a store's name may be more than ASCII.
        let text = String::from_utf8_lossy(bytes).into_owned();
        let line = Line { request, text };
        if line.text.as_bytes() != bytes || line.text.contains(char::is_control) {
            return Err(line.malformed("not printable text"));
        }
        match line.find("cmd") {
            Some(command) if command == expected => Ok(line),
            _ => Err(line.malformed("not the answer to this request")),
        }
    }

    /// Returns the value of a key, or `None` if the line does not have it.
    pub(super) fn find(&self, key: &str) -> Option<&str> {
        let mut pairs = self.text.split(' ').filter_map(|word| word.split_once('='));
        pairs.find(|(found, _)| *found == key).map(|(_, value)| value)
    }

    /// Returns the value of a key that the line must have.
    pub(super) fn get(&self, key: &str, why: &'static str) -> Result<&str, PmiError> {
        self.find(key).filter(|value| !value.is_empty()).ok_or_else(|| self.malformed(why))
    }

    /// Returns a number that the line must have.
    pub(super) fn number(&self, key: &str, why: &'static str) -> Result<usize, PmiError> {
        let text = self.get(key, why)?;
        let number = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        number.and_then(|text| text.parse().ok()).ok_or_else(|| self.malformed(why))
    }

    /// Returns the return code, which is 0 for success.
    pub(super) fn code(&self) -> Result<i32, PmiError> {
        let why = "it has no return code";
        self.get("rc", why)?.parse().map_err(|_| self.malformed(why))
    }

    pub(super) fn malformed(&self, why: &'static str) -> PmiError {
        // What rank 0 stores has the job's secret.
        let shown = self.text.split(FORM).next().unwrap_or_default();
        PmiError::Malformed { request: self.request, answer: quote(shown), why }
    }
}
