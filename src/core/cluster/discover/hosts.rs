//! The hosts of all nodes, if a list of them can be trusted.

use std::sync::Arc;

use crate::launcher::placement::Placement;
use crate::value::host::Host;
use crate::value::sourced::{Sourced, value_of};

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
