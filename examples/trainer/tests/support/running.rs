//! A run that is under way while a test does something to it.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

/// A process under way, whose outputs are read all the time so that it never waits for a reader.
pub struct Running {
    /// The process.
    pub child: Child,
    lines: JoinHandle<()>,
    errors: JoinHandle<String>,
}

impl Running {
    /// Starts a process; with `first_line` waits until it has written one, when all ranks train.
    pub fn start(command: &mut Command, first_line: bool) -> Running {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        if first_line {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            assert!(line.starts_with("epoch: "), "{line}");
        }
        let lines = thread::spawn(move || drop(io::copy(&mut stdout, &mut io::sink())));
        let errors = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        Running { child, lines, errors }
    }

    /// Waits for the end: exit code and what was said on stderr.
    pub fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        self.lines.join().unwrap();
        (status.code(), self.errors.join().unwrap())
    }
}
