//! Where this process is in its cluster: the values, and where each comes from.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::cluster::discover::Surroundings;
use crate::cluster::master::{Meeting, Scope};
use crate::cluster::{master, overrides};
use crate::environment::Environment;
use crate::error::Error;
use crate::finding::Finding;
use crate::launcher::Launcher;
use crate::launcher::placement::{LaunchStyle, Placement};
use crate::value::host::Host;
use crate::value::port::Port;
use crate::value::rank::Rank;
use crate::value::sourced::{NOT_PROVIDED, Sourced, source_of, value_of};
use crate::value::token::{Munge, Token};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// The place of this process in its job: its rank and node, and where the ranks meet.
///
/// Create it with [`ClusterInfo::from_env`], [`ClusterInfo::from_vars`] or a
/// [`ClusterInfoBuilder`](crate::ClusterInfoBuilder). Reading does not change the environment. To
/// pass the values on to another program, use [`ClusterInfo::exports`].
///
/// ```
/// use mpienv::{ClusterInfo, Rank};
///
/// // As Open MPI's mpirun sets them for the last of four processes on one node.
/// let info = ClusterInfo::from_vars([
///     ("OMPI_COMM_WORLD_RANK", "3"),
///     ("OMPI_COMM_WORLD_SIZE", "4"),
///     ("OMPI_COMM_WORLD_LOCAL_RANK", "3"),
///     ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
/// ])?;
/// assert_eq!(info.rank(), Rank::new(3, 4)?);
/// assert_eq!((info.local_rank(), info.local_world_size()), (Some(3), Some(4)));
/// assert_eq!((info.node_rank(), info.node_count()), (Some(0), Some(1)));
/// assert_eq!(info.master_addr()?.with_port(info.master_port()), "127.0.0.1:54965");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterInfo {
    /// This process's place, as its launcher or a user provided it.
    pub(crate) placement: Placement,
    pub(crate) surroundings: Surroundings,
    pub(crate) meeting: Meeting,
    pub(crate) carried: Carried,
    pub(crate) earlier: Earlier,
    pub(crate) findings: Vec<Finding>,
    /// Where each rank listens, if the ranks have exchanged their endpoints.
    pub(crate) endpoints: Option<Arc<[String]>>,
    pub(crate) inherited: Inherited,
}

/// What the exports contain besides the values, so that a process that reads them finds this place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Carried {
    /// The overrides, under the names of the equivalent variables.
    pub overrides: Vec<(&'static str, String)>,
    /// Inherited variables that would mislead the program.
    pub to_unset: Vec<&'static str>,
    /// The launcher that the exports name in `MPIENV_CONTEXT`. `None` if they do not set that
    /// variable.
    pub context: Option<Launcher>,
}

/// What an mpienv before this one has done for this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Earlier {
    /// The codes of the warnings that it printed before it became this program.
    pub said: Vec<String>,
    /// Whether this process keeps the launcher's binding to cores.
    pub keeps_binding: bool,
    /// The variables of threads that it set and nothing has changed since, with their values.
    pub threads: Vec<(&'static str, u32)>,
}

impl ClusterInfo {
    /// Returns the launcher that started this process.
    #[must_use]
    pub fn launcher(&self) -> Launcher {
        self.placement.launcher()
    }

    /// Returns the rank of this process in the job. Its [`index`](Rank::index) starts at 0 and is
    /// below the world size.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.placement.world()
    }

    /// Returns the number of processes in the job, at least 1.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.placement.size.value
    }

    /// Returns the rank of this process among those on its node, starting at 0.
    ///
    /// Programs use it to select their GPU. It has no fixed relation to the rank. `None` if the
    /// launcher does not provide it.
    #[must_use]
    pub fn local_rank(&self) -> Option<u32> {
        value_of(&self.placement.local_rank)
    }

    /// Returns the number of the job's processes on this node, or `None` if the launcher does not
    /// provide it.
    #[must_use]
    pub fn local_world_size(&self) -> Option<u32> {
        value_of(&self.placement.local_size)
    }

    /// Returns the number of this node in the job, starting at 0. `None` if it is unknown; mpienv
    /// does not guess it.
    #[must_use]
    pub fn node_rank(&self) -> Option<u32> {
        value_of(&self.placement.node_rank)
    }

    /// Returns the number of nodes in the job. `None` if it is unknown; mpienv does not guess it.
    #[must_use]
    pub fn node_count(&self) -> Option<u32> {
        value_of(&self.placement.node_count)
    }

    /// Returns how the processes are distributed over nodes.
    #[must_use]
    pub fn launch_style(&self) -> LaunchStyle {
        self.placement.style()
    }

    /// Returns the host of rank 0, where the ranks meet. It is the same on all ranks.
    ///
    /// The exception is the main node of AWS Batch. It does not know its own address, so rank 0
    /// listens on every interface there, and the host is 0.0.0.0.
    ///
    /// # Errors
    /// Returns an error if there may be several nodes and nothing names rank 0's host. The error's
    /// text lists the ways to name it.
    pub fn master_addr(&self) -> Result<&Host, Error> {
        self.meeting.addr.as_ref().map(|host| &host.value).map_err(Error::clone)
    }

    /// Returns rank 0's host as a user named it, and the one that the job has otherwise, if both
    /// are known and differ.
    #[doc(hidden)]
    pub fn users_master(&self) -> Option<(&Sourced<Host>, Host)> {
        let addr = self.meeting.addr.as_ref().ok()?;
        let own = master::loopback_or_launchers(&self.placement)?.value;
        // What a user sets together with RANK may be left from another job too.
        let is_users = self.meeting.addr_scope == Scope::User
            || self.launcher() == Launcher::User && self.carried.context.is_none();
        (is_users && own != addr.value).then_some((addr, own))
    }

    /// Returns the port on rank 0's host, the same on all ranks.
    #[must_use]
    pub fn master_port(&self) -> Port {
        self.meeting.port.value
    }

    /// Returns how many workers the platform requests on each node, which is the number of the
    /// node's GPUs.
    ///
    /// The value comes from `SKYPILOT_NUM_GPUS_PER_NODE`, `DSTACK_GPUS_PER_NODE`,
    /// `LEPTON_RESOURCE_ACCELERATOR_NUM`, `MLP_WORKER_GPU`, `NUM_TRAINERS` (RunPod),
    /// `PET_NPROC_PER_NODE` (Kubeflow), `NPROC_PER_NODE` (PAI), `SM_NUM_GPUS` (SageMaker) or
    /// `MA_NUM_GPUS` (ModelArts). `None` if none of them is set, or if the value is not a number
    /// above 0.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    ///
    /// let vars = [
    ///     ("SKYPILOT_NODE_RANK", "0"),
    ///     ("SKYPILOT_NUM_NODES", "2"),
    ///     ("SKYPILOT_NUM_GPUS_PER_NODE", "8"),
    /// ];
    /// assert_eq!(ClusterInfo::from_vars(vars)?.workers_per_node(), Some(8));
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    #[must_use]
    pub fn workers_per_node(&self) -> Option<u32> {
        self.placement.workers.as_ref()?.value.parse().ok().filter(|&workers| workers > 0)
    }

    /// Returns the port that this rank would use if no `MASTER_PORT` or option were set.
    ///
    /// If a user's `MASTER_PORT` reaches only some ranks, the other ranks use this port.
    #[must_use]
    pub fn default_master_port(&self) -> Port {
        self.meeting.default_port.port
    }

    /// Returns the network interfaces that NCCL may use, in NCCL's syntax. `None` if NCCL chooses
    /// them itself.
    #[must_use]
    pub fn nccl_socket_ifname(&self) -> Option<&str> {
        self.surroundings.nccl.ifname.value.as_deref()
    }

    /// Returns the hosts of all nodes, in the order of [`ClusterInfo::node_rank`]. Rank 0's host is
    /// the first.
    ///
    /// `None` if the launcher provides no such list. `mpienv::guide::variables` names the launchers
    /// that provide one, and a PMIx server does too. A list is ignored if its length is not
    /// [`ClusterInfo::node_count`], or if its order may not be that of the nodes.
    /// [`Provenance::hosts`] then gives the reason. If all ranks are on this node, the only entry
    /// is the launcher's name for it, or else [`ClusterInfo::master_addr`].
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    ///
    /// let info = ClusterInfo::from_vars([
    ///     ("SKYPILOT_NODE_RANK", "1"),
    ///     ("SKYPILOT_NUM_NODES", "2"),
    ///     ("SKYPILOT_NODE_IPS", "10.0.0.4\n10.0.0.5"),
    /// ])?;
    /// let hosts = info.hosts().expect("SkyPilot lists them");
    /// assert_eq!(hosts, ["10.0.0.4".parse()?, "10.0.0.5".parse()?]);
    /// assert_eq!(info.master_addr()?, &hosts[0]);
    /// assert_eq!(info.provenance().hosts, "SKYPILOT_NODE_IPS");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`Provenance::hosts`]: crate::Provenance::hosts
    #[must_use]
    pub fn hosts(&self) -> Option<&[Host]> {
        self.placement.hosts.value.as_deref()
    }

    /// Returns the number of this rank's device among the devices that it can see, starting at 0.
    ///
    /// The number is the local rank if the process sees all devices of its node. It is 0 if a list
    /// such as `CUDA_VISIBLE_DEVICES`, `ROCR_VISIBLE_DEVICES`, `ZE_AFFINITY_MASK`,
    /// `ASCEND_RT_VISIBLE_DEVICES` or `NEURON_RT_VISIBLE_CORES` shows only one device, as under
    /// `srun --gpus-per-task=1`. `None` if the launcher does not provide the local rank, or if the
    /// process sees no device or too few; [`Provenance::device_index`] says which. mpienv reads only
    /// such variables and does not look for devices.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    ///
    /// let job = [("RANK", "3"), ("WORLD_SIZE", "4")];
    /// let rank = job.into_iter().chain([("LOCAL_RANK", "3"), ("LOCAL_WORLD_SIZE", "4")]);
    /// assert_eq!(ClusterInfo::from_vars(rank.clone())?.device_index(), Some(3));
    /// let bound = rank.chain([("CUDA_VISIBLE_DEVICES", "3")]);
    /// assert_eq!(ClusterInfo::from_vars(bound)?.device_index(), Some(0));
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    ///
    /// [`Provenance::device_index`]: crate::Provenance::device_index
    #[must_use]
    pub fn device_index(&self) -> Option<u32> {
        self.surroundings.device_index.value
    }

    /// Returns how often the job was restarted, which is 0 in the first attempt. `None` if no
    /// variable says so.
    ///
    /// The value comes from `TORCHELASTIC_RESTART_COUNT`, `SLURM_RESTART_COUNT` or
    /// `LEPTON_JOB_FAILURE_COUNT`: the launcher's own variable, or else `MPIENV_RESTART_COUNT` of
    /// `Launch::max_restarts`, or else the variable of a surrounding
    /// launcher. Slurm sets its variable only after it has restarted the job. torchrun counts the
    /// restarts of each node separately, so its number may differ between nodes. A derived master
    /// port depends only on the counts of Slurm and mpienv.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    ///
    /// let step = [
    ///     ("SLURM_PROCID", "0"),
    ///     ("SLURM_NTASKS", "1"),
    ///     ("SLURM_STEP_ID", "0"),
    ///     ("SLURM_RESTART_COUNT", "2"),
    /// ];
    /// assert_eq!(ClusterInfo::from_vars(step)?.restart_count(), Some(2));
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    #[must_use]
    pub fn restart_count(&self) -> Option<u32> {
        self.surroundings.restart_count.value
    }

    /// Returns the platform that started one process on this node: [`ClusterInfo::launcher`] or a
    /// platform around it.
    ///
    /// `None` if there is no platform. For torchrun on a SkyPilot node, torchrun is the launcher
    /// and SkyPilot the platform.
    ///
    /// ```
    /// use mpienv::{ClusterInfo, Launcher};
    ///
    /// let info = ClusterInfo::from_vars([
    ///     ("SKYPILOT_NODE_RANK", "1"),
    ///     ("SKYPILOT_NUM_NODES", "2"),
    ///     ("PMI_RANK", "3"),
    ///     ("PMI_SIZE", "4"),
    /// ])?;
    /// assert_eq!((info.launcher(), info.platform()), (Launcher::Hydra, Some(Launcher::SkyPilot)));
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    #[must_use]
    pub fn platform(&self) -> Option<Launcher> {
        self.surroundings.platform.value
    }

    /// Returns the token that only the ranks of this job share. It is empty if nothing identifies
    /// the job.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.meeting.token
    }

    /// Returns how ranks reach MUNGE, if they authenticate with it (`MPIENV_AUTH=munge`), or do so
    /// if it answers (`MPIENV_AUTH=auto`).
    #[must_use]
    pub fn munge(&self) -> Option<&Munge> {
        self.meeting.auth.as_ref()
    }

    /// Returns whether the ranks have a key that other users do not. Whether MUNGE answers is not
    /// known here.
    #[doc(hidden)]
    pub fn has_secret(&self) -> bool {
        self.meeting.auth.as_ref().is_some_and(|munge| !munge.is_auto())
            || self.secret_source().is_some()
    }

    /// Returns where the job's secret comes from, if it has one. A launcher's name for its job is
    /// public.
    #[doc(hidden)]
    pub fn secret_source(&self) -> Option<&'static str> {
        match self.meeting.token_scope {
            _ if self.token().as_bytes().is_empty() => None,
            Scope::Job => None,
            Scope::Programs => Some("passed on by the launcher"),
            Scope::User if self.token().file().is_some() => Some(overrides::TOKEN_FILE),
            Scope::User => Some(overrides::TOKEN),
        }
    }

    /// Returns the source of each value.
    #[must_use]
    pub fn provenance(&self) -> Provenance {
        let place = &self.placement;
        let Surroundings { nccl, device_index, restart_count, platform, .. } = &self.surroundings;
        Provenance {
            launcher: place.launcher.source.clone(),
            rank: place.rank.source.clone(),
            world_size: place.size.source.clone(),
            local_rank: source_of(&place.local_rank),
            local_world_size: source_of(&place.local_size),
            node_rank: source_of(&place.node_rank),
            node_count: source_of(&place.node_count),
            launch_style: match place.style() {
                LaunchStyle::Alone => "the world size is 1",
                LaunchStyle::SingleNode => "the local size is the world size",
                LaunchStyle::PerNode => "the local size is 1",
                LaunchStyle::PerProcess => "the local size is below the world size",
                LaunchStyle::Unknown => NOT_PROVIDED,
            }
            .into(),
            master_addr: match &self.meeting.addr {
                Ok(host) => host.source.clone(),
                Err(_) => "not named by anything".into(),
            },
            master_port: self.meeting.port.source.clone(),
            nccl_socket_ifname: nccl.ifname.source.clone(),
            hosts: place.hosts.source.clone(),
            device_index: device_index.source.clone(),
            restart_count: restart_count.source.clone(),
            platform: platform.source.clone(),
        }
    }

    /// Returns what is suspicious in the environment but did not prevent reading it.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

/// The source of each value of a [`ClusterInfo`]: the name of a variable, or a description of a
/// rule.
///
/// ```
/// use mpienv::{ClusterInfo, Provenance};
///
/// let vars = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "29500")];
/// let info = ClusterInfo::from_vars(vars)?;
/// let provenance: Provenance = info.provenance();
/// assert_eq!(provenance.master_port, "MASTER_PORT");
/// assert_eq!(provenance.master_addr, "all ranks are on this node");
/// // Without MASTER_PORT, this job of one rank would use a port of its own.
/// assert!((20000..30000).contains(&info.default_master_port().get()));
/// # Ok::<(), mpienv::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each field is the source of the value of its name")]
pub struct Provenance {
    pub launcher: Cow<'static, str>,
    pub rank: Cow<'static, str>,
    pub world_size: Cow<'static, str>,
    pub local_rank: Cow<'static, str>,
    pub local_world_size: Cow<'static, str>,
    pub node_rank: Cow<'static, str>,
    pub node_count: Cow<'static, str>,
    pub launch_style: Cow<'static, str>,
    pub master_addr: Cow<'static, str>,
    pub master_port: Cow<'static, str>,
    pub nccl_socket_ifname: Cow<'static, str>,
    pub hosts: Cow<'static, str>,
    pub device_index: Cow<'static, str>,
    pub restart_count: Cow<'static, str>,
    pub platform: Cow<'static, str>,
}

/// The environment from which a [`ClusterInfo`] was read.
///
/// Comparisons ignore it. `Debug` does not print it, because it may contain secrets.
#[derive(Clone)]
pub(crate) struct Inherited(pub Environment);

impl Deref for Inherited {
    type Target = Environment;

    fn deref(&self) -> &Environment {
        &self.0
    }
}

impl PartialEq for Inherited {
    fn eq(&self, _other: &Inherited) -> bool {
        true
    }
}

impl Eq for Inherited {}

impl fmt::Debug for Inherited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inherited(..)")
    }
}

/// Serializes to the object that `mpienv show --json` prints. Its format is stable.
impl Serialize for ClusterInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        macro_rules! object {
            ($($name:ident: $value:expr,)+) => {{
                let fields = [$(stringify!($name)),+].len();
                let mut object = serializer.serialize_struct("ClusterInfo", fields)?;
                $(object.serialize_field(stringify!($name), &$value)?;)+
                object.end()
            }};
        }
        object! {
            launcher: self.launcher(),
            rank: self.rank().index(),
            world_size: self.world_size(),
            local_rank: self.local_rank(),
            local_world_size: self.local_world_size(),
            node_rank: self.node_rank(),
            node_count: self.node_count(),
            launch_style: self.launch_style(),
            master_addr: self.master_addr().ok(),
            master_port: self.master_port(),
            nccl_socket_ifname: self.nccl_socket_ifname(),
            hosts: self.hosts(),
            device_index: self.device_index(),
            restart_count: self.restart_count(),
            platform: self.platform(),
            provenance: self.provenance(),
            findings: self.findings,
        }
    }
}
