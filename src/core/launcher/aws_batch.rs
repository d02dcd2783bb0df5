//! AWS Batch multi-node parallel jobs: one process per node.
//!
//! Ranks are counted from the main node, so rank 0 is on it.

use crate::launcher::prelude::*;
use crate::value::host::Host;
use crate::value::rank::Rank;

variables! {
    /// The variables of a multi-node parallel job.
    pub struct AwsBatchVars {
        "[AWS Batch: environment variables](https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html)" {
            INDEX = "AWS_BATCH_JOB_NODE_INDEX" => index: u32, "the node's number";
            NODES = "AWS_BATCH_JOB_NUM_NODES" => nodes: u32, "nodes of the job";
            MAIN_INDEX = "AWS_BATCH_JOB_MAIN_NODE_INDEX" => main_index: Option<u32>, "the main node's number; 0 by default";
            MAIN_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS" => main_address: Option<String>, "the main node's address; not set on the main node";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[AwsBatchVars::VARIABLES],
    marker: |environment| environment.first_set(&[INDEX, NODES]),
    start: "start the process as a multi-node parallel job",
    samples: &[Sample::of(|process, vars| {
        vars.set_all([INDEX, NODES], [process.node, process.nodes]);
        vars.set(MAIN_INDEX, 0);
        if process.node > 0 {
            vars.set(MAIN_ADDRESS, process.address(0));
        }
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: AwsBatchVars = marker.read()?;
    let node = marker.place(by(INDEX, vars.index), by(NODES, vars.nodes))?.world();
    let main_index = vars.main_index.unwrap_or_default();
    let main = Rank::new(main_index, vars.nodes)
        .map_err(|error| marker.refuse(error, MAIN_INDEX, main_index))?;
    let after = node.index().checked_sub(main.index());
    let rank = after.unwrap_or_else(|| node.index() + (node.size() - main.index()));
    let placement = marker.node(by(INDEX, rank), by(NODES, vars.nodes))?;
    let mut placement = placement.with_master(MAIN_ADDRESS, vars.main_address.as_deref())?;
    if rank == 0 {
        // Only the main node lacks its own address. The other nodes may connect to any of its
        // interfaces.
        let source = "this is the main node, whose address AWS gives to the others";
        placement.master_addr.get_or_insert(Sourced::new(Host::ANY, source));
    }
    Ok(placement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::Launcher;
    use crate::value::sourced::value_of;

    #[test]
    fn ranks_are_counted_from_the_main_node_on() {
        for (index, rank) in [(2, 0), (3, 1), (4, 2), (0, 3), (1, 4)] {
            let index: &str = &u32::to_string(&index);
            let vars =
                [(INDEX, index), (NODES, "5"), (MAIN_INDEX, "2"), (MAIN_ADDRESS, "10.0.0.9")];
            let environment = Environment::from_vars(vars);
            let marker =
                Marker { environment: &environment, launcher: Launcher::AwsBatch, variable: INDEX };
            let placement = read(marker).unwrap();
            assert_eq!((placement.rank.value, placement.size.value), (rank, 5), "node {index}");
            assert_eq!(value_of(&placement.node_rank), Some(rank), "node {index}");
        }
    }
}
