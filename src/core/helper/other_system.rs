//! Outside Unix, no program is asked.

use std::io;
use std::process::{Command, ExitStatus};
use std::time::Instant;

/// What a program printed, and how it ended.
#[derive(Debug)]
pub struct Printed {
    /// How it ended.
    pub status: Option<ExitStatus>,
    /// What it had printed on stdout.
    pub stdout: Vec<u8>,
    /// What it had printed on stderr.
    pub stderr: Vec<u8>,
}

/// A program, of which there is none.
#[derive(Debug)]
pub enum Helper {}

impl Helper {
    /// Starts nothing.
    ///
    /// # Errors
    /// The system is not asked.
    pub fn start(_command: &mut Command, _input: &[u8]) -> io::Result<Helper> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Cannot be called.
    pub fn finish(self, _deadline: Instant) -> Printed {
        match self {}
    }
}
