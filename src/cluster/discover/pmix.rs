//! What the launcher's PMIx server adds to its variables.

use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::pmix::{self, PmixVars};
use crate::value::host::HostError;
use crate::value::placement::{Placement, Sourced};

const SOURCE: &str = "the launcher's PMIx server";

/// Asks, and puts the answer in place of what was derived.
pub(crate) fn complete(placement: &mut Placement, environment: &Environment) -> Result<(), Error> {
    let refused = |text: String| {
        Error::new(Reason::Pmix(text), "do not ask PMIx, and set MASTER_ADDR on all ranks").by(placement.launcher)
    };
    let answer = pmix::ask(&PmixVars::of(environment)).map_err(|error| refused(error.to_string()))?;
    let (rank, size) = (placement.rank.index(), placement.rank.size());
    if answer.rank != rank || answer.job_size.is_some_and(|known| known != size) {
        let known = answer.job_size.map_or("?".to_owned(), |known| known.to_string());
        let text = format!("it says rank {} of {known}, but the variables say rank {rank} of {size}", answer.rank);
        return Err(refused(text));
    }
    let host =
        answer.rank0_host.parse().map_err(|error: HostError| refused(format!("{}: {error}", answer.rank0_host)))?;
    placement.master_addr = Some(Sourced::new(host, format!("{SOURCE}: rank 0's host")));
    placement.master_doubt = None;
    if let Some(node) = answer.node_rank {
        placement.node_rank = Some(Sourced::new(node, SOURCE));
    }
    if let Some(nodes) = answer.node_count {
        placement.node_count = Some(Sourced::new(nodes, SOURCE));
    }
    Ok(())
}
