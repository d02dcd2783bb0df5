//! The same job, started again after a failure.

use crate::cluster::info::ClusterInfo;
use crate::cluster::overrides::{RESTART_COUNT, TOKEN, TORCH_RESTART_COUNT};
use crate::value::job::Job;
use crate::value::placement::Sourced;
#[cfg(feature = "rendezvous")]
use crate::value::port::Port;
use crate::value::token::Token;

/// One run of a job's workers, from their start until all have exited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// How often the platform had restarted the job before; the same on all nodes.
    pub base: u32,
    /// How often the workers were started again since.
    pub again: u32,
}

impl Attempt {
    /// What the workers see as the number of restarts.
    pub(crate) fn number(self) -> u32 {
        self.base.saturating_add(self.again)
    }
}

impl ClusterInfo {
    /// The same place in this attempt: ranks of another attempt have another token, and another port if that is derived.
    pub(crate) fn in_attempt(&self, attempt: Attempt) -> ClusterInfo {
        let mut info = self.clone();
        let number = attempt.number();
        info.restart_count = Sourced::new(Some(number), "counted by mpienv launch");
        for name in [RESTART_COUNT, TORCH_RESTART_COUNT] {
            info.override_with(name, number.to_string());
        }
        if attempt.again == 0 {
            return info;
        }
        if let Some(job) = self.job_of_port() {
            let next = Job { restarts: job.restarts.saturating_add(attempt.again), ..job.clone() };
            info.master_port = Sourced::new(next.port(self.port_range), self.master_port.source.clone());
            info.default_port = info.master_port.value;
        }
        info.token = self.token.of_attempt(attempt.again);
        if !self.token_is_own {
            info.override_with(TOKEN, info.token.as_str().to_owned());
        }
        info
    }

    /// Where the processes that start the workers of each node meet: near the master's port, and not a worker's.
    #[cfg(feature = "rendezvous")]
    pub(crate) fn launchers_port(&self) -> Port {
        let derived = self.job_of_port().map(|job| {
            let of_launchers = Job { id: format!("{}/launchers", job.id), ..job.clone() };
            of_launchers.port(self.port_range)
        });
        // Programs take the ports above the master's.
        let near = Port::new(self.master_port().get() - 1).unwrap_or(Port::ONE_NODE);
        derived.filter(|&port| port != self.master_port()).unwrap_or(near)
    }

    /// The job from which the master's port is derived, if it is.
    fn job_of_port(&self) -> Option<&Job> {
        self.placement.job.as_ref().filter(|job| job.source == self.master_port.source).map(|job| &job.value)
    }

    fn override_with(&mut self, name: &'static str, value: String) {
        match self.overrides.iter_mut().find(|(found, _)| *found == name) {
            Some((_, old)) => *old = value,
            None => self.overrides.push((name, value)),
        }
    }
}

impl Token {
    /// The token of a later attempt of the same job.
    fn of_attempt(&self, again: u32) -> Token {
        let text = format!("{}/attempt {again}", self.as_str());
        // A longer one could not be sent: the job keeps the one that it has.
        if text.len() > Token::LONGEST { self.clone() } else { Token::new(text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(vars: &[(&str, &str)]) -> ClusterInfo {
        let slurm = [
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
            ("SLURM_NODEID", "1"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_STEP_NODELIST", "node[0-1]"),
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_STEP_ID", "12"),
        ];
        ClusterInfo::from_vars(slurm.into_iter().chain(vars.iter().copied())).unwrap()
    }

    fn read_again(info: &ClusterInfo) -> ClusterInfo {
        let exports = info.exports().unwrap();
        ClusterInfo::from_vars(exports.iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))))
            .unwrap()
    }

    #[test]
    fn attempts_of_a_job_have_different_derived_ports_and_tokens() {
        let worker = node(&[]).workers(1).unwrap().remove(0);
        let attempts = [0, 1, 2].map(|again| worker.in_attempt(Attempt { base: 0, again }));
        let [ports, tokens] = [
            attempts.each_ref().map(|info| info.master_port().to_string()),
            attempts.each_ref().map(|info| info.token().as_str().to_owned()),
        ];
        assert_eq!(ports[0], worker.master_port().to_string());
        assert_eq!(tokens[0], worker.token().as_str());
        assert!(ports[0] != ports[1] && ports[1] != ports[2] && ports[0] != ports[2], "{ports:?}");
        assert!(tokens[0] != tokens[1] && tokens[1] != tokens[2], "{tokens:?}");
        // The port of the launchers stays.
        #[cfg(feature = "rendezvous")]
        assert!(!ports.contains(&node(&[]).launchers_port().to_string()));
    }

    #[test]
    fn a_port_that_was_set_stays_and_a_token_that_was_set_is_extended() {
        let info = node(&[("MASTER_PORT", "29500"), ("MPIENV_TOKEN", "sesame")]);
        let worker = info.workers(1).unwrap().remove(0);
        let second = worker.in_attempt(Attempt { base: 0, again: 1 });
        assert_eq!(second.master_port().get(), 29500);
        assert_eq!(second.token().as_str(), "sesame/attempt 1");
        let third = worker.in_attempt(Attempt { base: 0, again: 2 });
        assert_eq!(read_again(&third).token().as_str(), "sesame/attempt 2");
        #[cfg(feature = "rendezvous")]
        assert_eq!(info.launchers_port().get(), 29499);
    }

    #[test]
    fn a_worker_reads_the_attempt_that_it_was_started_in() {
        let worker = node(&[("SLURM_RESTART_COUNT", "3")]).workers(1).unwrap().remove(0);
        let info = worker.in_attempt(Attempt { base: 3, again: 2 });
        let exports = info.exports().unwrap();
        assert_eq!([RESTART_COUNT, TORCH_RESTART_COUNT].map(|name| exports.get(name)), [Some("5"); 2]);
        let read = read_again(&info);
        assert_eq!((read.restart_count(), read.master_port()), (Some(5), info.master_port()));
        assert_eq!((read.provenance().restart_count, read.token()), (RESTART_COUNT.into(), info.token()));
    }

    #[test]
    fn a_token_that_has_no_room_for_the_attempt_stays() {
        let long = "x".repeat(Token::LONGEST);
        assert_eq!(Token::new(long.clone()).of_attempt(1).as_str(), long);
    }
}
