//! Places that a user provides because the platform does not.

use crate::cluster::overrides::ASKED;
use crate::error::{Error, Reason};
use crate::launcher::placement::Placement;
use crate::launcher::{Marker, Starts};
use crate::value::launcher::Launcher;
use crate::value::rank::Rank;
use crate::value::sourced::by;

use super::choice::Choice;

/// Returns the place of the node's only process, with the platform's master, port, hosts, workers
/// and job.
pub(super) fn node(node: Rank, read: Result<Placement, Error>) -> Result<Placement, Error> {
    let (rank, count) = (by(ASKED, node.index()), by(ASKED, node.size()));
    let placement = Placement::one_per_node(Launcher::User, rank, count)?;
    // The platform's variables may be incomplete: the user provides what is missing.
    let is_platform = |read: &Placement| read.launcher().spec().starts == Starts::OnePerNode;
    let Some(platform) = read.ok().filter(is_platform) else { return Ok(placement) };
    let Placement {
        master_addr,
        master_doubt,
        master_unknown,
        master_port,
        hosts,
        workers,
        job,
        ..
    } = platform;
    Ok(Placement {
        master_addr,
        master_doubt,
        master_unknown,
        master_port,
        hosts,
        workers,
        job,
        ..placement
    })
}

/// Returns the choice for a place that does not come from a launcher's variables.
pub(super) fn choice() -> Choice {
    Choice::new(Marker { launcher: Launcher::User, variable: "" }, ASKED)
}

/// Returns the same process as the only one on its node. Its rank and world size then count nodes.
pub(super) fn one_per_node(placement: Placement) -> Result<Placement, Error> {
    let (rank, size) = (placement.rank.value, placement.size.value);
    let expected = [
        (&placement.local_size, 1),
        (&placement.local_rank, 0),
        (&placement.node_rank, rank),
        (&placement.node_count, size),
    ];
    for (known, expected) in expected {
        if let Some(known) = known.as_ref().filter(|known| known.value != expected) {
            let reason = "one process on each node was requested, and this contradicts it";
            let command = placement.launcher().spec().advice.one_per_node;
            let remedy = format!("start one process on each node: {command}");
            return Err(Error::new(Reason::Malformed(reason.to_owned()), remedy)
                .by(placement.launcher())
                .of(known.source.clone())
                .found(known.value.to_string()));
        }
    }
    let placement = placement.with_local(by(ASKED, Some(0)), by(ASKED, Some(1)))?;
    Ok(placement.with_nodes(by(ASKED, Some(rank)), by(ASKED, Some(size))))
}
