//! Infers node numbers and node counts from the sizes.

use crate::error::Error;
use crate::launcher::placement::{LaunchStyle, Placement};
use crate::value::rank::Rank;
use crate::value::sourced::{Known, Sourced, value_of};

/// Adds the values that follow, and rejects values that are impossible.
pub(super) fn complete(placement: &mut Placement, on_azure: bool) -> Result<(), Error> {
    fill_local(placement);
    drop_strange_node_count(placement);
    fill_nodes(placement, on_azure);
    check_nodes(placement)
}

fn follow(known: &mut Known<u32>, value: u32, source: &'static str) {
    known.get_or_insert_with(|| Sourced::new(value, source));
}

/// The only rank of a job is the only one on its node.
fn fill_local(placement: &mut Placement) {
    if placement.size.value == 1 {
        follow(&mut placement.local_rank, 0, "the world size is 1");
        follow(&mut placement.local_size, 1, "the world size is 1");
    }
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

/// Rejects a node number that is not below the number of nodes.
fn check_nodes(placement: &Placement) -> Result<(), Error> {
    let (Some(node), Some(nodes)) = (&placement.node_rank, &placement.node_count) else {
        return Ok(());
    };
    let checked = Rank::new(node.value, nodes.value).map(drop);
    checked.map_err(|error| placement.launcher().refuse(error, &node.source, node.value))
}
