//! mpienv's own variables, and those that a user has probably misspelled.

use std::cmp::Reverse;

use crate::environment::Environment;
use crate::finding::Finding;

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
    (
        "MPIENV_REQUIRE_LAUNCHER",
        "1 refuses a process that no launcher has started, instead of taking it for rank 0 of 1.",
    ),
    ("MPIENV_MPI_LIB, MPIENV_PMIX_LIB", "The libraries of MPI and PMIx to load."),
    ("MPIENV_RESTART_COUNT", "Set by launch: the number of the attempt, from 0."),
    ("MPIENV_LAUNCH_...", "Set by launch, which finds what its workers started by this name."),
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

/// Further names with this prefix: what mpienv gives its own processes, and what the project's own
/// tests read, from whose shell mpienv may run.
const INTERNAL: &str = "MPIENV_FAULTS MPIENV_FAULTS_SEED MPIENV_FUZZ_SECONDS MPIENV_GENERATE \
                        MPIENV_HOST_ROOT MPIENV_LOAD MPIENV_MESH_HOSTS MPIENV_MESH_RUNS \
                        MPIENV_REQUIRE_ALL MPIENV_RESTART_JOBS MPIENV_RESTART_KILLS \
                        MPIENV_SLACK MPIENV_SLURM_DIR MPIENV_TORCH";

/// How the marks begin by which `launch` finds its workers; numbers follow.
const MARK: &str = "MPIENV_LAUNCH_";

/// How many letters may be missing, added or wrong in a name that is meant to be another one.
const MOST_MISTAKES: usize = 2;

/// Reports variables with mpienv's prefix that mpienv does not read.
pub(crate) fn misspelled(environment: &Environment) -> impl Iterator<Item = Finding> {
    // A Service of Kubernetes with this name sets MPIENV_SERVICE_PORT, MPIENV_PORT_80_TCP and
    // others.
    let is_service = environment.is_set("MPIENV_SERVICE_HOST");
    let is_of_service =
        |name: &str| name.starts_with("MPIENV_SERVICE_") || name.starts_with("MPIENV_PORT");
    let names = environment.names().filter(|name| name.starts_with(PREFIX) && !is_known(name));
    names.filter(move |name| !(is_service && is_of_service(name))).map(|name| {
        let names = own().map(|(own, _)| own);
        let meant = names.min_by_key(|own| (mistakes(own, name), Reverse(own.len())));
        let meant = meant.filter(|meant| mistakes(meant, name) <= MOST_MISTAKES);
        // `MPIENV_RANK` is meant to be `RANK`, although `MPIENV_ASK` resembles it.
        let plain = name.strip_prefix(PREFIX).and_then(|plain| all().find(|own| own.0 == plain));
        unknown_variable(name, plain.map(|(plain, _)| plain).or(meant))
    })
}

/// What a site's environment modules may set for each package, after its name.
const OF_MODULES: &str = "ROOT HOME DIR PREFIX BASE PATH BIN LIB INC INCLUDE VERSION";

fn is_known(name: &str) -> bool {
    let end = name.strip_prefix(PREFIX);
    let is_mark = |mark: &str| mark.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    own().any(|(own, _)| own == name)
        || INTERNAL.split(' ').any(|internal| internal == name)
        || OF_MODULES.split(' ').any(|of_module| end == Some(of_module))
        || name.strip_prefix(MARK).is_some_and(is_mark)
}

/// Returns the names in the table, and their meanings.
fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    let rows = OWN_VARIABLES.iter();
    rows.flat_map(|&(names, meaning)| names.split(", ").map(move |name| (name, meaning)))
}

/// Returns those that begin with mpienv's prefix.
fn own() -> impl Iterator<Item = (&'static str, &'static str)> {
    all().filter(|(name, _)| name.starts_with(PREFIX))
}

fn unknown_variable(name: &str, meant: Option<&str>) -> Finding {
    let (question, remedy) = match meant {
        Some(meant) => {
            (format!("; did you mean {meant}?"), format!("rename it to {meant}, or unset it"))
        }
        None => {
            let read = own().filter(|(_, meaning)| !meaning.starts_with("Set by "));
            let all = read.map(|(name, _)| name).collect::<Vec<_>>().join(", ");
            let remedy = format!(
                "unset it; mpienv reads {all}; if it is not for mpienv, begin its name with something else"
            );
            (String::new(), remedy)
        }
    };
    Finding::warning(
        "unknown-variable",
        format!("{name} is not a variable of mpienv{question}"),
        "mpienv ignores it, so what it asks for does not happen",
        remedy,
    )
}

/// Counts the letters that must be added, removed or replaced to turn one name into the other
/// (Levenshtein).
#[must_use]
pub fn mistakes(one: &str, other: &str) -> usize {
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
    fn a_name_that_is_not_ours_is_reported_with_the_one_that_it_resembles() {
        for (name, meant) in [
            ("MPIENV_TOKN", Some("; did you mean MPIENV_TOKEN?")),
            ("MPIENV_RANK", Some("; did you mean RANK?")),
            ("MPIENV_AUHT", Some("; did you mean MPIENV_AUTH?")),
            ("MPIENV_LAUNCER", Some("; did you mean MPIENV_LAUNCHER?")),
            ("MPIENV_PORTRANGE", Some("; did you mean MPIENV_PORT_RANGE?")),
            ("MPIENV_TOKEN_FLE", Some("; did you mean MPIENV_TOKEN_FILE?")),
            ("MPIENV_SECRET", Some("")),
            ("MPIENV_LAUNCH_TIMEOUT", Some("")),
            ("MPIENV_", Some("")),
            ("MPIENV_TOKEN", None),
            ("MPIENV_ROOT", None),
            ("MPIENV_BIN", None),
            ("MPIENV_SIMULATED", None),
            ("MPIENV_REQUIRE_ALL", None),
            ("MPIENV_LAUNCH_4711_0_98", None),
            ("RNK", None),
        ] {
            let environment = Environment::from_vars([(name, "1")]);
            let found: Vec<_> = misspelled(&environment).map(|finding| finding.what).collect();
            let expected = meant.map(|meant| format!("{name} is not a variable of mpienv{meant}"));
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{name}");
        }
    }

    #[test]
    fn the_variables_of_a_service_of_kubernetes_are_no_mistakes() {
        let of_service =
            ["SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR"];
        let names = of_service.map(|name| format!("MPIENV_{name}"));
        let vars = names.iter().map(|name| (name.as_str(), "10.0.0.5"));
        let misspelled =
            |vars: Vec<(&str, &str)>| misspelled(&Environment::from_vars(vars)).count();
        assert_eq!(misspelled(vars.clone().collect()), 0);
        assert_eq!(misspelled(vars.clone().chain([("MPIENV_TOKN", "1")]).collect()), 1);
        assert_eq!(misspelled(vars.skip(1).collect()), 4);
    }

    #[test]
    fn the_remedy_lists_what_a_user_can_set() {
        let environment = Environment::from_vars([("MPIENV_SECRET", "1")]);
        let remedy = misspelled(&environment).next().unwrap().remedy;
        assert!(remedy.contains("MPIENV_TOKEN, MPIENV_TOKEN_FILE, MPIENV_AUTH"), "{remedy}");
        assert!(!remedy.contains("MPIENV_CONTEXT"), "{remedy}");
    }
}
