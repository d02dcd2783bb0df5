//! What the launcher's PMIx server adds to its variables.

use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::launcher::context::Server;
use crate::launcher::placement::Placement;
use crate::pmix::{self, PmixInfo};
use crate::value::host::HostError;
use crate::value::launcher::Launcher;
use crate::value::sourced::{Sourced, by};

use super::{Detected, read};

/// Reads the variables, and replaces derived values with the server's answer.
///
/// `prterun` alone sets no size. For its processes, the server provides every value.
pub(super) fn placement(detected: &Detected<'_>) -> Result<Placement, Error> {
    let environment: &Environment = &detected.environment;
    if detected.is_unplaced && environment.get(pmix::RANK).is_some() {
        // `prterun` belongs to PRRTE, which Open MPI's mpirun is based on.
        let launcher = Launcher::OpenMpi;
        let answer = ask(launcher, environment)?;
        let size = answer
            .job_size
            .ok_or_else(|| refused(launcher, "it does not say how many ranks there are".into()))?;
        let placement = Placement::new(launcher, by(pmix::RANK, answer.rank), by(source(), size))?
            .with_local(by(source(), answer.local_rank), by(source(), answer.local_size))?;
        let namespace = environment.get(pmix::NAMESPACE);
        let namespace = namespace.map(|name| name.to_string_lossy().into_owned());
        return complete(placement.with_job(pmix::NAMESPACE, namespace), answer);
    }
    let placement = read(detected)?;
    let answer = ask(placement.launcher(), environment)?;
    let (rank, size) = (placement.rank.value, placement.size.value);
    if answer.rank != rank || answer.job_size.is_some_and(|known| known != size) {
        let known = answer.job_size.map_or("?".to_owned(), |known| known.to_string());
        let text = format!(
            "it says rank {} of {known}, but the variables say rank {rank} of {size}",
            answer.rank
        );
        return Err(refused(placement.launcher(), text));
    }
    complete(placement, answer)
}

fn ask(launcher: Launcher, environment: &Environment) -> Result<PmixInfo, Error> {
    pmix::ask(environment).map_err(|error| refused(launcher, error.to_string()))
}

fn refused(launcher: Launcher, text: String) -> Error {
    let give = launcher.spec().advice.give_master;
    let remedy = format!("or do not ask PMIx, and give rank 0's host to all ranks: {give}");
    Error::new(Reason::Pmix(text), remedy).by(launcher)
}

fn source() -> &'static str {
    Server::Pmix.source()
}

/// Adds rank 0's host and the nodes.
fn complete(mut placement: Placement, answer: PmixInfo) -> Result<Placement, Error> {
    let host = answer.rank0_host.parse().map_err(|error: HostError| {
        refused(placement.launcher(), format!("{}: {error}", answer.rank0_host))
    })?;
    placement.master_addr = Some(Sourced::new(host, Server::Pmix.master()));
    (placement.master_doubt, placement.master_unknown) = (None, None);
    placement.node_rank = by(source(), answer.node_rank).or(placement.node_rank);
    placement.node_count = by(source(), answer.node_count).or(placement.node_count);
    Ok(match answer.hosts {
        Some(hosts) => placement.with_hosts(source(), hosts),
        None => placement,
    })
}
