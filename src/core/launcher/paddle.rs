//! PaddlePaddle: `python -m paddle.distributed.launch`.

use crate::launcher::prelude::*;

variables! {
    /// The variables that Paddle's launcher sets for every trainer.
    pub struct PaddleVars {
        "[distributed/parallel.py](https://github.com/PaddlePaddle/Paddle/blob/develop/python/paddle/distributed/parallel.py)" {
            RANK = "PADDLE_TRAINER_ID" => rank: u32, "rank";
            SIZE = "PADDLE_TRAINERS_NUM" => size: u32, "world size";
            ENDPOINTS = "PADDLE_TRAINER_ENDPOINTS" => endpoints: Option<String>, "`host:port` of each rank, with commas";
            ENDPOINT = "PADDLE_CURRENT_ENDPOINT" => endpoint: Option<String>, "`host:port` of this rank";
        }
        "recorded from PaddlePaddle 3.3.1" {
            MASTER = "PADDLE_MASTER" => master: Option<String>, "`host:port` of rank 0, which listens there";
            LOCAL_RANK = "PADDLE_RANK_IN_NODE" => local_rank: Option<u32>, "rank on this node";
            LOCAL_SIZE = "PADDLE_LOCAL_SIZE" => local_size: Option<u32>, "ranks on this node";
            NODES = "PADDLE_NNODES" => nodes: Option<u32>, "nodes of the job";
        }
        "[fleet: role_maker.py](https://github.com/PaddlePaddle/Paddle/blob/develop/python/paddle/distributed/fleet/base/role_maker.py)" {
            ROLE = "TRAINING_ROLE" => role: Option<String>, "`TRAINER`; parameter servers, `PSERVER`, have no rank";
        }
    }
}

/// The role of a rank.
const TRAINER: &str = "TRAINER";

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[PaddleVars::VARIABLES],
    // Platforms set the other variables once on each node. Parameter servers have no number.
    marker: |environment| {
        let is_other = || environment.text(ROLE).is_some_and(|role| role != TRAINER);
        let of_server = || environment.first_set(&[SIZE]).filter(|_| is_other());
        environment.first_set(&[RANK]).or_else(of_server)
    },
    starts: Starts::Processes,
    start: "start the process with `python -m paddle.distributed.launch`",
    one_per_node: "`python -m paddle.distributed.launch --nproc_per_node 1`",
    local: &[LOCAL_RANK, LOCAL_SIZE],
    outside: &[ROLE],
    samples: &[Sample::of(|process, vars| {
        let endpoint = |node: u32, local_rank: u32| {
            format!("{}:{}", process.address(node), 40_434 + local_rank)
        };
        let endpoints: Vec<_> =
            process.places.iter().map(|place| endpoint(place.node, place.local_rank)).collect();
        vars.set_all([RANK, SIZE, LOCAL_RANK, LOCAL_SIZE], process.place());
        vars.set(NODES, process.nodes);
        vars.set(MASTER, format!("{}:40433", process.address(0)));
        vars.set(ENDPOINT, endpoint(process.node, process.local_rank));
        vars.set(ENDPOINTS, endpoints.join(","));
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    if let Some(role) = marker.environment.text(ROLE).filter(|role| *role != TRAINER) {
        return Err(marker.not_a_rank("only a trainer is a rank", ROLE, role));
    }
    let vars: PaddleVars = marker.read()?;
    let mut placement = marker.place(by(RANK, vars.rank), by(SIZE, vars.size))?;
    let endpoints = vars.endpoints.iter().flat_map(|list| list.split(','));
    let parse = |(host, port): (_, &str)| (host, port.parse().unwrap_or_default());
    let parsed: Option<Vec<_>> = endpoints.map(|text| text.rsplit_once(':').map(parse)).collect();
    // The ranks can meet without the list.
    if let Some(ranks) = parsed.filter(|ranks| ranks.len() == vars.size as usize) {
        placement = placement.with_roster(ENDPOINTS, &ranks)?;
    }
    placement = placement.with_endpoint(MASTER, vars.master.as_deref())?;
    if vars.nodes.is_some() && vars.nodes != placement.node_count.as_ref().map(|count| count.value)
    {
        // Several nodes of a test may have one address.
        placement = placement.with_nodes(None, by(NODES, vars.nodes)).without_hosts(ENDPOINTS);
    }
    placement.with_local(by(LOCAL_RANK, vars.local_rank), by(LOCAL_SIZE, vars.local_size))
}
