//! Starts the workers of an attempt, each with its command, variables, files, cores and threads.

use std::io::{self, IsTerminal};
use std::process::{Command, Stdio};

use super::{Job, own_host};
use crate::affinity::Unbound;
use crate::bind::{BOUND_BY, Bind, Division, Node, bind_to_share};
use crate::core_share::CoreShare;
use crate::error::LaunchError;
use crate::process::random;
use crate::running::{Role, Running};
use crate::target_file::HeldFile;
use crate::{Launch, Threads, Variables, port, share, tell};
use mpienv_core::seam::{Attempt, Plan, PlanOptions, TargetFile, ThreadCount};
use mpienv_core::{ClusterInfo, Environment, Exports};

impl Job<'_> {
    /// Starts the workers of an attempt.
    pub(super) fn start(
        &mut self,
        running: &mut Running,
        attempt: Attempt,
    ) -> Result<(), LaunchError> {
        // Stays in effect until all workers have been started.
        let _unbound = Unbound::of_this_thread(self.launch.keep_binding);
        self.launch.enter(attempt);
        let shares = self.launch.shares(attempt)?;
        // Ports change from attempt to attempt.
        self.files.clear();
        if let Some((range, first)) = self.launch.range.filter(|_| attempt.again > 0) {
            // A process of the last attempt may still use its port.
            let port = port::free_port(range, first + u64::from(attempt.again))?;
            self.launch.workers.iter_mut().for_each(|worker| worker.set_own_port(port, port::WHY));
        }
        let ranks_here = self.launch.workers.len();
        let has_all = |worker: &ClusterInfo| usize::try_from(worker.world_size()) == Ok(ranks_here);
        if self.launch.workers.first().is_some_and(has_all) {
            // No rank of another job gets it, whatever port that job has.
            let token = format!("{:016x}{:016x}", random(), random());
            self.launch.workers.iter_mut().for_each(|worker| worker.set_own_token(&token));
        }
        let threads = self.launch.thread_counts(&shares);
        let mut command_of = |worker: &ClusterInfo| {
            let command = (self.command)(worker).map(|command| self.launch.marked(command));
            command.map_err(|reason| {
                let (node, host) = (self.link.node, own_host());
                LaunchError::OtherNode { node, host, reason }
            })
        };
        for (index, worker) in self.launch.workers.iter().enumerate() {
            let role = Role { rank: worker.rank().index(), is_scheduler: false };
            let mut command = command_of(worker)?;
            if let Some(share) = shares.get(index) {
                // The worker inherits the binding of this thread.
                bind_to_share(self.launch.bind, share)?;
            }
            match &self.launch.variables {
                Variables::Simulated(job) => job.apply_to(role.rank, &mut command),
                Variables::Planned(options) => {
                    let threads = threads.get(index).copied().flatten().or(options.threads);
                    let plan = Plan::new(worker, &PlanOptions { threads, ..(**options).clone() });
                    let mut exports = plan.variables?;
                    if let Some(file) = plan.file {
                        add_file(&mut self.files, &mut exports, file)?;
                    }
                    exports.apply_to(&mut command);
                    if let Some(exports) = plan.scheduler {
                        let mut scheduler = command_of(worker)?;
                        exports.apply_to(&mut scheduler);
                        scheduler.stdin(Stdio::null());
                        running.start(Role { is_scheduler: true, ..role }, &mut scheduler)?;
                    }
                }
            }
            // A terminal stops a background process that reads it.
            if index > 0 || io::stdin().is_terminal() {
                command.stdin(Stdio::null());
            }
            running.start(role, &mut command)?;
        }
        Ok(())
    }
}

impl Launch {
    /// Returns how many threads each worker gets of the cores that this thread may use.
    ///
    /// `bound`: the cores of each worker, or nothing if they are not bound.
    fn thread_counts(&self, bound: &[CoreShare]) -> Vec<Option<ThreadCount>> {
        let ranks = self.workers.first().and_then(|worker| worker.ranks_on_host());
        let share = ranks.map(|ranks| share::of_workers(ranks, self.keep_binding).threads);
        let of_worker = |index: usize| {
            let own = bound.get(index).and_then(|own| u32::try_from(own.cores).ok());
            let share = share.map(|share| own.map_or(share, |own| own.min(share)));
            share.and_then(|share| Threads::count(self.threads, Some(share)))
        };
        (0..self.workers.len()).map(of_worker).collect()
    }

    /// Returns the command with the variable that tells its programs how they are bound. It is
    /// removed for workers that get all cores.
    fn marked(&self, mut command: Command) -> Command {
        if self.bind != Bind::None {
            command.env(BOUND_BY, self.bind.name());
        } else if !self.keep_binding {
            command.env_remove(BOUND_BY);
        }
        command
    }

    /// Returns the cores of each worker, or nothing if they are not bound. Says once what is not as
    /// expected.
    fn shares(&self, attempt: Attempt) -> Result<Vec<CoreShare>, LaunchError> {
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

/// Names a file in a worker's variables. Workers that read the same text share one file.
fn add_file(
    files: &mut Vec<HeldFile>,
    exports: &mut Exports,
    file: TargetFile,
) -> Result<(), LaunchError> {
    let variable = file.variable;
    let path = match files.iter().find(|held| held.text == file.text) {
        Some(held) => held.path.clone(),
        None => {
            let held = HeldFile::write(file)?;
            let path = held.path.clone();
            files.push(held);
            path
        }
    };
    exports.set(variable, path.display().to_string());
    Ok(())
}
