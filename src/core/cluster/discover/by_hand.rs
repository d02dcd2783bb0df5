//! Places that a user provides because the platform does not.

use crate::cluster::overrides::ASKED;
use crate::error::{Error, Reason};
use crate::launcher::{Marker, Starts};
use crate::value::placement::{Launcher, Placement, Sourced};
use crate::value::rank::Rank;

use super::choice::Choice;

/// Returns the place of the node's only process, with the platform's master, port, hosts, workers
/// and job.
pub(super) fn node(node: Rank, read: Result<Placement, Error>) -> Result<Placement, Error> {
    let (rank, count) = ((ASKED, node.index()), (ASKED, node.size()));
    let placement = Placement::one_per_node(Launcher::User, rank, count)?;
    // The platform's variables may be incomplete: the user provides what is missing.
    let Some(platform) = read.ok().filter(|read| read.launcher.spec().starts == Starts::OnePerNode)
    else {
        return Ok(placement);
    };
    let Placement { master_addr, master_doubt, master_port, hosts, workers, job, .. } = platform;
    Ok(Placement { master_addr, master_doubt, master_port, hosts, workers, job, ..placement })
}

/// Returns the choice for a place that does not come from a launcher's variables.
pub(super) fn choice() -> Choice {
    let marker = Marker { launcher: Launcher::User, variable: "" };
    Choice { marker, source: ASKED.into(), rest: Vec::new(), is_of_context: false, starter: None }
}

/// Returns the same process as the only one on its node. Its rank and world size then count nodes.
pub(super) fn one_per_node(placement: Placement) -> Result<Placement, Error> {
    let (rank, size) = (placement.rank.index(), placement.rank.size());
    let of = |known: &Option<Sourced<u32>>| {
        known.as_ref().map(|known| (known.source.clone(), known.value))
    };
    let known = [
        (placement.local.size().map(|size| (placement.local_size_source.clone(), size)), 1),
        (placement.local.rank().map(|rank| (placement.local_rank_source.clone(), rank)), 0),
        (of(&placement.node_rank), rank),
        (of(&placement.node_count), size),
    ];
    for (known, expected) in known {
        if let Some((variable, value)) = known.filter(|(_, value)| *value != expected) {
            let reason = "one process on each node was requested, and this contradicts it";
            let remedy = format!(
                "start one process on each node: {}",
                placement.launcher.spec().advice.one_per_node
            );
            let error =
                Error::new(Reason::Malformed(reason.to_owned()), remedy).by(placement.launcher);
            return Err(error.of(variable).found(value.to_string()));
        }
    }
    let placement = placement.with_local((ASKED, Some(0)), (ASKED, Some(1)))?;
    Ok(placement.with_nodes((ASKED, Some(rank)), (ASKED, Some(size))))
}
