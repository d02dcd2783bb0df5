//! The cores and threads that the workers of an attempt get.

use std::process::Command;

use crate::launch::bind::{Bind, Division, Node};
use crate::launch::core_share::CoreShare;
use crate::launch::error::LaunchError;
use crate::launch::{Launch, Threads, share, tell};
use mpienv_core::Environment;
use mpienv_core::seam::{Attempt, InfoSeam as _, ThreadCount};

impl Launch {
    /// Returns how many threads each worker gets of the cores that this thread may use.
    ///
    /// `bound`: the cores of each worker, or nothing if they are not bound.
    pub(super) fn thread_counts(&self, bound: &[CoreShare]) -> Vec<Option<ThreadCount>> {
        let ranks = self.workers.first().and_then(|worker| worker.ranks_on_host());
        let share = ranks.map(|ranks| share::of_workers(ranks, self.keep_binding).threads);
        let of_worker = |index: usize| {
            let own = bound.get(index).and_then(|own| u32::try_from(own.len()).ok());
            let share = share.map(|share| own.map_or(share, |own| own.min(share)));
            share.and_then(|share| Threads::count(self.threads, Some(share)))
        };
        (0..self.workers.len()).map(of_worker).collect()
    }

    /// Returns the command with the variable that tells its programs how they are bound.
    pub(super) fn marked(&self, command: Command) -> Command {
        if self.bind != Bind::None || !self.keep_binding {
            return self.bind.marked(command);
        }
        command
    }

    /// Returns the cores of each worker, or nothing if they are not bound. Says once what is not as
    /// expected.
    pub(super) fn shares(&self, attempt: Attempt) -> Result<Vec<CoreShare>, LaunchError> {
        if self.bind == Bind::None {
            return Ok(Vec::new());
        }
        let environment = Environment::current();
        let Division { shares, note } =
            Node::here(self.bind, &environment)?.among_workers(&self.workers)?;
        if let Some(note) = note.filter(|_| attempt.again == 0) {
            tell(&format!("bind {}: {note}", self.bind.name()));
        }
        Ok(shares)
    }
}
