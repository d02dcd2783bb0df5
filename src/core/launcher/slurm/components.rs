//! The hosts of a heterogeneous step, component by component.
//!
//! Slurm counts the ranks of such a step in the order of its components, but lists its hosts sorted.

use std::borrow::Cow;
use std::collections::HashSet;

use super::{COMPONENTS, NODELIST};
use crate::environment::Environment;
use crate::finding::Finding;
use crate::hostlist::Hostlist;
use crate::launcher::placement::MOST_HOSTS;
use crate::launcher::prelude::*;

/// Replaces the sorted list with the hosts of a heterogeneous step in the order of its components.
pub(super) fn with_components(
    marker: Marker<'_>,
    mut placement: Placement,
    list: &str,
    components: u32,
) -> Result<Placement, Error> {
    let Ok(step) = Hostlist::parse(list) else { return Ok(placement) };
    if step.len() == 1 {
        return Ok(placement);
    }
    let Some(order) = order(marker.environment, &step, components) else {
        placement.master_doubt = Some(unknown_order(list, components));
        return Ok(placement);
    };
    let host = marker.launcher.host(&order.variable, &order.first)?;
    let source = format!("{}: the first host that {NODELIST} has too", order.variable);
    placement.master_addr = Some(Sourced::new(host, source));
    Ok(match order.hosts {
        Some(hosts) => {
            placement.with_hosts(format!("{NODELIST}, in the order of the components"), hosts)
        }
        None => placement.without_hosts("a host is of several components of the job"),
    })
}

/// The maximum number of components in a job: `MAX_HET_JOB_COMPS` of Slurm's controller.
const MOST_COMPONENTS: u32 = 128;

/// The variables that list a component's hosts. `srun A : B` without an allocation sets only the
/// second one.
const LISTS: [&str; 2] = ["SLURM_JOB_NODELIST_HET_GROUP_", "SLURM_JOB_NODELIST_PACK_GROUP_"];

/// A step's hosts, component by component.
struct Order {
    /// Rank 0's host.
    pub first: String,
    /// The variable that names this host.
    pub variable: String,
    /// All hosts. `None` if a host belongs to several components.
    pub hosts: Option<Vec<String>>,
}

/// Returns the order of a step's hosts, or `None` if the components' lists leave it in doubt.
fn order(environment: &Environment, step: &Hostlist<'_>, size: u32) -> Option<Order> {
    let step: HashSet<_> = step.iter().take(MOST_HOSTS).collect();
    // The variable that names rank 0's host.
    let mut of_first = None;
    let mut hosts: Vec<Cow<'_, str>> = Vec::new();
    for component in 0..size.min(MOST_COMPONENTS) {
        let names = LISTS.map(|list| format!("{list}{component}"));
        let set = |name: &String| Some((name.clone(), environment.text(name)?));
        let (variable, list) = names.iter().find_map(set)?;
        let list = Hostlist::parse(list).ok()?;
        let before = hosts.len();
        hosts.extend(list.iter().take(MOST_HOSTS).filter(|host| step.contains(host)));
        // If a node belongs to two components, the step may be in the later one, which begins
        // elsewhere.
        if of_first.is_some() && hosts[before..].contains(&hosts[0]) {
            return None;
        }
        of_first = of_first.or((!hosts.is_empty()).then_some(variable));
    }
    let (variable, first) = (of_first?, hosts.first()?.clone().into_owned());
    let is_each_once = hosts.iter().collect::<HashSet<_>>().len() == hosts.len();
    let hosts = is_each_once.then(|| hosts.into_iter().map(Cow::into_owned).collect());
    Some(Order { first, variable, hosts })
}

/// Reports that nothing shows which component's hosts come first.
fn unknown_order(list: &str, components: u32) -> Finding {
    Finding::warning(
        "slurm-heterogeneous-step",
        format!(
            "{COMPONENTS}={components}, and {list:?} is the sorted list of the hosts of all components"
        ),
        "ranks are counted component by component, so the first host of the list need not be rank 0's; the \
              ranks then wait for a master that never appears",
        "give the first host of the first component to all ranks as MASTER_ADDR",
    )
}
