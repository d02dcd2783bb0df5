//! What the launcher's PMIx server adds to what its variables tell.

use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::host::HostError;
use crate::placement::{Placement, Sourced};
use crate::pmix::{self, PmixVars};

const SOURCE: &str = "the launcher's PMIx server";

/// Asks, and puts the answer in place of what was derived.
pub(crate) fn complete(placement: &mut Placement, environment: &Environment) -> Result<(), Error> {
    let refused = |text: String| {
        Error::new(Reason::Pmix(text), "or do not ask PMIx, and set MASTER_ADDR for all ranks").by(placement.launcher)
    };
    let vars = PmixVars {
        namespace: environment.get("PMIX_NAMESPACE"),
        rank: environment.get("PMIX_RANK"),
        library: environment.get("MPIENV_PMIX_LIB"),
        pmix_prefix: environment.get("PMIX_PREFIX"),
        opal_prefix: environment.get("OPAL_PREFIX"),
    };
    let answer = pmix::ask(&vars).map_err(|error| refused(error.to_string()))?;
    let (rank, size) = (placement.rank.index(), placement.rank.size());
    if answer.rank != rank || answer.job_size.is_some_and(|told| told != size) {
        let told = answer.job_size.map_or("?".to_owned(), |told| told.to_string());
        let text = format!("it says rank {} of {told}, but the variables say rank {rank} of {size}", answer.rank);
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
