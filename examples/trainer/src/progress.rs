//! A progress bar on the terminal.

use std::io;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::checkpoint::Position;
use crate::train::{Epoch, REPORT_EVERY, Report, Step};

/// The maximum number of redraws per second.
const REDRAWS: u8 = 10;

/// A progress bar on stderr.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    epochs: u32,
    /// The steps of an epoch.
    steps: usize,
}

impl Progress {
    /// Creates the bar for `epochs` epochs of `steps` steps each. It is visible only if stderr is a
    /// terminal.
    pub fn new(epochs: u32, steps: usize) -> Progress {
        let bar = ProgressBar::with_draw_target(
            Some(u64::from(epochs) * steps as u64),
            ProgressDrawTarget::stderr_with_hz(REDRAWS),
        );
        // The template is valid. If it were not, the default bar would do.
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {percent}%, {eta} left") {
            bar.set_style(style);
        }
        Progress { bar, epochs, steps }
    }
}

impl Report for Progress {
    fn begin(&mut self, _start: Position) -> io::Result<()> {
        // Exclude the time that the ranks took to connect.
        self.bar.reset_eta();
        Ok(())
    }

    fn step(&mut self, step: &Step) -> io::Result<()> {
        if self.bar.is_hidden() {
            return Ok(());
        }
        if step.step == 0 {
            let (epoch, epochs, loss) = (step.epoch + 1, self.epochs, step.loss);
            self.bar.set_message(format!("epoch {epoch} of {epochs}, loss {loss:.3}"));
        }
        let done = (step.step + REPORT_EVERY).min(self.steps);
        self.bar.set_position(u64::from(step.epoch) * self.steps as u64 + done as u64);
        Ok(())
    }

    fn epoch(&mut self, epoch: &Epoch) -> io::Result<()> {
        if epoch.epoch + 1 == self.epochs {
            self.bar.finish_and_clear();
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        // A failing run must not leave a partial bar above its error.
        self.bar.finish_and_clear();
        Ok(())
    }

    fn aside(&mut self, write: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()> {
        self.bar.suspend(write)
    }
}
