//! What real launchers set, compared with where the processes really ran.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use mpienv::{ClusterInfo, Severity};
use serde::Deserialize;

/// One run of a launcher: what every rank found in its environment, in rank order.
#[derive(Deserialize)]
struct Recording {
    nodes: Vec<Node>,
    ranks: Vec<Process>,
}

#[derive(Deserialize)]
struct Node {
    name: String,
    addresses: Vec<String>,
}

#[derive(Deserialize)]
struct Process {
    /// Where the process really ran.
    host: String,
    env: BTreeMap<String, String>,
    #[serde(default)]
    caller_vars_present: BTreeMap<String, String>,
}

impl Recording {
    /// The environment of a rank: the launcher's variables, and those of its caller that reached
    /// it.
    fn read(&self, rank: usize) -> ClusterInfo {
        let process = &self.ranks[rank];
        ClusterInfo::from_vars(process.env.iter().chain(&process.caller_vars_present)).unwrap()
    }

    /// The hosts that have ranks, in the order of their lowest ranks.
    fn hosts(&self) -> Vec<&str> {
        let mut hosts: Vec<&str> = Vec::new();
        for process in &self.ranks {
            if !hosts.contains(&process.host.as_str()) {
                hosts.push(&process.host);
            }
        }
        hosts
    }

    fn addresses_of(&self, host: &str) -> &[String] {
        &self.nodes.iter().find(|node| node.name == host).unwrap().addresses
    }
}

fn recordings(prefix: &str) -> Vec<(String, Recording)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let mut found = Vec::new();
    for version in fs::read_dir(folder).unwrap() {
        let version = version.unwrap();
        if !version.file_name().to_string_lossy().starts_with(prefix) {
            continue;
        }
        for file in fs::read_dir(version.path()).unwrap() {
            let path = file.unwrap().path();
            let shape = path.file_stem().unwrap().to_string_lossy().into_owned();
            let name = format!("{}/{shape}", version.file_name().to_string_lossy());
            found.push((name, serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()));
        }
    }
    assert!(!found.is_empty(), "no recordings of {prefix}");
    found
}

/// The launcher that started the processes of a recording.
fn launcher_of(name: &str) -> &'static str {
    let (version, shape) = name.split_once('/').unwrap();
    match version.split('-').next().unwrap() {
        // If several launchers have set variables, all values come from the first one.
        "openmpi" | "mixed" => "open-mpi",
        "mpich" | "impi" | "mpich_gforker" | "accelerate" => "hydra",
        "openpbs" if shape.contains("mpiexec-mpich") => "hydra",
        "deepspeed" | "prrte" if shape.contains("openmpi") || shape.contains("ompi") => "open-mpi",
        "deepspeed" => "user",
        "msrun" => "msrun",
        "paddle" => "paddle",
        "mlx" => "mlx",
        "flux" => "flux",
        "torchrun" => "torchrun",
        "slurm" if shape.contains("mpirun-openmpi") => "open-mpi",
        "slurm" if shape.contains("mpiexec-mpich") => "hydra",
        "slurm" if shape.ends_with("-itself") => "alone",
        "slurm" => "slurm",
        other => panic!("no launcher for {other}"),
    }
}

/// Whether the launcher sets no rank, or a rank without a size.
fn tells_no_size(name: &str) -> bool {
    name.contains("/pbsdsh") || name.starts_with("prrte-") && !name.contains("ompi")
}

/// The recordings of jobs, without batch scripts alone and without two worlds in one.
fn jobs() -> Vec<(String, Recording)> {
    let mut jobs = recordings("");
    jobs.retain(|(name, _)| {
        !name.ends_with("-itself") && !name.starts_with("mixed-") && !tells_no_size(name)
    });
    jobs
}

#[test]
fn every_rank_of_every_recording_finds_its_place() {
    let mut node_ranks = 0;
    for (name, recording) in jobs() {
        let hosts = recording.hosts();
        for (rank, process) in recording.ranks.iter().enumerate() {
            let info = recording.read(rank);
            let on_host: Vec<_> =
                recording.ranks.iter().filter(|other| other.host == process.host).collect();
            assert_eq!(info.launcher().name(), launcher_of(&name), "{name} rank {rank}");
            assert_eq!(info.rank().index() as usize, rank, "{name} rank {rank}");
            assert_eq!(info.world_size() as usize, recording.ranks.len(), "{name} rank {rank}");
            match info.local_world_size() {
                Some(size) => assert_eq!(size as usize, on_host.len(), "{name} rank {rank}"),
                None => {
                    assert!(
                        ["flux-", "mpich_gforker-"]
                            .iter()
                            .any(|keeps_it| name.starts_with(keeps_it)),
                        "{name}"
                    )
                }
            }
            // There, Slurm numbers the nodes by its sorted list, not by their ranks.
            if let Some(node) = info.node_rank().filter(|_| !name.contains("arbitrary")) {
                node_ranks += 1;
                assert_eq!(hosts[node as usize], process.host, "{name} rank {rank}");
            }
            if let Some(nodes) = info.node_count() {
                assert_eq!(nodes as usize, hosts.len(), "{name} rank {rank}");
            }
            // Every value has a source.
            let provenance = serde_json::to_value(info.provenance()).unwrap();
            let sources = provenance.as_object().unwrap();
            assert!(
                sources.values().all(|source| !source.as_str().unwrap().is_empty()),
                "{name} rank {rank}"
            );
        }
        for host in hosts {
            let here =
                (0..recording.ranks.len()).filter(|&rank| recording.ranks[rank].host == host);
            let mut local: Vec<_> =
                here.filter_map(|rank| recording.read(rank).local_rank()).collect();
            assert!(!local.is_empty() || name.starts_with("mpich_gforker-"), "{name} on {host}");
            local.sort_unstable();
            assert_eq!(local, (0..local.len() as u32).collect::<Vec<_>>(), "{name} on {host}");
        }
    }
    assert!(node_ranks > 50, "only {node_ranks} node ranks are known");
}

#[test]
fn a_batch_script_and_the_shell_of_an_allocation_are_alone_with_a_finding() {
    let all = recordings("slurm-");
    let shells: Vec<_> = all.iter().filter(|(name, _)| name.ends_with("-itself")).collect();
    assert_eq!(shells.len(), 3);
    for (name, recording) in shells {
        let info = recording.read(0);
        assert_eq!((info.launcher().name(), info.world_size()), ("alone", 1), "{name}");
        let [finding] = info.findings() else { panic!("{name}: {:?}", info.findings()) };
        assert_eq!(finding.code, "slurm-not-a-task", "{name}");
        assert!(
            finding.what.contains("SLURM_NTASKS=\"4\"") && finding.remedy.contains("srun"),
            "{finding}"
        );
    }
}

#[test]
fn a_process_that_is_one_of_several_without_a_number_is_refused() {
    let mut refused = 0;
    for (name, recording) in recordings("").into_iter().filter(|(name, _)| tells_no_size(name)) {
        for process in &recording.ranks {
            let error = ClusterInfo::from_vars(process.env.iter()).unwrap_err();
            assert!(
                ["PMIX_RANK", "PBS_TASKNUM"].contains(&error.variable().unwrap()),
                "{name}: {error}"
            );
            refused += 1;
        }
    }
    assert!(refused > 8, "{refused}");
    let script =
        &recordings("openpbs-").into_iter().find(|(name, _)| name.ends_with("-itself")).unwrap().1;
    assert_eq!(script.read(0).findings()[0].code, "pbs-not-a-task");
}

#[test]
fn tasks_of_flux_started_by_hydra_are_fluxs() {
    for (name, recording) in recordings("flux-") {
        for rank in 0..recording.ranks.len() {
            let info = recording.read(rank);
            let findings = info
                .findings()
                .iter()
                .filter(|finding| finding.code == "launchers-disagree")
                .count();
            assert_eq!((info.launcher().name(), findings), ("flux", 0), "{name} rank {rank}");
        }
    }
    let script =
        ClusterInfo::from_vars([("FLUX_ENCLOSING_ID", "ƒX3KixqV"), ("FLUX_URI", "local:///a")])
            .unwrap();
    assert_eq!(script.findings()[0].code, "flux-not-a-task");
}

#[test]
fn of_two_launchers_one_is_taken_whole_and_the_other_is_named() {
    for name in ["mixed-openmpi", "slurm-22.05.8"] {
        for (name, recording) in recordings(name) {
            if launcher_of(&name) != "open-mpi" {
                continue;
            }
            let mut findings = 0;
            for (index, process) in recording.ranks.iter().enumerate() {
                let info = recording.read(index);
                let given = |variable: &str| process.env[variable].parse::<u32>().unwrap();
                assert_eq!(info.rank().index(), given("OMPI_COMM_WORLD_RANK"), "{name}");
                assert_eq!(
                    info.local_world_size(),
                    Some(given("OMPI_COMM_WORLD_LOCAL_SIZE")),
                    "{name}"
                );
                findings +=
                    info.findings().iter().filter(|f| f.code == "launchers-disagree").count();
            }
            assert!(findings > 0, "{name}");
            // Daemons that mpirun starts with srun must not cause warnings.
            if name.starts_with("slurm-") && name.contains("sbatch") {
                let infos = (0..recording.ranks.len()).map(|rank| recording.read(rank));
                let severities = infos
                    .flat_map(|info| info.findings().to_vec())
                    .filter(|f| f.code == "launchers-disagree");
                assert!(
                    severities.into_iter().all(|finding| finding.severity == Severity::Note),
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn the_master_under_slurm_is_the_first_host_of_the_step() {
    for (name, recording) in recordings("slurm-") {
        if launcher_of(&name) != "slurm" || recording.hosts().len() == 1 {
            continue;
        }
        // The names of Slurm's nodes can differ from host names.
        let expected =
            if name.contains("nodename-not-hostname") { "gpu01" } else { &recording.ranks[0].host };
        // There, the list of hosts does not show rank 0's, and every rank warns.
        let doubted = name.contains("arbitrary");
        for rank in 0..recording.ranks.len() {
            let info = recording.read(rank);
            let is_expected = info.master_addr().unwrap().to_string() == expected;
            let warned = info
                .findings()
                .iter()
                .any(|finding| finding.code == "slurm-arbitrary-distribution");
            assert_eq!(
                (is_expected, warned),
                (!doubted, doubted),
                "{name} rank {rank}: {:?}",
                info.master_addr()
            );
            assert!((20_000..30_000).contains(&info.master_port().get()), "{name} rank {rank}");
            assert_eq!(info.master_port(), recording.read(0).master_port(), "{name} rank {rank}");
        }
    }
}

#[test]
fn the_hosts_under_slurm_are_in_the_order_of_their_first_ranks() {
    let mut listed = 0;
    for (name, recording) in
        recordings("slurm-").into_iter().filter(|(name, _)| launcher_of(name) == "slurm")
    {
        for rank in 0..recording.ranks.len() {
            let info = recording.read(rank);
            let hosts =
                info.hosts().map(|hosts| hosts.iter().map(ToString::to_string).collect::<Vec<_>>());
            match name.as_str() {
                name if name.contains("arbitrary") => assert_eq!(hosts, None, "{name} rank {rank}"),
                // The names of Slurm's nodes can differ from host names.
                name if name.contains("nodename") => assert_eq!(hosts.unwrap(), ["gpu01", "gpu02"]),
                _ => assert_eq!(hosts.unwrap(), recording.hosts(), "{name} rank {rank}"),
            }
            listed += u32::from(info.hosts().is_some());
        }
    }
    assert!(listed > 50, "{listed}");
}

#[test]
fn the_master_of_a_heterogeneous_step_is_the_first_components_first_host() {
    let mut sorted_otherwise = 0;
    for (name, recording) in recordings("slurm-25.11.7") {
        if !name.contains("het") {
            continue;
        }
        for (rank, process) in recording.ranks.iter().enumerate() {
            let truth = recording.ranks[0].host.parse();
            let info = recording.read(rank);
            assert_eq!(info.master_addr().ok(), truth.as_ref().ok(), "{name} rank {rank}");
            assert_eq!(info.findings(), [], "{name} rank {rank}");
            sorted_otherwise += u32::from(
                !process.env["SLURM_STEP_NODELIST"].starts_with(&recording.ranks[0].host),
            );
            // Without the components' lists, the first host of the sorted list is doubtful.
            let bare = process.env.iter().filter(|(variable, _)| !variable.contains("NODELIST_"));
            let bare = ClusterInfo::from_vars(bare).unwrap();
            assert_eq!(bare.findings()[0].code, "slurm-heterogeneous-step", "{name} rank {rank}");
        }
    }
    assert_eq!(sorted_otherwise, 8, "ranks whose master is not the first of the sorted list");
}

#[test]
fn blocks_of_ranks_on_uneven_nodes_are_no_odd_order() {
    for (name, recording) in jobs().into_iter().filter(|(name, _)| !name.contains("arbitrary")) {
        let before = |rank: usize| {
            recording.ranks[..rank].iter().filter(|p| p.host == recording.ranks[rank].host).count()
        };
        let hosts = recording.ranks.chunk_by(|one, other| one.host == other.host).count();
        let in_blocks = hosts == recording.hosts().len()
            && (0..recording.ranks.len())
                .all(|rank| recording.read(rank).local_rank() == Some(before(rank) as u32));
        for rank in 0..recording.ranks.len() {
            let info = recording.read(rank);
            let found = info.findings().iter().any(|finding| finding.code == "local-rank-order");
            // A rank that does not know its node's number may interpret uneven blocks differently.
            assert!(!(in_blocks && found && info.node_rank().is_some()), "{name} rank {rank}");
        }
    }
}

#[test]
fn open_mpi_4_gives_the_number_of_nodes_and_5_only_if_it_is_one() {
    for (name, recording) in recordings("openmpi-") {
        let info = recording.read(0);
        let given = info.node_count().is_some();
        assert_eq!(given, name.starts_with("openmpi-4") || recording.hosts().len() == 1, "{name}");
    }
}

#[test]
fn the_master_is_rank_0s_host_wherever_one_is_named() {
    let mut named = 0;
    for (name, recording) in recordings("openmpi-") {
        let truth = recording.addresses_of(&recording.ranks[0].host).to_vec();
        let infos: Vec<_> = (0..recording.ranks.len()).map(|rank| recording.read(rank)).collect();
        let Ok(host) = infos[0].master_addr().cloned() else {
            // Open MPI 5 names no host.
            assert!(name.starts_with("openmpi-5") && recording.hosts().len() > 1, "{name}");
            assert!(
                infos.iter().all(|info| info.findings().iter().any(|f| f.code == "master-unknown")),
                "{name}"
            );
            continue;
        };
        named += 1;
        assert!(infos.iter().all(|info| info.master_addr() == Ok(&host)), "{name}");
        if recording.hosts().len() == 1 {
            assert_eq!(host.to_string(), "127.0.0.1", "{name}");
        } else {
            assert!(truth.contains(&host.to_string()), "{name}: {host}");
            assert_eq!(infos[0].findings(), [], "{name}");
            let is_doubted = |info: &ClusterInfo| {
                info.findings().iter().any(|finding| finding.code == "master-not-rank-0")
            };
            assert!(!infos.iter().any(is_doubted), "{name}");
        }
    }
    assert!(named > 10);
}

#[test]
fn a_port_that_did_not_reach_every_rank_is_seen_as_different_ports() {
    // Without -x, the caller's MASTER_PORT stays on mpirun's host, which no single rank can detect.
    let all = recordings("openmpi-4.1.4");
    let ports = |shape: &str| -> Vec<u16> {
        let (_, recording) = all.iter().find(|(name, _)| name.ends_with(shape)).unwrap();
        (0..recording.ranks.len()).map(|rank| recording.read(rank).master_port().get()).collect()
    };
    let [near, same, far, also] = ports("/n4-2x2-user-env-not-exported")[..] else {
        panic!("four ranks")
    };
    assert_eq!((near, same, far), (29511, 29511, also));
    assert!((20_000..30_000).contains(&far) && far != near, "the job's own: {far}");
    assert_eq!(ports("/n4-2x2-user-env-x"), [29511; 4]);
}

#[test]
fn one_process_a_node_is_known_by_open_mpi_4() {
    for (name, recording) in recordings("openmpi-") {
        if !name.ends_with("/per-node-2x1") {
            continue;
        }
        for rank in 0..2u32 {
            let info = recording.read(rank as usize);
            assert_eq!(info.launch_style().name(), "per-node", "{name}");
            let given = name.starts_with("openmpi-4").then_some(rank);
            assert_eq!(info.node_rank(), given, "{name}");
            let workers = info.workers(4).unwrap();
            assert_eq!(workers[3].rank().index(), rank * 4 + 3, "{name}");
        }
    }
}

#[test]
fn the_odd_rank_of_uneven_nodes_does_not_launch_workers_under_open_mpi_4() {
    let all = recordings("openmpi-4.1.4");
    let (_, recording) = all.iter().find(|(name, _)| name.ends_with("/n4-3+1")).unwrap();
    let info = recording.read(3);
    assert_eq!(info.launch_style().name(), "per-process");
    let error = info.workers(2).unwrap_err().to_string();
    assert!(error.contains("the job has 4 ranks on 2 nodes"), "{error}");
}
