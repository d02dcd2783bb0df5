//! The hosts of all nodes, if a list of them can be trusted.

use std::sync::Arc;

use crate::value::host::Host;
use crate::value::placement::{Placement, Sourced};

/// Returns the hosts in the order of the nodes' numbers, or `None` with the reason as the source.
pub(super) fn hosts(
    placement: &Placement,
    master: Option<&Sourced<Host>>,
) -> Sourced<Option<Arc<[Host]>>> {
    let Sourced { value, source } = &placement.hosts;
    let unknown = |why: String| Sourced::new(None, why);
    let Some(hosts) = value else {
        return match master.filter(|_| placement.is_one_node()) {
            Some(master) => {
                Sourced::new(Some([master.value.clone()].into()), master.source.clone())
            }
            None => Sourced::new(None, source.clone()),
        };
    };
    let count = placement.node_count.as_ref().map(|nodes| nodes.value);
    if count.is_none_or(|count| hosts.len() != count as usize) {
        let count = count.map_or("an unknown number of".to_owned(), |count| count.to_string());
        return unknown(format!(
            "{source} has {} hosts, and the job has {count} nodes",
            hosts.len()
        ));
    }
    if let Some(doubt) = &placement.master_doubt {
        return unknown(format!("{source} may be in another order: {}", doubt.code));
    }
    let first = placement.master_addr.as_ref().zip(hosts.first());
    match first.filter(|(master, first)| master.value != **first) {
        Some((master, first)) => {
            unknown(format!("{source} begins with {first}, and rank 0's host is {}", master.value))
        }
        None => Sourced::new(Some(hosts.clone()), source.clone()),
    }
}
