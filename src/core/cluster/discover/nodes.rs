//! Infers node numbers and node counts from the sizes.

use crate::error::Error;
use crate::value::placement::{LaunchStyle, Placement, Sourced};
use crate::value::rank::{Local, Rank};

/// Adds the values that follow, and rejects values that are impossible.
pub(super) fn complete(placement: &mut Placement, on_azure: bool) -> Result<(), Error> {
    fill_local(placement);
    drop_strange_node_count(placement);
    fill_nodes(placement, on_azure);
    check_nodes(placement)
}

/// The only rank of a job is the only one on its node.
fn fill_local(placement: &mut Placement) {
    const SOURCE: &str = "the world size is 1";
    if placement.rank != Rank::ALONE {
        return;
    }
    if placement.local.rank().is_none() {
        placement.local_rank_source = SOURCE.into();
    }
    if placement.local.size().is_none() {
        placement.local_size_source = SOURCE.into();
    }
    placement.local = Local::ALONE;
}

/// Drops a node count that does not fit this job, because every other node has at least one rank.
/// It belongs to something else, such as an allocation or another step.
fn drop_strange_node_count(placement: &mut Placement) {
    let with_others = placement.local.size().unwrap_or(1).saturating_sub(1);
    let most = placement.rank.size().saturating_sub(with_others);
    let strange = |nodes: u32| nodes > most || (nodes == 0 && placement.node_rank.is_none());
    if placement.node_count.as_ref().is_some_and(|nodes| strange(nodes.value)) {
        placement.node_count = None;
    }
}

/// Adds node values that follow from the sizes if the launcher does not provide them.
fn fill_nodes(placement: &mut Placement, on_azure: bool) {
    let (rank, size) = (placement.rank.index(), placement.rank.size());
    let follow = |known: &mut Option<Sourced<u32>>, value, source: &'static str| {
        known.get_or_insert_with(|| Sourced::new(value, source));
    };
    if placement.is_one_node() {
        follow(&mut placement.node_rank, 0, "all ranks are on this node");
        follow(&mut placement.node_count, 1, "all ranks are on this node");
    } else if placement.style() == LaunchStyle::PerNode {
        // A rank that is alone on its node may be the last of an uneven job. The rank is the node's
        // number only if every node is known to have one rank.
        if placement.node_count.as_ref().is_some_and(|nodes| nodes.value == size) {
            follow(&mut placement.node_rank, rank, "the rank, because every node has one");
        } else if on_azure {
            let source =
                "the rank, because Azure starts the same number of processes on every node";
            follow(&mut placement.node_rank, rank, source);
            follow(&mut placement.node_count, size, source);
        }
    }
}

/// Rejects a node number that is not below the number of nodes.
fn check_nodes(placement: &Placement) -> Result<(), Error> {
    let (Some(node), Some(nodes)) = (&placement.node_rank, &placement.node_count) else {
        return Ok(());
    };
    let checked = Rank::new(node.value, nodes.value);
    checked.map(drop).map_err(|error| {
        Error::of_launcher(placement.launcher, error, &node.source).found(node.value.to_string())
    })
}
