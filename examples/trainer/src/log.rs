//! Human-readable progress: a summary of each epoch, and the tutorial's step lines if asked for.

use std::io::{self, Write};
use std::path::Path;

use mpienv::Rank;

use crate::checkpoint::Position;
use crate::stop::{Signal, Stop};
use crate::train::{Epoch, Report, Step};
use mpienv_sharding::file::naming;

/// Writes a run's progress to `out` and forwards every event to the other reports.
pub struct Log<W> {
    pub out: W,
    /// Only rank 0 writes the epochs. Every rank writes its own steps.
    pub rank: Rank,
    /// The last epoch, and the test accuracy after it.
    pub last: Option<(u32, f64)>,
    /// Whether to write the steps too.
    pub log_steps: bool,
    /// The metrics, the plot and the progress bar; on rank 0 only.
    pub others: Vec<Box<dyn Report>>,
    /// Raised when the reader of `out` exits. If this rank exited immediately, the others would
    /// report it as lost.
    pub stop: Stop,
    /// Whether the reader of `out` has exited.
    pub reader_gone: bool,
}

impl<W: Write> Log<W> {
    /// Writes a line with a single write, so that the lines of ranks that share a terminal stay
    /// apart.
    fn line(&mut self, line: &str) -> io::Result<()> {
        if self.reader_gone {
            return Ok(());
        }
        let out = &mut self.out;
        let mut write = || out.write_all(line.as_bytes()).and_then(|()| out.flush());
        // The progress bar, if any, is the last report.
        let written = match self.others.last_mut() {
            Some(other) => other.aside(&mut write),
            None => write(),
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.reader_gone = true;
                self.stop.raise(Signal::Pipe);
                Ok(())
            }
            written => written.map_err(naming(Path::new("stdout"))),
        }
    }
}

impl<W: Write> Report for Log<W> {
    fn begin(&mut self, start: Position) -> io::Result<()> {
        self.others.iter_mut().try_for_each(|other| other.begin(start))
    }

    fn step(&mut self, step: &Step) -> io::Result<()> {
        if self.log_steps {
            let Step { epoch, step, loss } = step;
            let (rank, size) = (self.rank.index(), self.rank.size());
            // The tutorial's line. With several ranks, the prefix tells the ranks' lines apart.
            let prefix = if size > 1 { format!("rank {rank} of {size}: ") } else { String::new() };
            self.line(&format!("{prefix}epoch: {epoch}, step: {step}, loss is {loss}\n"))?;
        }
        self.others.iter_mut().try_for_each(|other| other.step(step))
    }

    fn epoch(&mut self, epoch: &Epoch) -> io::Result<()> {
        self.last = Some((epoch.epoch, epoch.test_accuracy));
        if self.rank.is_first() {
            let Epoch { epoch, train_loss, test_loss, test_accuracy, samples_per_second, seconds } =
                epoch;
            self.line(&format!(
                "epoch: {epoch}, train loss is {train_loss:.4}, test loss is {test_loss:.4}, \
                 test accuracy is {test_accuracy:.4}, {seconds:.3} s, {samples_per_second:.0} samples/s\n"
            ))?;
        }
        self.others.iter_mut().try_for_each(|other| other.epoch(epoch))
    }

    fn nothing_left(&mut self, epoch: u32, test_accuracy: f64) {
        self.last = Some((epoch, test_accuracy));
    }

    /// Finishes the reports in reverse order: the progress bar is the last one and must be cleared
    /// first.
    fn finish(&mut self) -> io::Result<()> {
        self.others.iter_mut().rev().try_for_each(|other| other.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Step = Step { epoch: 0, step: 0, loss: 2.341_347_2 };
    const EPOCH: Epoch = Epoch {
        epoch: 0,
        train_loss: 0.456_78,
        test_loss: 0.3,
        test_accuracy: 0.9089,
        samples_per_second: 1_234_567.8,
        seconds: 0.05,
    };
    const SUMMARY: &str = "epoch: 0, train loss is 0.4568, test loss is 0.3000, test accuracy is 0.9089, 0.050 s, 1234568 samples/s\n";

    fn lines(rank: Rank, log_steps: bool) -> String {
        let stop = Stop::default();
        let mut log = Log {
            out: Vec::new(),
            rank,
            last: None,
            log_steps,
            others: Vec::new(),
            stop,
            reader_gone: false,
        };
        log.step(&STEP).unwrap();
        log.epoch(&EPOCH).unwrap();
        String::from_utf8(log.out).unwrap()
    }

    #[test]
    fn the_step_lines_are_the_tutorials_after_the_rank_if_there_are_several() {
        let (first, second) = (Rank::new(0, 2).unwrap(), Rank::new(1, 2).unwrap());
        let step = "epoch: 0, step: 0, loss is 2.3413472\n";
        assert_eq!(lines(Rank::ALONE, true), format!("{step}{SUMMARY}"));
        assert_eq!(lines(first, true), format!("rank 0 of 2: {step}{SUMMARY}"));
        assert_eq!(lines(second, true), format!("rank 1 of 2: {step}"));
    }

    #[test]
    fn without_steps_only_rank_0_writes_its_epochs() {
        assert_eq!(lines(Rank::new(0, 2).unwrap(), false), SUMMARY);
        assert_eq!(lines(Rank::new(1, 2).unwrap(), false), "");
    }
}
