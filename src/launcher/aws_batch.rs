//! AWS Batch multi-node parallel jobs: one process a node.
//!
//! | variable | what it is | defined in |
//! | --- | --- | --- |
//! | `AWS_BATCH_JOB_NODE_INDEX` | the node's number | [AWS Batch: environment variables] |
//! | `AWS_BATCH_JOB_NUM_NODES` | nodes of the job | same |
//! | `AWS_BATCH_JOB_MAIN_NODE_INDEX` | the main node's number; 0 by default | same |
//! | `AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS` | the main node's address; not set on the main node | same |
//!
//! Ranks are counted from the main node on, so that rank 0 is on it.
//!
//! [AWS Batch: environment variables]: https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html

use serde::Deserialize;

use crate::environment::{Environment, variable_names};
use crate::error::{Error, Reason};
use crate::launcher::{Evidence, first_set, unreadable};
use crate::value::host::{Host, HostError};
use crate::value::placement::{Launcher, Placement, Sourced};
use crate::value::rank::Rank;

const INDEX: &str = "AWS_BATCH_JOB_NODE_INDEX";
const NODES: &str = "AWS_BATCH_JOB_NUM_NODES";
const MAIN_INDEX: &str = "AWS_BATCH_JOB_MAIN_NODE_INDEX";
const MAIN_ADDRESS: &str = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS";

/// The variables of a multi-node parallel job.
///
/// ```
/// use mpienv::Environment;
/// use mpienv::launcher::aws_batch::AwsBatchVars;
///
/// let environment = Environment::from_vars([("AWS_BATCH_JOB_NODE_INDEX", "1"), ("AWS_BATCH_JOB_NUM_NODES", "2")]);
/// let vars: AwsBatchVars = environment.read()?;
/// assert_eq!((vars.index, vars.nodes), (1, 2));
/// # Ok::<(), mpienv::ReadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct AwsBatchVars {
    /// `AWS_BATCH_JOB_NODE_INDEX`: the node's number.
    #[serde(rename = "aws_batch_job_node_index")]
    pub index: u32,
    /// `AWS_BATCH_JOB_NUM_NODES`: the number of nodes.
    #[serde(rename = "aws_batch_job_num_nodes")]
    pub nodes: u32,
    /// `AWS_BATCH_JOB_MAIN_NODE_INDEX`: the main node's number.
    #[serde(rename = "aws_batch_job_main_node_index")]
    pub main_index: Option<u32>,
    /// `AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS`: the main node's address.
    #[serde(rename = "aws_batch_job_main_node_private_ipv4_address")]
    pub main_address: Option<String>,
}

pub(crate) fn variables() -> Vec<String> {
    variable_names::<AwsBatchVars>()
}

pub(crate) fn detect(environment: &Environment) -> Option<Evidence> {
    first_set(environment, &[INDEX, NODES])
}

pub(crate) fn read(environment: &Environment) -> Result<Placement, Error> {
    let launcher = Launcher::AwsBatch;
    let evidence = detect(environment);
    let vars: AwsBatchVars = environment.read().map_err(|error| unreadable(environment, launcher, error, evidence))?;
    let node = Placement::new(launcher, (INDEX, vars.index), (NODES, vars.nodes))?.rank;
    let main = Rank::new(vars.main_index.unwrap_or_default(), vars.nodes).map_err(|error| {
        Error::of_launcher(launcher, error, MAIN_INDEX).found(vars.main_index.unwrap_or_default().to_string())
    })?;
    let rank = if node.index() >= main.index() {
        node.index() - main.index()
    } else {
        node.index() + (node.size() - main.index())
    };
    let mut placement =
        Placement::new(launcher, (INDEX, rank), (NODES, vars.nodes))?.with_local((INDEX, Some(0)), (INDEX, Some(1)))?;
    placement.node_rank = Some(Sourced::new(rank, INDEX));
    placement.node_count = Some(Sourced::new(vars.nodes, NODES));
    placement.master_addr = match vars.main_address {
        Some(text) => {
            let host = text.parse().map_err(|error: HostError| {
                Error::of_launcher(launcher, Reason::NotAHost(error), MAIN_ADDRESS).found(&text)
            })?;
            Some(Sourced::new(host, MAIN_ADDRESS))
        }
        // Only the main node lacks it; all interfaces of its own are where the others come in.
        None if rank == 0 => Some(Sourced::new(Host::ANY, "this is the main node, whose address AWS tells the others")),
        None => None,
    };
    Ok(placement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_counted_from_the_main_node_on() {
        for (index, rank) in [(2, 0), (3, 1), (4, 2), (0, 3), (1, 4)] {
            let index: &str = &u32::to_string(&index);
            let vars = [(INDEX, index), (NODES, "5"), (MAIN_INDEX, "2"), (MAIN_ADDRESS, "10.0.0.9")];
            let placement = read(&Environment::from_vars(vars)).unwrap();
            assert_eq!((placement.rank.index(), placement.rank.size()), (rank, 5), "node {index}");
            assert_eq!(placement.node_rank.map(|node| node.value), Some(rank), "node {index}");
        }
    }
}
