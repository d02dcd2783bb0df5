//! A bar on the terminal that shows how far a run is.

use std::io;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::train::{Epoch, REPORT_EVERY, Report, Step};

/// How many times a second the bar is drawn at most.
const REDRAWS: u8 = 10;

/// How far a run is, on stderr.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    epochs: u32,
    /// How many steps an epoch has.
    steps: usize,
}

impl Progress {
    /// The bar of a run of `epochs` epochs with `steps` steps each; it shows only when stderr is a terminal.
    #[must_use]
    pub fn new(epochs: u32, steps: usize) -> Progress {
        let bar = ProgressBar::with_draw_target(
            Some(u64::from(epochs) * steps as u64),
            ProgressDrawTarget::stderr_with_hz(REDRAWS),
        );
        // A template that is wrong would be the program's fault; the plain bar does as well.
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {percent}%, {eta} left") {
            bar.set_style(style);
        }
        Progress { bar, epochs, steps }
    }

    /// Does something that may write to the terminal, with the bar out of the way.
    pub fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }
}

impl Report for Progress {
    fn step(&mut self, step: &Step) -> io::Result<()> {
        if self.bar.is_hidden() {
            return Ok(());
        }
        if step.step == 0 {
            self.bar.set_message(format!("epoch {} of {}, loss {:.3}", step.epoch + 1, self.epochs, step.loss));
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
}

impl Drop for Progress {
    fn drop(&mut self) {
        // A run that ends early must not leave half a bar before its error.
        self.bar.finish_and_clear();
    }
}
