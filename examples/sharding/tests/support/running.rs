//! A run that continues while a test acts on it.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};

/// A running process whose outputs are read continuously, so that it never waits for a reader.
pub struct Running {
    /// The process.
    pub child: Child,
    first_line: Receiver<String>,
    lines: JoinHandle<()>,
    errors: JoinHandle<String>,
}

impl Running {
    pub fn start(command: &mut Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        let (sender, first_line) = mpsc::channel();
        let lines = thread::spawn(move || {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            // Not every test receives the lines.
            let _ = sender.send(line);
            let _ = io::copy(&mut stdout, &mut io::sink());
        });
        let errors = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        Running { child, first_line, lines, errors }
    }

    /// Waits for the first line, which comes when all ranks train; returns whether there was one.
    pub fn trains(&self) -> bool {
        self.first_line.recv().is_ok_and(|line| line.starts_with("epoch: "))
    }

    /// Waits until the process exits; returns its exit code and stderr.
    pub fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        self.lines.join().unwrap();
        (status.code(), self.errors.join().unwrap())
    }
}
