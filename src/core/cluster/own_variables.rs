//! mpienv's own variables, and those that a user has probably misspelled.

use std::cmp::Reverse;

use crate::environment::Environment;
use crate::finding::{Finding, Severity};

/// Each variable with its meaning, as the manual page shows it.
pub const OWN_VARIABLES: &[(&str, &str)] = &[
    ("MPIENV_LAUNCHER", "The launcher whose variables count."),
    (
        "MPIENV_MASTER_ADDR, MPIENV_MASTER_PORT",
        "Where rank 0 listens. They precede MASTER_ADDR and MASTER_PORT, also on Azure.",
    ),
    (
        "MPIENV_PORT_RANGE",
        "The range of the ports that mpienv derives, such as 1400-1999; the same for all ranks.",
    ),
    ("MPIENV_NCCL_IFNAME", "The value of NCCL_SOCKET_IFNAME, or keep, or unset."),
    ("MPIENV_INTERFACE", "The network interface for gloo, NCCL, TensorPipe, UCX and vLLM."),
    ("MPIENV_TOKEN", "A secret of the job. Only processes that have it can meet."),
    ("MPIENV_TOKEN_FILE", "A file with that secret, which only its owner may read."),
    (
        "MPIENV_AUTH",
        "munge or munge:SOCKET: only processes of one user can meet. auto: if MUNGE works here.",
    ),
    (
        "MPIENV_ASK",
        "0 never asks the launcher for the master. Another number is how long ranks wait, in seconds.",
    ),
    ("MPIENV_THREADS", "The threads of each rank of exec and launch: share, keep, or a number."),
    ("MPIENV_QUIET", "1 silences warnings."),
    ("MPIENV_MPI_LIB, MPIENV_PMIX_LIB", "The libraries of MPI and PMIx to load."),
    ("MPIENV_RESTART_COUNT", "Set by launch: the number of the attempt, from 0."),
    ("MPIENV_HEARTBEAT_FILE", "Set by launch --stall-timeout: the file that heartbeats change."),
    (
        "MPIENV_BIND, MPIENV_CONTEXT, MPIENV_SIMULATED",
        "Set by mpienv for an mpienv that runs inside.",
    ),
    (
        "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR, MASTER_PORT",
        "Set by export, exec and launch. The variables of each launcher are in the guide.",
    ),
];

/// How all names begin that only mpienv uses.
const PREFIX: &str = "MPIENV_";

/// How many letters may be missing, added or wrong in a misspelled name. Other names, such as those
/// of a site's own scripts, have nothing to do with this list.
const MOST_MISTAKES: usize = 2;

/// Reports variables that mpienv does not read, and whose names resemble one that it reads.
pub(crate) fn misspelled(environment: &Environment) -> impl Iterator<Item = Finding> {
    let unknown = environment.names().filter(|name| name.starts_with(PREFIX));
    unknown.filter(|name| own().all(|own| own != *name)).filter_map(|name| {
        let meant = own().min_by_key(|own| (mistakes(own, name), Reverse(own.len())))?;
        (mistakes(meant, name) <= MOST_MISTAKES).then(|| unknown_variable(name, meant))
    })
}

fn own() -> impl Iterator<Item = &'static str> {
    let names = OWN_VARIABLES.iter().flat_map(|(names, _)| names.split(", "));
    names.filter(|name| name.starts_with(PREFIX))
}

fn unknown_variable(name: &str, meant: &str) -> Finding {
    Finding {
        severity: Severity::Warning,
        code: "unknown-variable",
        what: format!("{name} is not a variable of mpienv; did you mean {meant}?"),
        why: "mpienv ignores it, so what it asks for does not happen".into(),
        remedy: format!("rename it to {meant}, or unset it"),
    }
}

/// Counts the letters that must be added, removed or replaced to turn one name into the other
/// (Levenshtein).
fn mistakes(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, letter) in (1..).zip(one.bytes()) {
        let mut diagonal = above - 1;
        let mut left = above;
        row[0] = above;
        for (cell, own) in row[1..].iter_mut().zip(other.bytes()) {
            left = (diagonal + usize::from(letter != own)).min(left + 1).min(*cell + 1);
            diagonal = *cell;
            *cell = left;
        }
    }
    row.pop().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_resembles_one_of_ours_is_reported_with_it() {
        for (name, meant) in [
            ("MPIENV_TOKN", Some("MPIENV_TOKEN")),
            ("MPIENV_AUHT", Some("MPIENV_AUTH")),
            ("MPIENV_LAUNCER", Some("MPIENV_LAUNCHER")),
            ("MPIENV_PORTRANGE", Some("MPIENV_PORT_RANGE")),
            ("MPIENV_TOKEN_FLE", Some("MPIENV_TOKEN_FILE")),
            ("MPIENV_TOKEN", None),
            ("MPIENV_SIMULATED", None),
            ("MPIENV_SITE_FOLDER", None),
            ("MPIENV_LAUNCH_4711_0_98", None),
            ("RNK", None),
        ] {
            let environment = Environment::from_vars([(name, "1")]);
            let found: Vec<_> = misspelled(&environment).map(|finding| finding.what).collect();
            let expected = meant
                .map(|meant| format!("{name} is not a variable of mpienv; did you mean {meant}?"));
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{name}");
        }
    }
}
