//! mistral.rs: one process on each node, or one for each rank of its ring.
//!
//! With NCCL, the process of a node starts the others. The ring has a file for each rank.

use crate::error::Reason;
use crate::launcher::named_file;
use crate::launcher::prelude::*;
use crate::value::host::Host;
use crate::value::json::Json;

variables! {
    /// The variables of a node's process.
    pub struct MistralRsVars {
        "[mistralrs-core/src/distributed.rs](https://github.com/EricLBuehler/mistral.rs/blob/master/mistralrs-core/src/distributed.rs)" {
            GLOBAL = "MISTRALRS_MN_GLOBAL_WORLD_SIZE" => global: Option<u32>, "GPUs of all nodes";
            LOCAL = "MISTRALRS_MN_LOCAL_WORLD_SIZE" => local: Option<u32>, "GPUs of each node";
            WORKERS = "MISTRALRS_MN_HEAD_NUM_WORKERS" => workers: Option<u32>, "on the first node: the number of the others";
            HEAD_PORT = "MISTRALRS_MN_HEAD_PORT" => head_port: Option<String>, "on the first node: where it listens";
            SERVER = "MISTRALRS_MN_WORKER_SERVER_ADDR" => server: Option<String>, "on the other nodes: `address:port` of the first one";
            WORKER = "MISTRALRS_MN_WORKER_ID" => worker: Option<u32>, "on the other nodes: the node's number, less one";
        }
        "[mistralrs-quant/src/distributed/mod.rs](https://github.com/EricLBuehler/mistral.rs/blob/master/mistralrs-quant/src/distributed/mod.rs)" {
            RING = "RING_CONFIG" => ring: Option<String>, "with `MISTRALRS_NO_NCCL=1`: a file with this rank's place in the ring";
        }
    }
}

/// Selects the ring if it is 1.
pub(crate) const NO_NCCL: &str = "MISTRALRS_NO_NCCL";

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[MistralRsVars::VARIABLES],
    marker: |environment| {
        let is_ring = environment.text(NO_NCCL) == Some("1");
        let ring = || environment.first_set(&[RING]).filter(|_| is_ring);
        ring().or_else(|| environment.first_set(&[WORKER, WORKERS, SERVER]))
    },
    start: "set mistral.rs's variables together on each node",
    // The numbers of GPUs are the same in a job of one node.
    outside: &[GLOBAL, LOCAL, HEAD_PORT, RING],
    samples: &[Sample::of(|process, vars| {
        vars.set(LOCAL, 8);
        vars.set(GLOBAL, 8 * u64::from(process.nodes));
        match process.node {
            0 => {
                vars.set(WORKERS, process.nodes - 1);
                vars.set(HEAD_PORT, 7000);
            }
            node => {
                vars.set(SERVER, format!("{}:7000", process.address(0)));
                vars.set(WORKER, node - 1);
            }
        }
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    if marker.variable == RING {
        return read_ring(marker);
    }
    let vars: MistralRsVars = marker.read()?;
    if let Some(workers) = vars.workers {
        let size = workers
            .checked_add(1)
            .ok_or_else(|| marker.refuse(Reason::NotANumber, WORKERS, workers))?;
        let mut placement = marker.node(by(WORKERS, 0), by(WORKERS, size))?;
        // Only the first node lacks its own address.
        let source = "this is the first node, whose address the others have";
        placement.master_addr = Some(Sourced::new(Host::ANY, source));
        let placement = placement.with_port(HEAD_PORT, vars.head_port.as_deref())?;
        return Ok(placement.with_workers(LOCAL, vars.local.map(|local| local.to_string())));
    }
    let missing = |name| marker.missing(name);
    let worker = vars.worker.ok_or_else(|| missing(WORKER))?;
    let global = vars.global.ok_or_else(|| missing(GLOBAL))?;
    let local = vars.local.ok_or_else(|| missing(LOCAL))?;
    let Some(0) = global.checked_rem(local) else {
        let why = format!("it is not a multiple of {LOCAL}=\"{local}\"");
        return Err(marker.refuse(why, GLOBAL, global));
    };
    let size = by(format!("{GLOBAL} by {LOCAL}"), global / local);
    let node =
        worker.checked_add(1).ok_or_else(|| marker.refuse(Reason::NotANumber, WORKER, worker))?;
    // The error for a node outside names the worker's own number.
    if node >= size.value {
        let why = format!("there are {} nodes ({})", size.value, size.source);
        return Err(marker.refuse(why, WORKER, worker));
    }
    let placement = marker.node(by(WORKER, node), size)?;
    let placement = placement.with_workers(LOCAL, Some(local.to_string()));
    placement.with_endpoint(SERVER, vars.server.as_deref())
}

fn read_ring(marker: Marker<'_>) -> Result<Placement, Error> {
    let path = marker.environment.text(RING).unwrap_or_default();
    let malformed = |why: String| marker.refuse(why, RING, path);
    let ring = named_file::json(marker, RING)?;
    let number = |name: &str| {
        let number = ring.get(name).and_then(Json::number);
        number.ok_or_else(|| malformed(format!("the file has no number called {name}")))
    };
    let rank = by(format!("{RING}: rank"), number("rank")?);
    let size = by(format!("{RING}: world_size"), number("world_size")?);
    if rank.value >= size.value {
        return Err(malformed(format!("the file says rank {} of {}", rank.value, size.value)));
    }
    let master = ring.get("master_ip").and_then(Json::text);
    let mut placement = marker.place(rank, size)?;
    if let Some(text) = master {
        let not_a_host = |error| malformed(format!("master_ip is {}", Reason::NotAHost(error)));
        let host = text.parse().map_err(not_a_host)?;
        placement.master_addr = Some(Sourced::new(host, format!("{RING}: master_ip")));
        let not_a_port = |_| malformed(format!("master_port is {}", Reason::NotAPort));
        let port = number("master_port")?.to_string().parse().map_err(not_a_port)?;
        placement.master_port = Some(Sourced::new(port, format!("{RING}: master_port")));
    }
    Ok(placement)
}
