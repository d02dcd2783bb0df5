//! Apple's MLX: `mlx.launch`, with its ring, JACCL or NCCL.
//!
//! With the ring and JACCL, no variable holds the number of processes: a file has an entry for each.

use crate::launcher::named_file;
use crate::launcher::prelude::*;
use crate::value::host::Host;
use crate::value::json::Json;

variables! {
    /// The variables that `mlx.launch` sets for every process.
    pub struct MlxVars {
        "[distributed.rst](https://github.com/ml-explore/mlx/blob/main/docs/src/usage/distributed.rst)" {
            RANK = "MLX_RANK" => rank: u32, "rank";
            SIZE = "MLX_WORLD_SIZE" => size: Option<u32>, "world size, for NCCL";
            HOST_FILE = "MLX_HOSTFILE" => host_file: Option<String>, "a file with the addresses of each rank, for the ring";
            DEVICES = "MLX_IBV_DEVICES" => devices: Option<String>, "a file with the devices of each rank, for JACCL";
            COORDINATOR = "MLX_JACCL_COORDINATOR" => coordinator: Option<String>, "`host:port` of rank 0, for JACCL";
            HOST = "NCCL_HOST_IP" => host: Option<String>, "the host of rank 0, for NCCL";
            PORT = "NCCL_PORT" => port: Option<String>, "the port at the host of rank 0, for NCCL";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[MlxVars::VARIABLES],
    marker: |environment| environment.first_set(&[RANK]),
    starts: Starts::Processes,
    start: "start the process with mlx.launch",
    programs: Some(Programs { names: "mlx.launch", verbs: "", options: "-n 2" }),
    one_per_node: "`mlx.launch` with each host once",
    // Users select the backend by these.
    outside: &[DEVICES, COORDINATOR, HOST, PORT],
    samples: &[Sample::of(|process, vars| {
        vars.set_all([RANK, SIZE], [process.rank, process.size]);
        vars.set(HOST, process.address(0));
        vars.set(PORT, 12_345);
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: MlxVars = marker.read()?;
    let rank = by(RANK, vars.rank);
    let Some(file) = marker.environment.first_set(&[HOST_FILE, DEVICES]) else {
        let size = vars.size.ok_or_else(|| marker.missing(SIZE))?;
        let placement = marker.place(rank, by(SIZE, size))?;
        return with_master(placement, &vars)?.on_loopback();
    };
    let path = marker.environment.text(file).unwrap_or_default();
    let malformed = |why: String| marker.refuse(why, file, path);
    let json = named_file::json(marker, file)?;
    let ranks = json.list().ok_or_else(|| malformed("the file is not a list".to_owned()))?;
    let count = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
    if let Some(size) = vars.size.filter(|&size| size != count) {
        return Err(malformed(format!("the file has {count} ranks, but {SIZE}=\"{size}\"")));
    }
    let mut placement = marker.place(rank, by(file, count))?;
    if file == HOST_FILE {
        let endpoints: Option<Vec<_>> = ranks.iter().map(first_endpoint).collect();
        let endpoints =
            endpoints.ok_or_else(|| malformed("the file is not a list of addresses".to_owned()))?;
        let first = endpoints.first().map(|(host, _)| host.as_str());
        let source = format!("{HOST_FILE}: the first rank");
        placement = placement.with_roster(HOST_FILE, &endpoints)?.with_master(source, first)?;
    }
    with_master(placement, &vars)?.on_loopback()
}

/// Adds rank 0's host and port, as the variables of JACCL or NCCL name them.
fn with_master(placement: Placement, vars: &MlxVars) -> Result<Placement, Error> {
    let Some(host) = vars.host.as_deref() else {
        return placement.with_endpoint(COORDINATOR, vars.coordinator.as_deref());
    };
    placement.with_master(HOST, Some(host))?.with_port(PORT, vars.port.as_deref())
}

/// Returns the first of a rank's addresses in the ring.
fn first_endpoint(rank: &Json) -> Option<(String, u32)> {
    let text = rank.list().map_or(rank.text(), |endpoints| endpoints.first()?.text())?;
    let (host, port) = Host::parse_with_port(text).ok()?;
    Some((host.to_string(), port.map_or(0, |port| port.get().into())))
}
