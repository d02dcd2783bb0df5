//! Steps over several components of a heterogeneous job: `srun --het-group=0,1`, `srun A : B`.
//!
//! In such a step, `SLURM_STEP_NODELIST` is the sorted union of all components' hosts, while ranks
//! and nodes are counted component by component. The first host of the list need not be rank 0's;
//! the components' own lists show it.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::environment::Environment;
use crate::finding::{Finding, Severity};
use crate::hostlist::Hostlist;
use crate::launcher::placement::MOST_HOSTS;

/// The maximum number of components in a job: `MAX_HET_JOB_COMPS` of Slurm's controller.
const MOST_COMPONENTS: u32 = 128;

/// The variables that list a component's hosts. `srun A : B` without an allocation sets only the
/// second one.
const LISTS: [&str; 2] = ["SLURM_JOB_NODELIST_HET_GROUP_", "SLURM_JOB_NODELIST_PACK_GROUP_"];

/// A step's hosts, component by component.
pub(super) struct Order {
    /// Rank 0's host.
    pub first: String,
    /// The variable that names this host.
    pub variable: String,
    /// All hosts. `None` if a host belongs to several components.
    pub hosts: Option<Vec<String>>,
}

/// Returns the order of a step's hosts, or `None` if the components' lists leave it in doubt.
pub(super) fn order(environment: &Environment, step: &Hostlist<'_>, size: u32) -> Option<Order> {
    let step: HashSet<_> = step.iter().take(MOST_HOSTS).collect();
    let mut first = None;
    let mut hosts: Vec<Cow<'_, str>> = Vec::new();
    for component in 0..size.min(MOST_COMPONENTS) {
        let names = LISTS.map(|list| format!("{list}{component}"));
        let text = |name: &String| environment.text(name);
        let variable = names.iter().find(|name| text(name).is_some())?;
        let list = Hostlist::parse(text(variable)?).ok()?;
        let before = hosts.len();
        hosts.extend(list.iter().take(MOST_HOSTS).filter(|host| step.contains(host)));
        match &first {
            None => {
                first = hosts.first().map(|host| (host.clone().into_owned(), variable.to_owned()))
            }
            // If a node belongs to two components, the step may be in the later one, which begins
            // elsewhere.
            Some((first, _)) if hosts[before..].contains(&Cow::Borrowed(first)) => return None,
            Some(_) => {}
        }
    }
    let (first, variable) = first?;
    let is_each_once = hosts.iter().collect::<HashSet<_>>().len() == hosts.len();
    let hosts = is_each_once.then(|| hosts.into_iter().map(Cow::into_owned).collect());
    Some(Order { first, variable, hosts })
}

/// Reports that nothing shows which component's hosts come first.
pub(super) fn unknown_order(list: &str, size_variable: &str, size: u32) -> Finding {
    Finding {
        severity: Severity::Warning,
        code: "slurm-heterogeneous-step",
        what: format!("{size_variable}={size}, and {list:?} is the sorted list of the hosts of all components"),
        why: "ranks are counted component by component, so the first host of the list need not be rank 0's; the \
              ranks then wait for a master that never appears"
            .into(),
        remedy: "give the first host of the first component to all ranks as MASTER_ADDR".into(),
    }
}
