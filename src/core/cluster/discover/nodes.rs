//! Infers node numbers and node counts from the sizes.

use std::sync::Arc;

use crate::cluster::overrides::{self, ASKED};
use crate::environment::Environment;
use crate::error::Error;
use crate::launcher::placement::{LaunchStyle, Placement};
use crate::launcher::{Launcher, Starts, kubernetes, user};
use crate::value::host::Host;
use crate::value::rank::Rank;
use crate::value::sourced::{Known, Sourced, by, value_of};

/// Adds the values that follow, and rejects values that are impossible.
pub(super) fn complete(placement: &mut Placement, on_azure: bool) -> Result<(), Error> {
    // The only rank of a job is the only one on its node.
    if placement.size.value == 1 {
        follow(&mut placement.local_rank, 0, "the world size is 1");
        follow(&mut placement.local_size, 1, "the world size is 1");
    }
    drop_strange_node_count(placement);
    fill_nodes(placement, on_azure);
    check_nodes(placement)
}

fn follow(known: &mut Known<u32>, value: u32, source: &'static str) {
    known.get_or_insert_with(|| Sourced::new(value, source));
}

/// Drops a node count that does not fit this job, because every other node has at least one rank.
/// It belongs to something else, such as an allocation or another step.
fn drop_strange_node_count(placement: &mut Placement) {
    let with_others = value_of(&placement.local_size).unwrap_or(1).saturating_sub(1);
    let most = placement.size.value.saturating_sub(with_others);
    let has_number = placement.node_rank.is_some();
    placement.node_count.take_if(|nodes| nodes.value > most || nodes.value == 0 && !has_number);
}

/// Adds node values that follow from the sizes if the launcher does not provide them.
fn fill_nodes(placement: &mut Placement, on_azure: bool) {
    let (rank, size) = (placement.rank.value, placement.size.value);
    if placement.is_one_node() {
        follow(&mut placement.node_rank, 0, "all ranks are on this node");
        follow(&mut placement.node_count, 1, "all ranks are on this node");
    } else if placement.style() == LaunchStyle::PerNode {
        // A rank that is alone on its node may be the last of an uneven job. The rank is the node's
        // number only if every node is known to have one rank.
        if value_of(&placement.node_count) == Some(size) {
            follow(&mut placement.node_rank, rank, "the rank, because every node has one");
        } else if on_azure {
            let source =
                "the rank, because Azure starts the same number of processes on every node";
            follow(&mut placement.node_rank, rank, source);
            follow(&mut placement.node_count, size, source);
        }
    }
}

/// Rejects a node number that is not below the number of nodes. Each node has a rank, so there are
/// at most as many nodes as ranks.
fn check_nodes(placement: &Placement) -> Result<(), Error> {
    let Some(node) = &placement.node_rank else { return Ok(()) };
    let nodes = placement.node_count.as_ref().unwrap_or(&placement.size);
    let checked = Rank::new(node.value, nodes.value).map(drop);
    checked.map_err(|error| placement.launcher().refuse(error, &node.source, node.value))
}

/// Returns the hosts in the order of the nodes' numbers, or `None` with the reason as the source.
pub(super) fn hosts(
    placement: &Placement,
    master: Option<&Sourced<Host>>,
) -> Sourced<Option<Arc<[Host]>>> {
    let source = &placement.hosts.source;
    let Some(hosts) = &placement.hosts.value else {
        return match master.filter(|_| placement.is_one_node()) {
            Some(Sourced { value, source }) => {
                Sourced::new(Some([value.clone()].into()), source.clone())
            }
            None => placement.hosts.clone(),
        };
    };
    let unknown = |why: String| Sourced::new(None, why);
    let (listed, count) = (hosts.len(), value_of(&placement.node_count));
    if count.is_none_or(|count| listed != count as usize) {
        let count = count.map_or("an unknown number of".to_owned(), |count| count.to_string());
        return unknown(format!("{source} has {listed} hosts, and the job has {count} nodes"));
    }
    if let Some(doubt) = &placement.master_doubt {
        return unknown(format!("{source} may be in another order: {}", doubt.code));
    }
    match placement.master_addr.as_ref().zip(hosts.first()) {
        Some((master, first)) if master.value != *first => {
            unknown(format!("{source} begins with {first}, and rank 0's host is {}", master.value))
        }
        _ => placement.hosts.clone(),
    }
}

/// Returns the place of the node's only process, with the platform's master, port, hosts, workers
/// and job.
pub(super) fn node(
    node: Rank,
    read: Result<Placement, Error>,
    environment: &Environment,
) -> Result<Placement, Error> {
    let (rank, count) = (by(ASKED, node.index()), by(ASKED, node.size()));
    let placement = Placement::one_per_node(Launcher::User, rank, count)?;
    // The platform's variables may be incomplete: the user provides what is missing.
    let read = read.ok();
    if let Some(started) = &read {
        check_started(node, started)?;
    }
    let is_platform = |read: &Placement| read.launcher().spec().starts == Starts::OnePerNode;
    let Some(platform) = read.filter(is_platform) else {
        let index = environment.digits(kubernetes::INDEX);
        return match index.filter(|&index: &u32| index > node.index()) {
            Some(index) => Err(not_the_platforms(node, kubernetes::INDEX, index)),
            None => Ok(placement),
        };
    };
    // Each of a job's groups of pods may count its own from 0, and the nodes are those of all.
    if platform.size.value == node.size() && platform.rank.value != node.index() {
        return Err(not_the_platforms(node, &platform.rank.source, platform.rank.value));
    }
    Ok(Placement {
        master_addr: platform.master_addr,
        master_doubt: platform.master_doubt,
        master_unknown: platform.master_unknown,
        master_port: platform.master_port,
        hosts: platform.hosts,
        workers: platform.workers,
        job: platform.job,
        ..placement
    })
}

/// Rejects the number of a node for a process that a launcher has started beside others, as on
/// another node or not as the first one of its node: two processes would have the same ranks.
fn check_started(node: Rank, started: &Placement) -> Result<(), Error> {
    let launcher = started.launcher();
    if launcher == Launcher::User
        || launcher.spec().starts != Starts::Processes
        || started.size.value == 1
        || node.size() == 1 && started.rank.value == 0
    {
        return Ok(());
    }
    let are_nodes = started.size.value == node.size();
    let are_counted = value_of(&started.node_count) == Some(node.size());
    let number = started.node_rank.as_ref().filter(|_| are_counted);
    let local = started.local_rank.as_ref().filter(|local| local.value > 0);
    let is_other = |number: &&Sourced<u32>| number.value != node.index();
    // Where ranks are nodes, one host may play several, and the ranks may have another order.
    let found = match are_nodes {
        _ if node.size() == 1 => Some(&started.rank),
        true if number.is_none_or(|number| is_other(&number)) => {
            Some(&started.rank).filter(is_other)
        }
        true => None,
        false => number.filter(is_other).or(local),
    };
    let Some(Sourced { value, source }) = found else { return Ok(()) };
    let of_shell = match launcher {
        Launcher::Slurm => "; $SLURM_NODEID before srun starts is the number of the script's node",
        _ => "",
    };
    let remedy = format!(
        "leave out the number of the node, because {} gives each process its place, or start one process on each node: \
         {}{of_shell}; or set {}=alone for a job of its own",
        launcher.title(),
        launcher.spec().one_per_node,
        overrides::LAUNCHER,
    );
    Err(other_node(node, source, *value, remedy).by(launcher))
}

/// Returns the error for a number that is not the one that something else gives.
fn other_node(node: Rank, variable: &str, found: u32, remedy: String) -> Error {
    let reason = format!("node {} of {} is asked for", node.index(), node.size());
    Error::new(reason, remedy).of(variable.to_owned()).found(found)
}

/// Returns the error for a number that is not the platform's: two nodes would have the same ranks.
fn not_the_platforms(node: Rank, variable: &str, found: u32) -> Error {
    let remedy =
        format!("ask for the number that the platform gives this node, or unset {variable}");
    other_node(node, variable, found, remedy)
}

/// Returns the same process as the only one on its node. Its rank and world size then count nodes.
pub(super) fn one_per_node(
    mut placement: Placement,
    environment: &Environment,
) -> Result<Placement, Error> {
    let (rank, size) = (placement.rank.value, placement.size.value);
    if placement.launcher() == Launcher::User && placement.node_count.is_none() {
        placement.node_count = user::other_nodes(environment, size);
    }
    let expected = [
        (&placement.local_size, 1),
        (&placement.local_rank, 0),
        (&placement.node_rank, rank),
        (&placement.node_count, size),
    ];
    for (known, expected) in expected {
        if let Some(known) = known.as_ref().filter(|known| known.value != expected) {
            let reason = "one process on each node was requested, and this contradicts it";
            let command = placement.launcher().spec().one_per_node;
            let remedy = format!("start one process on each node: {command}");
            return Err(Error::new(reason, remedy)
                .by(placement.launcher())
                .of(known.source.clone())
                .found(known.value));
        }
    }
    let placement = placement.with_local(by(ASKED, Some(0)), by(ASKED, Some(1)))?;
    Ok(placement.with_nodes(by(ASKED, Some(rank)), by(ASKED, Some(size))))
}
