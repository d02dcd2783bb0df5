//! Ranks with another world size, which get their error while the others go on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{SETTLE, Server, Stage};
use crate::auth::Run;
use crate::frame::{Message, ReplyKind};

/// Connections of ranks with another world size, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Outliers {
    waiting: VecDeque<(Instant, usize, u64)>,
}

impl Outliers {
    pub(super) fn push(&mut self, id: usize, serial: Option<u64>) {
        self.waiting.extend(serial.map(|serial| (Instant::now() + SETTLE, id, serial)));
    }
}

impl Server<'_> {
    /// Sends the error to the ranks that have waited long enough at `now`, or to all if `None`.
    /// Returns how long until the next is due.
    pub(super) fn answer_outliers(&mut self, now: Option<Instant>) -> Duration {
        while let Some(&(due, id, serial)) = self.outliers.waiting.front() {
            if let Some(now) = now
                && now < due
            {
                return due - now;
            }
            self.outliers.waiting.pop_front();
            let connection = self.lines.get_mut(id);
            let Some(connection) = connection.filter(|connection| connection.serial == serial)
            else {
                continue;
            };
            connection.state.stage = Stage::Closing;
            let joined: Vec<u32> = std::iter::once(0).chain(self.joined.keys().copied()).collect();
            let text =
                self.problems.sizes_differ(self.settings.rank.size(), &joined).unwrap_or_default();
            self.say(id, &Message::new(ReplyKind::TurnedAway, text.as_bytes()));
        }
        Duration::MAX
    }
}

/// The answer to a rank that has the job's token but does not belong to this run of the job.
pub(super) fn of_another_run(rank: u32, run: Run, own: Run) -> String {
    match run.job == own.job {
        true => format!(
            "rank {rank} belongs to attempt {} of this job, and rank 0 to attempt {}: one of them is left over; stop it, and \
             start all ranks with one command",
            run.attempt, own.attempt
        ),
        false => format!(
            "rank {rank} has the same MPIENV_TOKEN as rank 0, and belongs to another job of its launcher: start all ranks with \
             one command, and give each job its own MASTER_PORT"
        ),
    }
}
