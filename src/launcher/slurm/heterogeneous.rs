//! Steps over several components of a heterogeneous job: `srun --het-group=0,1`, `srun A : B`.
//!
//! There `SLURM_STEP_NODELIST` is the sorted union of all components' hosts, while ranks and nodes are counted component by
//! component. So the first host of the list need not be rank 0's; the components' own lists, in order, show it.

use std::collections::HashSet;

use crate::environment::Environment;
use crate::finding::{Finding, Severity};
use crate::hostlist::Hostlist;

/// How many components Slurm allows in a job: `MAX_HET_JOB_COMPS` of its controller.
const MOST_COMPONENTS: u32 = 128;

/// How many hosts are looked at in a list: as many as Slurm allows in a range.
const MOST_HOSTS: usize = 1 << 16;

/// The components' hosts; `srun A : B` without an allocation sets the second alone.
const LISTS: [&str; 2] = ["SLURM_JOB_NODELIST_HET_GROUP_", "SLURM_JOB_NODELIST_PACK_GROUP_"];

/// Rank 0's host, and the variable that has it; `None` if the components' lists leave a doubt.
pub(super) fn first_host(environment: &Environment, step: &Hostlist<'_>, size: u32) -> Option<(String, String)> {
    let step: HashSet<_> = step.iter().take(MOST_HOSTS).collect();
    let mut found = None;
    for component in 0..size.min(MOST_COMPONENTS) {
        let names = LISTS.map(|list| format!("{list}{component}"));
        let text = |name: &String| environment.get_str(name).ok().flatten();
        let variable = names.iter().find(|name| text(name).is_some())?;
        let list = Hostlist::parse(text(variable)?).ok()?;
        let hosts = || list.iter().take(MOST_HOSTS);
        match &found {
            None => {
                found = hosts().find(|host| step.contains(host)).map(|host| (host.into_owned(), variable.to_owned()));
            }
            // On a node of two components the step may be of the later one, which begins elsewhere.
            Some((host, _)) if hosts().any(|other| other == *host) => return None,
            Some(_) => {}
        }
    }
    found
}

/// Nothing shows which component's hosts come first.
pub(super) fn unknown_order(list: &str, size_variable: &str, size: u32) -> Finding {
    Finding {
        severity: Severity::Warning,
        code: "slurm-heterogeneous-step",
        what: format!("{size_variable}={size}, and {list:?} is the sorted list of the hosts of all components"),
        why: "ranks are counted component by component, so the first host of the list need not be rank 0's, and then the \
              ranks wait for a master that is never there"
            .into(),
        remedy: "give the first host of the first component to all ranks as MASTER_ADDR".into(),
    }
}
