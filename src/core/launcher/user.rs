//! Ranks set by a user, a script, `mpienv launch`, or an earlier `mpienv export`.
//!
//! Under any launcher, mpienv takes the master's address and port, `MASTER_ADDR` and `MASTER_PORT`,
//! unchanged.

use crate::environment::digits;
use crate::launcher::alone::BY_ITSELF;
use crate::launcher::prelude::*;
use crate::launcher::{Launcher, MASTER, kubernetes, runpod};
use crate::value::host::{Host, first_label};
use crate::value::rank::{Rank, RankError};
use crate::value::sourced::Known;

variables! {
    /// The variables of PyTorch's convention for a rank.
    pub struct UserVars {
        "[PyTorch: environment variable initialization](https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization)" {
            RANK = "RANK" => rank: Option<u32>, "rank";
            WORLD_SIZE = "WORLD_SIZE" => world_size: Option<u32>, "world size";
        }
        "[torchrun: environment variables](https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables)" {
            LOCAL_RANK = "LOCAL_RANK" => local_rank: Option<u32>, "rank on this node";
            LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE" => local_world_size: Option<u32>, "ranks on this node";
        }
        "[Lightning: general purpose cluster](https://lightning.ai/docs/pytorch/stable/clouds/cluster_intermediate_1.html)" {
            NODE_RANK = "NODE_RANK" => node_rank: Option<u32>, "the node's number";
        }
    }
}

variables! {
    /// The variables that DeepSpeed's launcher sets in addition.
    pub struct DeepSpeedVars {
        "[DeepSpeed: launch.py](https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/launch.py)" {
            LOCAL_SIZE = "LOCAL_SIZE" => local_size: u32, "ranks on this node";
            CROSS_RANK = "CROSS_RANK" => cross_rank: u32, "the node's number";
            CROSS_SIZE = "CROSS_SIZE" => cross_size: u32, "nodes of the job";
        }
    }
}

variables! {
    /// How many workers a pod should start, according to PAI's DLC and Kubeflow's PyTorchJob.
    pub struct PodVars {
        "[Alibaba Cloud PAI: environment variables of DLC](https://www.alibabacloud.com/help/en/pai/general-environment-variables)" {
            NPROC = "NPROC_PER_NODE" => nproc: Option<String>, "GPUs of each pod";
        }
        "[Kubeflow Training Operator: PyTorchJob](https://github.com/kubeflow/training-operator/blob/v1.9.0/pkg/controller.v1/pytorch/envvar.go)" {
            PET_NPROC = "PET_NPROC_PER_NODE" => pet_nproc: Option<String>, "workers of each pod: a number, `auto`, `cpu` or `gpu`";
        }
    }
}

/// Variables of platforms that set RANK and WORLD_SIZE once on each node, which applies if there is
/// no local rank.
const PLATFORMS: &[&str] = &["KUBERNETES_SERVICE_HOST", "CLOUD_ML_JOB_ID", "VC_TASK_INDEX"];

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[
        UserVars::VARIABLES,
        NodesVars::VARIABLES,
        DeepSpeedVars::VARIABLES,
        PodVars::VARIABLES,
    ],
    marker: |environment| {
        // A pod of an indexed job or of RunPod has its rank in another variable.
        let is_elsewhere = || {
            environment.is_set(kubernetes::INDEX)
                || runpod::marker(environment).is_some()
                || of_node(environment).is_some()
        };
        let size = || environment.first_set(&[WORLD_SIZE]).filter(|_| !is_elsewhere());
        environment.first_set(&[RANK]).or_else(|| of_process(environment)).or_else(size)
    },
    starts: Starts::Processes,
    start: "set RANK, WORLD_SIZE and the related variables together",
    one_per_node: "set RANK to the node's number and WORLD_SIZE to the number of nodes, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1",
    // Whatever sets RANK and WORLD_SIZE also sets the master, but not always the node's number.
    may_inherit: &[NODE_RANK],
    outside: &[COUNT, LOCAL_SIZE, CROSS_SIZE, NPROC, PET_NPROC],
    samples: &[Sample::of(set)],
    ..LauncherSpec::plain(read)
};

/// Sets all variables, as torchrun also does.
pub(super) fn set(process: &Process<'_>, vars: &mut Setter) {
    vars.set_all([RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE], process.place());
    vars.set(MASTER[0], process.name(0));
    vars.set(MASTER[1], 29500);
}

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let environment = marker.environment;
    let vars: UserVars = marker.read()?;
    if marker.variable == NODE_RANK {
        return read_node_rank(marker, &vars);
    }
    let known = |name, value: Option<u32>| by(name, value).ok_or_else(|| marker.missing(name));
    let (rank, size) = (known(RANK, vars.rank)?, known(WORLD_SIZE, vars.world_size)?);
    let no_local = vars.local_rank.is_none() && vars.local_world_size.is_none();
    let has_platform = environment.first_set(PLATFORMS).is_some();
    // A process that a pod has started beside others, with the pod's own number as its rank.
    if has_platform
        && vars.node_rank == Some(rank.value)
        && let Some(local) = vars.local_rank.filter(|&local| local > 0)
    {
        let why =
            "RANK is the pod's number, as NODE_RANK is, and this process is not the pod's first";
        return Err(marker.refuse(why, LOCAL_RANK, local));
    }
    if no_local
        && vars.node_rank.is_none_or(|node| node == rank.value)
        && has_platform
        && !is_on_masters_host(environment, rank.value)
    {
        let pod = marker.read::<PodVars>()?;
        let pods = pods(marker, rank.value, size, pod.pet_nproc.as_deref())?;
        if let Some(other) = other_nodes(environment, pods.value) {
            let why = format!("{}=\"{}\" is the number of nodes here", pods.source, pods.value);
            let error = Error::new(why, NODES_DIFFER).by(marker.launcher);
            return Err(error.of(other.source).found(other.value));
        }
        let has_others = rank.value == 0 && pods.value > 1;
        let mut placement = marker.node(rank, pods)?;
        if has_others && is_localhost_of_master(environment) {
            placement.master_addr =
                Some(Sourced::new(Host::ANY, "MASTER_ADDR=localhost in the master's pod"));
        }
        let variable = if pod.pet_nproc.is_some() { PET_NPROC } else { NPROC };
        return Ok(placement.with_workers(variable, pod.pet_nproc.or(pod.nproc)));
    }
    let placement = marker.place(rank, size)?;
    let mut local_size = by(LOCAL_WORLD_SIZE, vars.local_world_size);
    let (mut node, mut nodes) = (by(NODE_RANK, vars.node_rank), None);
    // The names mean something only together, because other programs use them too.
    if let (None, Ok(more)) = (&local_size, DeepSpeedVars::read(environment)) {
        local_size = Some(by(LOCAL_SIZE, more.local_size));
        node = node.or(Some(by(CROSS_RANK, more.cross_rank)));
        nodes = Some(by(CROSS_SIZE, more.cross_size));
    }
    let placement = placement.with_local(by(LOCAL_RANK, vars.local_rank), local_size)?;
    Ok(placement.with_nodes(node, nodes))
}

/// Returns whether a rank above 0 is on the host of rank 0, by the address where the ranks meet:
/// its pod has several.
fn is_on_masters_host(environment: &Environment, rank: u32) -> bool {
    let Some(master) = environment.text(MASTER[0]).filter(|_| rank > 0) else { return false };
    let host = master.parse::<Host>().ok();
    let is_name = host.as_ref().is_some_and(|host| host.address().is_none());
    let is_own =
        environment.text("HOSTNAME").is_some_and(|own| first_label(own) == first_label(master));
    is_name && is_own || host.is_some_and(|host| host.is_loopback())
}

/// Returns whether `localhost` is right in this pod and wrong in all others. KubeDL and Kubeflow's
/// first operator for PyTorch set it in the pod JOB-master-0, and this name in the other pods.
fn is_localhost_of_master(environment: &Environment) -> bool {
    environment.text(MASTER[0]) == Some("localhost")
        && environment.text("HOSTNAME").is_some_and(|own| own.ends_with("-master-0"))
}

/// Returns the number of pods, of which this one is the number `rank`. Kubeflow's PyTorchJob sets
/// `RANK` to the pod's number, and `WORLD_SIZE` to that of the workers of all pods.
fn pods(
    marker: Marker<'_>,
    rank: u32,
    size: Sourced<u32>,
    per_node: Option<&str>,
) -> Result<Sourced<u32>, Error> {
    let number = |name| marker.environment.digits::<u32>(name);
    let pods = number(kubernetes::NODES);
    let per_node = per_node.and_then(digits::<u32>).filter(|&workers| workers > 1);
    let is_of_job = number(kubernetes::NODE_RANK) == Some(rank) && pods != Some(size.value);
    let Some(per_node) = per_node.filter(|_| is_of_job) else { return Ok(size) };
    let per_node = by(PET_NPROC, per_node);
    match pods {
        Some(pods) if u64::from(pods) * u64::from(per_node.value) != u64::from(size.value) => {
            Err(contradiction(marker, &size, &[&by(kubernetes::NODES, pods), &per_node]))
        }
        // An elastic job has a range of numbers of pods.
        _ => quotient(marker, &size, &per_node),
    }
}

variables! {
    /// The number of nodes, which scripts set together with `NODE_RANK`.
    pub struct NodesVars {
        "[Lightning: general purpose cluster](https://lightning.ai/docs/pytorch/stable/clouds/cluster_intermediate_1.html)" {
            NODES = "NUM_NODES" => nodes: Option<u32>, "nodes of the job, with `NODE_RANK`";
            COUNT = "NNODES" => count: Option<u32>, "the same";
        }
    }
}

/// Returns another number of nodes than `nodes` that a script has set, or a template of Kubeflow's.
/// A range of numbers is none, and 1 is the default of some images.
pub(crate) fn other_nodes(environment: &Environment, nodes: u32) -> Known<u32> {
    let number = |name| by(name, environment.digits(name));
    let numbers = [NODES, COUNT, kubernetes::NODES].into_iter().filter_map(number);
    numbers.filter(|other| other.value > 1).find(|other| other.value != nodes)
}

/// What to do if `WORLD_SIZE` counts other processes than the nodes' only ones.
const NODES_DIFFER: &str = "set RANK to the node's number and WORLD_SIZE to the number of nodes; or, if WORLD_SIZE counts the \
                            ranks of all nodes, set NODE_RANK in place of RANK; or unset the number of nodes if it \
                            is left from another job";

/// Returns `NODE_RANK` if a local rank is set too, and `RANK` is not: this process is one of several
/// on its node.
///
/// Users set `LOCAL_RANK=0` and `NODE_RANK=0` for programs that require them: these numbers count
/// only with a size.
pub(super) fn of_process(environment: &Environment) -> Option<&'static str> {
    let is_set = [NODE_RANK, LOCAL_RANK].iter().all(|name| environment.is_set(name));
    let sizes = [NODES, COUNT, LOCAL_WORLD_SIZE, WORLD_SIZE];
    let is_above_0 = |name: &&str| environment.text(name).is_none_or(|text| text.trim() != "0");
    let is_one = || {
        environment.first_set(&sizes).is_some() || [NODE_RANK, LOCAL_RANK].iter().any(is_above_0)
    };
    (is_set && !environment.is_set(RANK) && is_one()).then_some(NODE_RANK)
}

/// Returns `NODE_RANK` if the number of nodes is set too, and no rank is: this process is the only
/// one on its node. A pod of RunPod's has the same names.
pub(in crate::launcher) fn of_node(environment: &Environment) -> Option<&'static str> {
    let has_rank = environment.first_set(&[RANK, LOCAL_RANK]).is_some();
    let has_nodes = || environment.first_set(&[NODES, COUNT]).is_some();
    let is_pair = !has_rank && environment.is_set(NODE_RANK) && has_nodes();
    (is_pair && runpod::marker(environment).is_none()).then_some(NODE_RANK)
}

/// Returns the error for a process on one of several nodes that does not know which: each would be
/// rank 0 of 1. `1:2` is a range of torchrun's.
pub(crate) fn refuse_node(environment: &Environment) -> Option<Error> {
    let is_several = |text: &str| text.split(':').filter_map(digits::<u64>).any(|nodes| nodes > 1);
    let set = |name| Some((name, environment.text(name).filter(|text| is_several(text))?));
    let (variable, nodes) = set(COUNT).or_else(|| set(kubernetes::NODES))?;
    let (missing, remedy, own) = if variable == COUNT {
        let missing = format!("neither {NODE_RANK} nor {} nor {RANK} is", kubernetes::INDEX);
        (missing, "a Kubernetes Job needs `completionMode: Indexed`", NODE_RANK)
    } else {
        let own = kubernetes::NODE_RANK;
        (format!("{own} is not"), kubernetes::ELASTIC, own)
    };
    let reason = format!("{missing} set, so the number of this node is not known");
    let remedy = format!(
        "{remedy}; elsewhere set {own} to the node's number; or unset {variable} if it is left from another job, or \
         set {BY_ITSELF}"
    );
    Some(Error::new(reason, remedy).by(Launcher::User).of(variable).found(nodes))
}

/// How to give a process its rank if a size is missing.
const REMEDY: &str = "set LOCAL_WORLD_SIZE to the number of processes on each node, and NUM_NODES or WORLD_SIZE; or set RANK and \
                      WORLD_SIZE; or unset NODE_RANK if it is left from another job";

/// What the variables say about the nodes, each number with its variable.
struct Numbers<'a> {
    marker: Marker<'a>,
    node: Sourced<u32>,
    nodes: Option<Sourced<u32>>,
    local_size: Option<Sourced<u32>>,
    size: Option<Sourced<u32>>,
}

fn read_node_rank(marker: Marker<'_>, vars: &UserVars) -> Result<Placement, Error> {
    let number = |name: &'static str, value: Option<u32>| match value {
        Some(0) => Err(marker.refuse(RankError::NoMembers, name, 0)),
        value => Ok(by(name, value)),
    };
    let more: NodesVars = marker.read()?;
    let (nodes, count) = (number(NODES, more.nodes)?, number(COUNT, more.count)?);
    if let (Some(nodes), Some(count)) = (more.nodes, more.count)
        && nodes != count
    {
        let why = format!("it contradicts {NODES}=\"{nodes}\"");
        return Err(marker.refuse(why, COUNT, count));
    }
    let node = vars.node_rank.ok_or_else(|| marker.missing(NODE_RANK))?;
    let numbers = Numbers {
        marker,
        node: by(NODE_RANK, node),
        nodes: nodes.or(count),
        local_size: number(LOCAL_WORLD_SIZE, vars.local_world_size)?,
        size: number(WORLD_SIZE, vars.world_size)?,
    };
    match vars.local_rank {
        Some(local_rank) => numbers.process(local_rank),
        None => numbers.only_process(),
    }
}

impl Numbers<'_> {
    /// Returns the place of the only process on the node.
    fn only_process(self) -> Result<Placement, Error> {
        let Numbers { marker, node, nodes, local_size, size } = self;
        if local_size.is_some_and(|local| local.value > 1) {
            return Err(marker.missing(LOCAL_RANK));
        }
        let nodes = nodes.ok_or_else(|| marker.missing(NODES))?;
        // Without a local rank, the world size may count the ranks that are still to be started.
        if let Some(size) = &size {
            quotient(marker, size, &nodes)?;
        }
        let placement = marker.node(node, nodes)?;
        Ok(placement.with_all_workers(WORLD_SIZE, size.map(|size| size.value)))
    }

    /// Returns the place of one of the node's processes.
    fn process(self, local_rank: u32) -> Result<Placement, Error> {
        let Numbers { marker, node, nodes, local_size, size } = self;
        let (nodes, local_size) = match (nodes, local_size, size.clone()) {
            (Some(nodes), Some(local_size), _) => (nodes, local_size),
            (Some(nodes), None, Some(size)) => (nodes.clone(), quotient(marker, &size, &nodes)?),
            (None, Some(local_size), Some(size)) => {
                (quotient(marker, &size, &local_size)?, local_size)
            }
            (None, None, Some(size)) if node.value == 0 => {
                return first_node(marker, local_rank, size);
            }
            (_, None, _) => return Err(marker.missing_with(LOCAL_WORLD_SIZE, REMEDY)),
            (None, ..) => return Err(marker.missing_with(NODES, REMEDY)),
        };
        let refused = |name: &str, value, size: &Sourced<u32>| {
            Rank::new(value, size.value).map_err(|error| marker.refuse(error, name, value))
        };
        refused(NODE_RANK, node.value, &nodes)?;
        refused(LOCAL_RANK, local_rank, &local_size)?;
        let all = u64::from(nodes.value) * u64::from(local_size.value);
        if let Some(size) = size.filter(|size| u64::from(size.value) != all) {
            return Err(contradiction(marker, &size, &[&nodes, &local_size]));
        }
        let Ok(all) = u32::try_from(all) else {
            let here = local_size.value;
            let why = format!("{here} processes on each of so many nodes are too many");
            return Err(marker.refuse(why, &nodes.source, nodes.value));
        };
        let source = format!("{NODE_RANK}, {} and {LOCAL_RANK}", local_size.source);
        let rank = by(source, node.value * local_size.value + local_rank);
        let size = by(format!("{} times {}", nodes.source, local_size.source), all);
        let placement = marker.place(rank, size)?;
        let placement = placement.with_local(Some(by(LOCAL_RANK, local_rank)), Some(local_size))?;
        Ok(placement.with_nodes(Some(node), Some(nodes)))
    }
}

/// Returns the place of a process on the first node, where the local rank is the rank. If the ranks
/// meet at a loopback address, as Lightning sets it for one node, the node is the only one.
fn first_node(marker: Marker<'_>, local_rank: u32, size: Sourced<u32>) -> Result<Placement, Error> {
    let master = marker.environment.text(MASTER[0]).and_then(|text| text.parse::<Host>().ok());
    let is_only = master.is_some_and(|host| host.is_loopback());
    let local_size = is_only.then(|| size.clone());
    let placement = marker.place(by(LOCAL_RANK, local_rank), size)?;
    let placement = placement.with_local(Some(by(LOCAL_RANK, local_rank)), local_size)?;
    Ok(placement.with_nodes(Some(by(NODE_RANK, 0)), None))
}

/// Returns how many of one number are in another, which must be a multiple of it.
fn quotient(
    marker: Marker<'_>,
    size: &Sourced<u32>,
    part: &Sourced<u32>,
) -> Result<Sourced<u32>, Error> {
    match size.value.checked_rem(part.value) {
        Some(0) => Ok(by(format!("{} by {}", size.source, part.source), size.value / part.value)),
        _ => Err(contradiction(marker, size, &[part])),
    }
}

/// Returns the error for a world size that is not a product of the other numbers.
fn contradiction(marker: Marker<'_>, size: &Sourced<u32>, others: &[&Sourced<u32>]) -> Error {
    let others: Vec<_> =
        others.iter().map(|other| format!("{}=\"{}\"", other.source, other.value)).collect();
    let what = if others.len() > 1 { "the product" } else { "a multiple" };
    let why = format!("it is not {what} of {}", others.join(" and "));
    marker.refuse(why, &size.source, size.value)
}
