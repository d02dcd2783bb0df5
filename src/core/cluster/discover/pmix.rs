//! What the launcher's PMIx server adds to its variables.

use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::launcher::{Launcher, Marker};
use crate::pmix::{self, PmixInfo, PmixVars};
use crate::value::host::HostError;
use crate::value::placement::{Placement, Sourced};

use super::read;

const SOURCE: &str = "the launcher's PMIx server";

/// Reads the variables, and replaces derived values with the server's answer.
///
/// `prterun` alone sets no size. For its processes, the server provides every value.
pub(super) fn placement(
    environment: &Environment,
    marker: Marker,
    is_unplaced: bool,
) -> Result<Placement, Error> {
    let vars = PmixVars::of(environment);
    if is_unplaced && vars.rank.is_some() {
        // `prterun` belongs to PRRTE, which Open MPI's mpirun is based on.
        let launcher = Launcher::OpenMpi;
        let answer = ask(launcher, &vars)?;
        let size = answer
            .job_size
            .ok_or_else(|| refused(launcher, "it does not say how many ranks there are".into()))?;
        let placement = Placement::new(launcher, (pmix::RANK, answer.rank), (SOURCE, size))?
            .with_local((SOURCE, answer.local_rank), (SOURCE, answer.local_size))?;
        let namespace = vars.namespace.map(|name| name.to_string_lossy().into_owned());
        return complete(placement.with_job(pmix::NAMESPACE, namespace), answer);
    }
    let placement = read(environment, marker, is_unplaced)?;
    let answer = ask(placement.launcher, &vars)?;
    let (rank, size) = (placement.rank.index(), placement.rank.size());
    if answer.rank != rank || answer.job_size.is_some_and(|known| known != size) {
        let known = answer.job_size.map_or("?".to_owned(), |known| known.to_string());
        let text = format!(
            "it says rank {} of {known}, but the variables say rank {rank} of {size}",
            answer.rank
        );
        return Err(refused(placement.launcher, text));
    }
    complete(placement, answer)
}

fn ask(launcher: Launcher, vars: &PmixVars<'_>) -> Result<PmixInfo, Error> {
    pmix::ask(vars).map_err(|error| refused(launcher, error.to_string()))
}

fn refused(launcher: Launcher, text: String) -> Error {
    Error::new(Reason::Pmix(text), "or do not ask PMIx, and set MASTER_ADDR for all ranks")
        .by(launcher)
}

/// Adds rank 0's host and the nodes.
fn complete(mut placement: Placement, answer: PmixInfo) -> Result<Placement, Error> {
    let host = answer.rank0_host.parse().map_err(|error: HostError| {
        refused(placement.launcher, format!("{}: {error}", answer.rank0_host))
    })?;
    placement.master_addr = Some(Sourced::new(host, format!("{SOURCE}: rank 0's host")));
    placement.master_doubt = None;
    if let Some(node) = answer.node_rank {
        placement.node_rank = Some(Sourced::new(node, SOURCE));
    }
    if let Some(nodes) = answer.node_count {
        placement.node_count = Some(Sourced::new(nodes, SOURCE));
    }
    Ok(match answer.hosts {
        Some(hosts) => placement.with_hosts(SOURCE, hosts),
        None => placement,
    })
}
