//! Reports environments that look suspicious as a whole although their launcher can be read.

use super::Place;
use super::disagreement::{Other, disagreements};
use crate::cluster::own_variables::misspelled;
use crate::cluster::{nccl, overrides};
use crate::environment::Environment;
use crate::finding::Finding;
use crate::launcher::Launcher;
use crate::launcher::placement::Placement;
use crate::launcher::torchrun::AGENT_STORE;
use crate::launcher::user::{LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, RANK, WORLD_SIZE};
use crate::value::host::{Host, first_label};
use crate::value::port::{PortRange, UNPRIVILEGED};
use crate::value::sourced::{Known, Sourced, value_of};

/// Returns all findings about this process's place.
pub(super) fn findings(place: &Place<'_>, others: &[Other<'_>]) -> Vec<Finding> {
    let Place { whole, environment, placement, .. } = place;
    let inherited = partly_inherited(place);
    let more = [
        local_rank_order(placement),
        stale_agent_store(environment, placement),
        pyxis_port(environment, placement),
    ];
    let of_launchers = inherited.into_iter().chain(disagreements(place, others));
    of_launchers.chain(more.into_iter().flatten()).chain(misspelled(whole)).collect()
}

/// Reports a range with ports that usually only root may open.
pub(super) fn privileged_ports(range: &Known<PortRange>) -> Option<Finding> {
    let Sourced { value, source } = range.as_ref()?;
    if value.first().get() >= UNPRIVILEGED {
        return None;
    }
    Some(Finding::warning(
        "port-range-privileged",
        format!("the range of ports {value} ({source}) begins below {UNPRIVILEGED}"),
        "unless a host is set up otherwise, only root can listen there, so rank 0 would fail",
        format!("choose a range from {UNPRIVILEGED} up, the same on all ranks"),
    ))
}

/// Reports a user's `MASTER_ADDR` that is not rank 0's host, as far as the launcher's list of hosts
/// shows it without a name service.
///
/// Addresses are compared with addresses, and names with names. A name that contains that of rank
/// 0's host is probably its name in another network, as `node0-ib0` is.
pub(super) fn master_of_hosts(placement: &Placement, master: &Host) -> Option<Finding> {
    let Sourced { value, source } = &placement.hosts;
    let hosts = value.as_deref().filter(|hosts| hosts.len() > 1)?;
    let [first, others @ ..] = hosts else { return None };
    let is_comparable = master.address().is_none() && first.address().is_none();
    let other = others.iter().find(|other| is_same(master, other));
    if is_same(master, first) || master.is_loopback() || other.is_none() && !is_comparable {
        return None;
    }
    let remedy = match other {
        Some(_) => String::new(),
        None => {
            format!("; if it is another name of {first}, set MPIENV_MASTER_ADDR={master} instead")
        }
    };
    Some(Finding::warning(
        "master-not-rank-0",
        format!("MASTER_ADDR={master}, but rank 0 runs on {first}, the first host of {source}"),
        "rank 0 listens on its own host, so the other ranks wait for it elsewhere",
        format!("unset MASTER_ADDR: mpienv then uses {first}{remedy}"),
    ))
}

/// Reports a user's `MASTER_ADDR` that is not the host that the launcher names, where it lists no
/// hosts. Only names are compared: a host may have several addresses.
pub(super) fn master_of_platform(placement: &Placement, master: &Host) -> Option<Finding> {
    let Sourced { value: named, source } = placement.master_addr.as_ref()?;
    let is_comparable = master.address().is_none() && named.address().is_none();
    if !is_comparable
        || placement.hosts.value.is_some()
        || placement.master_doubt.is_some()
        || placement.is_one_node()
        || master.is_loopback()
        || is_same(master, named)
        || is_same(named, master)
    {
        return None;
    }
    Some(Finding::warning(
        "master-not-rank-0",
        format!("MASTER_ADDR={master}, but rank 0's host is {named} ({source})"),
        "rank 0 listens on its own host, so the other ranks may wait for it elsewhere",
        format!(
            "unset MASTER_ADDR: mpienv then uses {named}; if ranks do meet at {master}, set MPIENV_MASTER_ADDR={master} instead"
        ),
    ))
}

/// Returns whether two addresses are the same, or a name is that of a host, perhaps in another
/// network. Domains do not count.
pub(super) fn is_same(name: &Host, host: &Host) -> bool {
    if name.address().is_some() || host.address().is_some() {
        return name == host;
    }
    let label = |host: &Host| first_label(&host.to_string()).to_ascii_lowercase();
    let (name, host) = (label(name), label(host));
    // `node10` is not `node1` in another network.
    let is_apart = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_digit());
    name.strip_prefix(&host).is_some_and(is_apart)
        || name.strip_suffix(&host).is_some_and(|before| before.ends_with(['-', '_']))
}

/// Returns inherited variables that would mislead the program.
pub(super) fn to_unset(place: &Place<'_>, nccl: &Sourced<Option<String>>) -> Vec<&'static str> {
    let Place { whole, environment, placement, outer, .. } = place;
    let unwanted = nccl.value.is_none().then_some(nccl::VARIABLE);
    let stale = (placement.launcher() != Launcher::Torchrun).then_some(AGENT_STORE);
    let set = unwanted.into_iter().chain(stale).filter(|name| environment.get(name).is_some());
    // What an outer job set for its process's node and this process's launcher does not set.
    let missing = [
        (LOCAL_RANK, placement.local_rank.is_none()),
        (LOCAL_WORLD_SIZE, placement.local_size.is_none()),
        (NODE_RANK, placement.node_rank.is_none()),
    ];
    let is_left = |name| outer.as_ref().is_some_and(|outer| outer.seen.is_known(whole, name));
    let left = missing.into_iter().filter(|&(name, is_missing)| is_missing && is_left(name));
    set.chain(left.map(|(name, _)| name)).collect()
}

/// Reports ranks that are not assigned to nodes in blocks, because a local rank computed from the
/// rank would be wrong.
fn local_rank_order(placement: &Placement) -> Option<Finding> {
    let rank = placement.rank.value;
    let (local_rank, local_size) =
        (value_of(&placement.local_rank)?, value_of(&placement.local_size)?);
    if local_rank == rank % local_size
        || can_be_in_blocks(placement, rank.checked_sub(local_rank), local_size)
    {
        return None;
    }
    Some(Finding::note(
        "local-rank-order",
        format!("rank {rank} has local rank {local_rank} of {local_size}"),
        "the ranks are not assigned to nodes in blocks of equal size, so rank % local size is not the local rank",
        "use the exported LOCAL_RANK, and do not compute it",
    ))
}

/// Returns whether nodes of different sizes may hold their ranks in blocks, if this node's block
/// begins with rank `first`. Returns false if the node's number is unknown, because otherwise no
/// order would ever be reported.
fn can_be_in_blocks(placement: &Placement, first: Option<u32>, local_size: u32) -> bool {
    let (Some(first), Some(node)) = (first, &placement.node_rank) else { return false };
    // Every other node has at least one rank.
    let fit = |ranks: u32, nodes: u32| ranks >= nodes && (nodes > 0 || ranks == 0);
    let after = placement.size.value.checked_sub(first.saturating_add(local_size));
    let nodes_after = value_of(&placement.node_count)
        .map(|nodes| nodes.saturating_sub(node.value.saturating_add(1)));
    let fits_after = after.is_some_and(|after| nodes_after.is_none_or(|nodes| fit(after, nodes)));
    fit(first, node.value) && fits_after
}

/// Reports a port that enroot's hook for PyTorch derives from the Slurm job alone.
fn pyxis_port(environment: &Environment, placement: &Placement) -> Option<Finding> {
    let is_of_hook = [RANK, WORLD_SIZE, LOCAL_RANK].iter().all(|name| environment.is_set(name));
    let job = environment.digits::<u64>("SLURM_JOB_ID")?;
    let port = environment.digits::<u64>("MASTER_PORT")?;
    // An override is deliberate. The formulas below are those of the hook's current and earlier
    // versions.
    let is_asked = environment.is_set(overrides::MASTER_PORT);
    if placement.launcher() != Launcher::Slurm
        || !is_of_hook
        || is_asked
        || ![job % 4536 + 61000, job % 16384 + 49152].contains(&port)
    {
        return None;
    }
    Some(Finding::note(
        "pyxis-master-port",
        format!(
            "MASTER_PORT {port} follows from SLURM_JOB_ID {job}, as enroot's hook for PyTorch sets it"
        ),
        "it is the same for all steps of the job: two steps on one node at the same time cannot both listen there",
        format!(
            "for several steps at a time, set {}=auto, which gives each step its own",
            overrides::MASTER_PORT
        ),
    ))
}

/// Reports the use of torchrun's agent store without torchrun.
fn stale_agent_store(environment: &Environment, placement: &Placement) -> Option<Finding> {
    if !environment.is_set(AGENT_STORE) || placement.launcher() == Launcher::Torchrun {
        return None;
    }
    Some(Finding::warning(
        "stale-agent-store",
        format!("{AGENT_STORE} is set, but torchrun did not start this process"),
        "PyTorch's ranks would wait for a store that no process serves",
        format!("unset {AGENT_STORE}, or use mpienv export, exec or launch, which unset it"),
    ))
}

/// Reports a new RANK and WORLD_SIZE whose local variables still belong to the outer process, or to
/// a process by itself, whose export has no context.
fn partly_inherited(place: &Place<'_>) -> Option<Finding> {
    let Place { environment, placement, outer, choice, .. } = place;
    let names = [LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK];
    let is_left =
        |name: &&str| outer.as_ref().is_some_and(|outer| outer.seen.is_known(environment, name));
    let is_same = [RANK, WORLD_SIZE].iter().all(is_left);
    let of_outer = !is_same && names[..2].iter().all(is_left);
    let is_one = names.map(|name| environment.text(name)) == [Some("0"), Some("1"), Some("0")];
    let of_one = is_one && placement.rank.value > 0 && choice.source != overrides::LAUNCHER;
    if placement.launcher() != Launcher::User || !of_outer && !of_one {
        return None;
    }
    let names = &names[..if of_outer { 2 } else { 3 }];
    let shown: Vec<_> = names.iter().map(|name| environment.shown(name)).collect();
    let shown = shown.join(" and ");
    let what = if of_outer {
        format!("RANK or WORLD_SIZE has changed since mpienv set it, but {shown} have not")
    } else {
        let rank = environment.shown(RANK);
        format!("{rank}, but {shown} are those of the first node's only rank")
    };
    Some(Finding::warning(
        "partly-inherited",
        what,
        "LOCAL_RANK may still be that of the parent process",
        format!("set {} together with RANK and WORLD_SIZE, or unset them", names.join(" and ")),
    ))
}
