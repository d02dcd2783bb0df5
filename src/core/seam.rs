//! What mpienv's other crates need of this one and programs do not. Any version may change it.

use std::ffi::OsStr;
use std::iter;
use std::path::PathBuf;

use crate::cluster::azure::AzureVars;
use crate::cluster::info::ClusterInfo;
use crate::cluster::master::Scope;
use crate::environment::{Environment, Variables as _};
use crate::error::Error;
use crate::launcher::starter::{Starter, ancestors};
use crate::launcher::{Launcher, markers};
use crate::value::host::Host;
use crate::value::port::PortRange;

pub use crate::cluster::answer::{Answer, PMIX_NAMESPACE, PMIX_RANK, refused};
pub use crate::cluster::attempt::Attempt;
pub use crate::cluster::context::Server;
pub use crate::cluster::device::{Shown, is_device, shown, visible};
pub use crate::cluster::nccl::{DEFAULT as NCCL_DEFAULT, VARIABLE as NCCL_IFNAME};
pub use crate::cluster::overrides::{ASK, ASKED, INTERFACE, MASTER_PORT, PORT_RANGE, SIMULATED};
pub use crate::cluster::own_variables::{OWN_VARIABLES, mistakes};
pub use crate::cluster::threads::{ThreadCount, VARIABLES as THREAD_VARIABLES};
pub use crate::cluster::warn::is_silenced;
pub use crate::cluster::workers::NO_LOCAL_SIZE;
pub use crate::environment::{Variable, digits};
pub use crate::error::{ENVIRONMENT, RANKS, READER_GONE, TIMED_OUT, USAGE, signal};
pub use crate::export::syntax::posix_quoted as shell_quoted;
pub use crate::export::{Placeholders, TargetFile, TargetVariable, TemplateError};
pub use crate::hostlist::{Hostlist, HostlistError};
pub use crate::launcher::kubernetes::SERVICE as POD;
pub use crate::launcher::meant_launcher;
pub use crate::launcher::spec::{LauncherSpec, MpiFamily, Programs, Starts};
pub use crate::launcher::starter::ancestors_in_job;
pub use crate::plan::{Needs, Options as PlanOptions, Plan, Reader, WordsError};
pub use crate::value::port::UNPRIVILEGED;
pub use crate::value::printable::{commands, counted, printable};
pub use crate::value::rank::{list as list_of_ranks, ranges, runs as runs_of_ranks, share};
pub use crate::value::sourced::{Given, Source, Sourced, by};

/// The variables of Azure that name the master.
pub const OF_AZURE: &[Variable] = AzureVars::VARIABLES;

/// What the other crates ask of a place.
#[doc(hidden)]
impl ClusterInfo {
    /// Returns whether an agent of torchrun, and not rank 0, may listen at the master.
    pub fn agent_listens(&self) -> bool {
        self.run_of_agent().is_some()
    }

    /// Returns the range from which ports are derived, if the job's port is derived from it: here, or
    /// by an mpienv around this process, which may start several jobs.
    pub fn default_port_range(&self) -> Option<PortRange> {
        let default = &self.meeting.default_port;
        default.is_used.then_some(default.range)
    }

    /// Returns how many consecutive ranks each host has, in the order of the ranks. `None` if that is
    /// not known, and if all are on one host.
    pub fn ranks_per_host(&self) -> Option<Vec<(Host, u32)>> {
        let hosts = self.hosts().filter(|hosts| hosts.len() > 1)?;
        let one_each =
            self.node_rank() == Some(self.rank().index()) && self.placement.master_doubt.is_none();
        let one_each = one_each.then(|| vec![(1, self.world_size())]);
        let groups = self.placement.ranks_per_host.clone().or(one_each)?;
        let nodes: u64 = groups.iter().map(|&(_, nodes)| u64::from(nodes)).sum();
        if nodes != hosts.len() as u64 {
            return None;
        }
        let counts =
            groups.iter().flat_map(|&(ranks, nodes)| iter::repeat_n(ranks, nodes as usize));
        let ranks: u64 = counts.clone().map(u64::from).sum();
        let is_all = ranks == u64::from(self.world_size());
        is_all.then(|| hosts.iter().cloned().zip(counts).collect())
    }

    /// Returns what a program gets of a variable that this place does not set. What an outer mpienv
    /// has set is unset.
    pub fn inherited(&self, name: &str) -> Option<&OsStr> {
        let is_unset = self.carried.to_unset.contains(&name);
        self.environment().get(name).filter(|_| !is_unset)
    }

    /// Returns the environment from which the place was read.
    pub fn environment(&self) -> &Environment {
        &self.inherited
    }

    /// Returns whether this is rank 0, and a platform gives its address only to the other ranks.
    pub fn lacks_own_address(&self) -> bool {
        let is_any = self.master_addr().is_ok_and(|host| *host == Host::ANY);
        let is_platform = self.launcher() != Launcher::User || self.inherited.is_set(POD);
        let is_of_platform = is_platform && self.meeting.addr_scope == Scope::Job;
        is_any && is_of_platform && self.rank().is_first()
    }

    /// Returns whether nothing says which interfaces NCCL uses.
    pub fn nccl_is_default(&self) -> bool {
        self.surroundings.nccl.is_default
    }

    /// Leaves the choice of interfaces to NCCL.
    pub fn without_nccl_default(mut self, why: &'static str) -> ClusterInfo {
        self.surroundings.nccl.ifname = Sourced::new(None, why);
        self
    }

    /// Returns whether the job has a default port of its own.
    pub fn default_port_is_own(&self) -> bool {
        self.meeting.default_port.is_derived
    }

    /// Returns the platform's number of workers on each node, as it writes it.
    pub fn workers_of_platform(&self) -> Option<&Sourced<String>> {
        self.placement.workers.as_ref()
    }

    /// Returns whether an outer mpienv keeps the launcher's binding to cores.
    pub fn keeps_binding(&self) -> bool {
        self.earlier.keeps_binding
    }

    /// Returns the IDs of this process's ancestors, the nearest first.
    pub fn parents(&self) -> Vec<u32> {
        ancestors(&self.inherited).map(|parent| parent.id).collect()
    }

    /// Returns the ID of the process that started this node's ranks.
    pub fn starter(&self) -> Option<u32> {
        Some(Starter::of(self.launcher(), &self.inherited)?.process.id)
    }
}

#[doc(hidden)]
impl Environment {
    /// Returns the number that a variable of mpienv's own holds.
    pub fn number(&self, name: &'static str) -> Result<Option<u32>, Error> {
        Ok(self.setting::<u32>(name)?.map(|number| number.value))
    }
}

/// Returns the files of the programs that this process descends from, its parent's first; an empty
/// path for one of another user.
pub fn programs_above() -> Vec<PathBuf> {
    ancestors(&Environment::current()).map(|process| process.path()).collect()
}

/// Returns the launchers that have left variables.
pub fn detected(environment: &Environment) -> impl Iterator<Item = Launcher> {
    markers(environment).map(|marker| marker.launcher)
}
