//! The option `--bind` of `exec` and `launch`.

use crate::{Bind, ClusterInfo};
use clap::ValueEnum;
use mpienv_launch::seam::{
    BOUND_BY, Node, allowed_cpus, bind_to_share, count_cores, release_default_binding,
};

use super::{Failure, Quiet, stream};

/// The values of the option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum To {
    /// No binding: all cores that the cgroup allows
    #[default]
    None,
    /// A rank's share of the node's cores: whole cores, next to each other, on one NUMA node if
    /// they fit
    Core,
    /// All cores of a NUMA node; the ranks are spread evenly over the NUMA nodes
    Numa,
    /// A rank's share of the cores of its GPU's NUMA node
    Device,
}

impl From<To> for Bind {
    fn from(to: To) -> Bind {
        match to {
            To::None => Bind::None,
            To::Core => Bind::Core,
            To::Numa => Bind::Numa,
            To::Device => Bind::Device,
        }
    }
}

/// Binds this process to its share of the node's cores, unless a user or the launcher has bound it.
/// Returns the variable that tells the command so.
pub(super) fn this_process(
    to: To,
    info: &ClusterInfo,
    quiet: Quiet,
) -> Result<Option<(&'static str, String)>, Failure> {
    let (bind, environment) = (Bind::from(to), info.environment());
    if bind == Bind::None {
        return Ok(None);
    }
    release_default_binding(info, environment);
    let is_bound = count_cores().is_some_and(|(allowed, all)| allowed < all);
    let note = if is_bound {
        let cpus = allowed_cpus().map_or_else(|_| "some".to_owned(), |cpus| cpus.to_string());
        let unbind = info.launcher().spec().unbind.unwrap_or("no taskset or numactl around it");
        Some(format!(
            "this process is bound to CPUs {cpus} already and stays there; start it with {unbind}"
        ))
    } else {
        let (share, note) = Node::here(bind, environment)?.of_this(info)?;
        bind_to_share(bind, &share)?;
        note
    };
    // One rank of the node speaks for all.
    let is_first = info.local_rank().is_none_or(|rank| rank == 0);
    if let Some(note) = note.filter(|_| is_first && !quiet.is_asked(environment)) {
        stream::report(&format!("mpienv: bind {}: {note}\n", bind.name()));
    }
    Ok((!is_bound).then(|| (BOUND_BY, bind.name().to_owned())))
}
