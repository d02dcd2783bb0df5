//! Attempts: the same job, restarted after a failure.

use crate::cluster::info::ClusterInfo;
use crate::cluster::master::{MASTER_PORT, Meeting, Scope};
use crate::cluster::overrides::{RESTART_COUNT, TORCH_RESTART_COUNT};
use crate::launcher::Launcher;
use crate::launcher::torchrun::run_with_agent_store;
use crate::value::job::Job;
use crate::value::port::Port;
use crate::value::sourced::Sourced;

/// One run of a job's workers, from their start until all have exited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// How often the platform had restarted the job before this launch. The same on all nodes.
    pub base: u32,
    /// How often `mpienv launch` has restarted the workers since then.
    pub again: u32,
}

impl Attempt {
    /// Returns the restart count that the workers see.
    pub fn number(self) -> u32 {
        self.base.saturating_add(self.again)
    }
}

/// The source of a restart count that `mpienv launch` keeps.
const COUNTED: &str = "counted by mpienv launch";

impl ClusterInfo {
    /// Returns the job's identity and the attempt, which determine the rendezvous keys. Both are
    /// the same on all ranks.
    ///
    /// Several jobs may use a token that a user set, so the keys also depend on the job's identity.
    #[doc(hidden)]
    pub fn run(&self) -> (String, u32) {
        let job = self.placement.job.as_ref().map(|job| &job.value);
        let identity = job
            .filter(|_| self.meeting.token_scope == Scope::User)
            .map(|job| format!("{}/{}", job.id, job.step));
        // Other counts may differ between nodes.
        let count = &self.surroundings.restart_count;
        let counted = count.value.filter(|_| [RESTART_COUNT, COUNTED].contains(&&*count.source));
        (identity.unwrap_or_default(), counted.or(job.map(|job| job.restarts)).unwrap_or(0))
    }

    /// Moves this place to an attempt. Each attempt has its own keys, and its own port if the port
    /// is derived.
    #[doc(hidden)]
    pub fn enter(&mut self, attempt: Attempt) {
        let number = attempt.number();
        self.surroundings.restart_count = Sourced::new(Some(number), COUNTED);
        let names = [RESTART_COUNT, TORCH_RESTART_COUNT];
        let overrides = &mut self.carried.overrides;
        overrides.retain(|(name, _)| !names.contains(name));
        overrides.extend(names.map(|name| (name, number.to_string())));
        // The first attempt has the job's own port.
        if let Some(job) = self.job_of_port().filter(|_| attempt.again > 0) {
            let next = Job { restarts: job.restarts.saturating_add(attempt.again), ..job.clone() };
            let Meeting { port, default_port, .. } = &mut self.meeting;
            port.value = next.port(default_port.range);
            default_port.port = port.value;
        }
    }

    /// Returns the port where the processes that start each node's workers meet. It is not the
    /// workers' master port.
    #[doc(hidden)]
    pub fn launchers_port(&self) -> Port {
        self.beside_master(self.job_of_port().map(|job| {
            let of_launchers = Job { id: format!("{}/launchers", job.id), ..job.clone() };
            of_launchers.port(self.meeting.default_port.range)
        }))
    }

    /// Returns the ID of torchrun's run if its agent listens on the master's port, so that no rank
    /// can.
    pub(crate) fn run_of_agent(&self) -> Option<&str> {
        let is_its_port = self.meeting.port.source == MASTER_PORT;
        let is_its_worker = self.launcher() == Launcher::Torchrun && is_its_port;
        run_with_agent_store(&self.inherited).filter(|_| is_its_worker)
    }

    /// Returns the port where the ranks themselves meet: the master's, unless torchrun's agent
    /// listens there. Then it is derived from torchrun's run and its port, which all ranks know.
    #[doc(hidden)]
    pub fn meeting_port(&self) -> Port {
        let master = self.master_port();
        let Some(run) = self.run_of_agent() else { return master };
        let of_run = Job::new(format!("{run}/{master}"));
        self.beside_master(Some(of_run.port(self.meeting.default_port.range)))
    }

    /// Returns the job from which the master's port is derived, or `None` if the port is not
    /// derived.
    fn job_of_port(&self) -> Option<&Job> {
        let job = self.placement.job.as_ref()?;
        (job.source == self.meeting.port.source).then_some(&job.value)
    }

    /// Returns a port beside the master's: the derived one, if there is one that differs.
    fn beside_master(&self, derived: Option<Port>) -> Port {
        let master = self.master_port();
        // Programs use the ports above the master's.
        let near = Port::new(master.get() - 1).unwrap_or(Port::ONE_NODE);
        derived.filter(|&port| port != master).unwrap_or(near)
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

    fn in_attempt(worker: &ClusterInfo, base: u32, again: u32) -> ClusterInfo {
        let mut info = worker.clone();
        info.enter(Attempt { base, again });
        info
    }

    fn read_again(info: &ClusterInfo) -> ClusterInfo {
        let exports = info.exports().unwrap();
        ClusterInfo::from_vars(
            exports.iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))),
        )
        .unwrap()
    }

    #[test]
    fn attempts_of_a_job_have_different_derived_ports_and_keys() {
        let worker = node(&[]).workers(1).unwrap().remove(0);
        let attempts = [0, 1, 2].map(|again| in_attempt(&worker, 0, again));
        let ports = attempts.each_ref().map(|info| info.master_port().to_string());
        assert_eq!(ports[0], worker.master_port().to_string());
        assert!(ports[0] != ports[1] && ports[1] != ports[2] && ports[0] != ports[2], "{ports:?}");
        {
            // A worker that reads its variables derives the same keys.
            assert_eq!(
                attempts.each_ref().map(|info| read_again(info).run()),
                [0, 1, 2].map(|a| (String::new(), a))
            );
            assert_eq!(
                attempts.each_ref().map(ClusterInfo::run),
                [0, 1, 2].map(|a| (String::new(), a))
            );
            // No attempt uses the port of the launchers.
            assert!(!ports.contains(&node(&[]).launchers_port().to_string()));
        }
    }

    #[test]
    fn torchruns_workers_meet_beside_the_store_of_its_agent() {
        let worker = |rank: &'static str, more: &[(&'static str, &'static str)]| {
            let torchrun = [
                ("TORCHELASTIC_RUN_ID", "none"),
                ("TORCHELASTIC_USE_AGENT_STORE", "True"),
                ("WORLD_SIZE", "2"),
                ("LOCAL_RANK", rank),
                ("LOCAL_WORLD_SIZE", "2"),
                ("MASTER_ADDR", "node0"),
                ("MASTER_PORT", "29500"),
                ("RANK", rank),
            ];
            let vars = torchrun.into_iter().chain(more.iter().copied());
            let info = ClusterInfo::from_vars(vars).unwrap();
            (info.master_port().get(), info.meeting_port().get())
        };
        let (master, meeting) = worker("0", &[]);
        assert_eq!(master, 29500);
        assert!(meeting != master && (20000..30000).contains(&meeting), "{meeting}");
        assert_eq!(worker("1", &[]), (master, meeting));
        assert_ne!(worker("0", &[("MASTER_PORT", "29501")]).1, meeting, "two jobs on one host");
        let in_range = worker("0", &[("MPIENV_PORT_RANGE", "1400-1499")]).1;
        assert!((1400..1500).contains(&in_range), "{in_range}");
        assert_eq!(worker("0", &[("MPIENV_PORT_RANGE", "29500-29500")]).1, 29499);
        // The store is elsewhere, or rank 0 itself serves it.
        assert_eq!(worker("0", &[("MPIENV_MASTER_PORT", "7000")]), (7000, 7000));
        assert_eq!(worker("0", &[("TORCHELASTIC_USE_AGENT_STORE", "False")]), (29500, 29500));
    }

    #[test]
    fn a_port_and_a_token_that_were_set_stay() {
        let info = node(&[("MASTER_PORT", "29500"), ("MPIENV_TOKEN", "sesame")]);
        let worker = info.workers(1).unwrap().remove(0);
        let second = in_attempt(&worker, 0, 1);
        assert_eq!(second.master_port().get(), 29500);
        assert_eq!((second.token(), read_again(&second).token()), (info.token(), info.token()));
        {
            let third = in_attempt(&worker, 0, 2);
            assert_eq!([&second, &third].map(|info| read_again(info).run().1), [1, 2]);
            assert_eq!(info.launchers_port().get(), 29499);
        }
    }

    #[test]
    fn a_worker_reads_the_attempt_that_it_was_started_in() {
        let worker = node(&[("SLURM_RESTART_COUNT", "3")]).workers(1).unwrap().remove(0);
        let info = in_attempt(&worker, 3, 2);
        let exports = info.exports().unwrap();
        assert_eq!(
            [RESTART_COUNT, TORCH_RESTART_COUNT].map(|name| exports.get(name)),
            [Some("5"); 2]
        );
        let read = read_again(&info);
        assert_eq!((read.restart_count(), read.master_port()), (Some(5), info.master_port()));
        assert_eq!(
            (read.provenance().restart_count, read.token()),
            (RESTART_COUNT.into(), info.token())
        );
    }

    #[test]
    fn workers_authenticate_with_munge_as_their_launch_does_and_have_a_secret() {
        for text in ["munge", "munge:/run/other.socket"] {
            let worker = node(&[("MPIENV_AUTH", text)]).workers(1).unwrap().remove(0);
            let read = read_again(&in_attempt(&worker, 0, 1));
            assert_eq!(read.munge().map(ToString::to_string).as_deref(), Some(text));
            assert!(read.has_secret() && !node(&[]).has_secret());
        }
    }
}
