//! Writes a run's metrics as JSON lines, for programs to read.
//!
//! A step line is `{"epoch", "step", "loss"}`, with the loss of rank 0's own samples. An epoch line
//! is `{"epoch", "train_loss", "test_loss", "test_accuracy", "samples_per_second", "seconds"}`, for
//! all ranks.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::checkpoint::Position;
use crate::train::{Epoch, Report, Step};
use mpienv_sharding::file::{self, naming};

/// A file of JSON lines, written without buffering.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    /// Whether the run is resumed, and an existing file's lines are kept.
    resume: bool,
    /// Open once the run begins.
    file: Option<File>,
}

impl Metrics {
    /// Creates metrics for the file at `path`, whose lines are kept if the run is to `resume`. The
    /// file stays unchanged until [`Report::begin`].
    pub fn new(path: &Path, resume: bool) -> io::Result<Metrics> {
        match file::place_of(path)? {
            place if place.exists() => drop(options(resume).open(path).map_err(naming(path))?),
            _ => file::check(path)?,
        }
        Ok(Metrics { path: path.to_owned(), resume, file: None })
    }

    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        let file = self.file.as_mut().ok_or_else(|| io::Error::other("the run has not begun"))?;
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        // A single write, so that a program following the file never sees a partial line.
        file.write_all(&bytes).map_err(naming(&self.path))
    }
}

/// How the file is opened: only a resumed run reads it.
fn options(resume: bool) -> OpenOptions {
    let mut options = File::options();
    options.append(true).read(resume);
    options
}

/// The length of a file's complete lines. A full disk may have cut off the last one.
fn whole_lines(file: &File) -> io::Result<u64> {
    let (mut file, mut line, mut length) = (BufReader::new(file), Vec::new(), 0);
    while file.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        length += line.len() as u64;
        line.clear();
    }
    Ok(length)
}

impl Report for Metrics {
    fn begin(&mut self, _start: Position) -> io::Result<()> {
        // The path may have become something else since it was checked.
        file::place_of(&self.path)?;
        let named = naming(&self.path);
        let file = options(self.resume).create(true).open(&self.path).map_err(named)?;
        let kept = if self.resume { whole_lines(&file) } else { Ok(0) };
        kept.and_then(|kept| file.set_len(kept)).map_err(named)?;
        self.file = Some(file);
        Ok(())
    }

    fn step(&mut self, step: &Step) -> io::Result<()> {
        self.line(step)
    }

    fn epoch(&mut self, epoch: &Epoch) -> io::Result<()> {
        self.line(epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn lines_are_there_at_once_and_have_the_promised_fields() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.jsonl");
        fs::write(&path, "of a run before\n").unwrap();
        let mut metrics = Metrics::new(&path, false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "of a run before\n");
        metrics.begin(Position::default()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        metrics.step(&Step { epoch: 0, step: 10, loss: 2.341_347_2 }).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "{\"epoch\":0,\"step\":10,\"loss\":2.3413472}\n"
        );
        let epoch = Epoch {
            epoch: 0,
            train_loss: 0.5,
            test_loss: 0.25,
            test_accuracy: 0.9089,
            samples_per_second: 1.5e6,
            seconds: 0.04,
        };
        metrics.epoch(&epoch).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text.lines().nth(1).unwrap(),
            "{\"epoch\":0,\"train_loss\":0.5,\"test_loss\":0.25,\"test_accuracy\":0.9089,\"samples_per_second\":1500000.0,\"seconds\":0.04}"
        );
    }

    #[test]
    fn a_run_that_goes_on_keeps_the_lines_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.jsonl");
        for (step, torn) in [(0, "{\"epoch"), (10, "")] {
            let mut metrics = Metrics::new(&path, true).unwrap();
            metrics.begin(Position::default()).unwrap();
            metrics.step(&Step { epoch: 0, step, loss: 0.5 }).unwrap();
            // A line that a full disk cut off goes.
            metrics.file.unwrap().write_all(torn.as_bytes()).unwrap();
        }
        let lines =
            "{\"epoch\":0,\"step\":0,\"loss\":0.5}\n{\"epoch\":0,\"step\":10,\"loss\":0.5}\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), lines);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let error =
            Metrics::new(Path::new("/no/such/folder/m.jsonl"), false).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/folder/m.jsonl: No such file or directory"), "{error}");
    }
}
