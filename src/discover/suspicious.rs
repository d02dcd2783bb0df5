//! What is suspicious in an environment as a whole, though its launcher can be read.

use crate::environment::Environment;
use crate::finding::{Finding, Severity};
use crate::launcher::Row;
use crate::placement::{Launcher, Placement};
use crate::wish;

/// Where a stale one is inherited, every rank waits for a store that nobody serves.
pub(super) const AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// Ranks are not dealt to nodes in blocks: whoever computes a local rank from the rank is wrong.
pub(super) fn local_rank_order(placement: &Placement) -> Option<Finding> {
    let (rank, local) = (placement.rank.index(), placement.local);
    let (local_rank, local_size) = (local.rank()?, local.size()?);
    if local_rank == rank % local_size {
        return None;
    }
    Some(Finding {
        severity: Severity::Note,
        code: "local-rank-order",
        what: format!("rank {rank} has local rank {local_rank} of {local_size}"),
        why: "ranks are not dealt to nodes in blocks of one size: rank % local size is not the local rank".into(),
        remedy: "take LOCAL_RANK as it is exported, and compute none".into(),
    })
}

/// A store that torchrun's agent serves, without torchrun.
pub(super) fn stale_agent_store(environment: &Environment, placement: &Placement) -> Option<Finding> {
    if !environment.has(AGENT_STORE) || placement.launcher == Launcher::Torchrun {
        return None;
    }
    Some(Finding {
        severity: Severity::Warning,
        code: "stale-agent-store",
        what: format!("{AGENT_STORE} is set, and torchrun did not start this process"),
        why: "PyTorch's ranks would wait for a store that nobody serves".into(),
        remedy: format!("unset {AGENT_STORE}; export, exec and launch do"),
    })
}

/// Other launchers whose complete set of variables says something else.
pub(super) fn disagreements(environment: &Environment, placement: &Placement, outer: &[Row]) -> Vec<Finding> {
    let others = outer.iter().filter(|row| ![placement.launcher, Launcher::Alone].contains(&row.launcher));
    let others = others.filter(|row| (row.detect)(environment).is_some());
    // A set that is only half there is not another's.
    let placements = others.filter_map(|row| (row.read)(environment).ok());
    placements.filter(|other| other.rank != placement.rank).map(|other| disagreement(placement, &other)).collect()
}

fn disagreement(placement: &Placement, other: &Placement) -> Finding {
    let says = |p: &Placement| {
        format!(
            "{} says rank {} of {} ({}, {})",
            p.launcher.title(),
            p.rank.index(),
            p.rank.size(),
            p.rank_source,
            p.world_size_source
        )
    };
    Finding {
        severity: Severity::Warning,
        code: "launchers-disagree",
        what: format!("{}; {}", says(placement), says(other)),
        why: format!(
            "the variables of one of them are left from an outer or earlier job; {} is taken",
            placement.launcher.title()
        ),
        remedy: format!(
            "unset the wrong ones, or set {} to the right one of {} and {}",
            wish::LAUNCHER,
            placement.launcher,
            other.launcher
        ),
    }
}
