//! What mpienv knows about a process's node besides its place: device, restarts, the platform, its
//! own address.

use std::collections::BTreeSet;
use std::iter::repeat_n;

use mpienv::ask::own_addr;
use mpienv::simulate::{Job, JobBuilder, JobError};
use mpienv::{ClusterInfo, Error, LaunchStyle, Launcher};
use serde_json::Value;

use crate::support::namespace::unshared;
use crate::support::tool::{clean, is_there};

type Pairs<'a> = &'a [(&'a str, &'a str)];

fn try_read(vars: Pairs) -> Result<ClusterInfo, Error> {
    ClusterInfo::from_vars(vars.iter().copied())
}

fn read(vars: Pairs) -> ClusterInfo {
    try_read(vars).unwrap()
}

const THIRD: Pairs =
    &[("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "3"), ("LOCAL_WORLD_SIZE", "4")];

const STEP: Pairs =
    &[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_STEP_ID", "0"), ("SLURM_LOCALID", "1")];

const TORCHRUN: Pairs = &[
    ("TORCHELASTIC_RUN_ID", "none"),
    ("RANK", "3"),
    ("WORLD_SIZE", "4"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "a"),
    ("MASTER_PORT", "29500"),
];

const SKYPILOT: Pairs = &[
    ("SKYPILOT_NODE_RANK", "1"),
    ("SKYPILOT_NUM_NODES", "2"),
    ("SKYPILOT_NODE_IPS", "10.0.0.4\n10.0.0.5"),
];

#[test]
fn the_hosts_of_all_ranks_are_the_jobs_where_they_are_known() {
    let shapes = [vec![2, 2], vec![3, 1], vec![1, 1, 1]];
    let mut known = BTreeSet::new();
    for (builder, counts) in Job::of_each().flat_map(|builder| {
        shapes.iter().map(move |counts| (builder.clone().counts(counts.clone()), counts))
    }) {
        for job in [builder.clone(), builder.by_node()].map(JobBuilder::build) {
            // A platform starts one process on each node.
            let Ok(job) = job else { continue };
            let info = ClusterInfo::from_vars(job.environment(0).unwrap()).unwrap();
            let Some(per_host) = info.ranks_per_host() else { continue };
            let hosts = per_host.iter().flat_map(|(host, ranks)| repeat_n(host, *ranks as usize));
            let all = info.hosts().unwrap();
            let nodes = (0..).map_while(|rank| Some(&all[job.place(rank)?.node as usize]));
            assert!(hosts.eq(nodes), "{job:?}: {per_host:?}");
            known.insert((job.launcher().name(), counts));
        }
    }
    assert!(shapes.iter().all(|counts| known.contains(&("slurm", counts))), "{known:?}");
    assert!(known.contains(&("skypilot", &shapes[2])), "{known:?}");
}

#[test]
fn the_device_is_the_local_ranks_if_all_are_visible_and_0_if_one_is() {
    let none = "shows no device";
    let cases: [(Pairs, Option<u32>, &str); 15] = [
        (&[], Some(3), "the local rank, because no variable hides a device"),
        (
            &[("CUDA_VISIBLE_DEVICES", "0,1,2,3")],
            Some(3),
            "the local rank: CUDA_VISIBLE_DEVICES shows 4 devices",
        ),
        (&[("CUDA_VISIBLE_DEVICES", "3")], Some(0), "CUDA_VISIBLE_DEVICES shows one device"),
        (
            &[("CUDA_VISIBLE_DEVICES", "GPU-8932f937")],
            Some(0),
            "CUDA_VISIBLE_DEVICES shows one device",
        ),
        (&[("ROCR_VISIBLE_DEVICES", "3")], Some(0), "ROCR_VISIBLE_DEVICES shows one device"),
        (&[("HIP_VISIBLE_DEVICES", "3")], Some(0), "HIP_VISIBLE_DEVICES shows one device"),
        (
            &[("CUDA_VISIBLE_DEVICES", "0,1,2,3"), ("ROCR_VISIBLE_DEVICES", "2")],
            Some(0),
            "ROCR_VISIBLE_DEVICES shows one",
        ),
        (
            &[("CUDA_VISIBLE_DEVICES", "0,1")],
            None,
            "CUDA_VISIBLE_DEVICES shows 2 devices, and the local rank is 3",
        ),
        (&[("CUDA_VISIBLE_DEVICES", "0,-1,1")], Some(0), "CUDA_VISIBLE_DEVICES shows one device"),
        (&[("CUDA_VISIBLE_DEVICES", "-1")], None, none),
        (&[("CUDA_VISIBLE_DEVICES", "")], None, none),
        (&[("CUDA_VISIBLE_DEVICES", "NoDevFiles")], None, none),
        // As on Aurora, where each rank sees one tile.
        (&[("ZE_AFFINITY_MASK", "1.1")], Some(0), "ZE_AFFINITY_MASK shows one device"),
        (&[("ZE_AFFINITY_MASK", "x")], None, "\"x\" names none"),
        (&[("HLS_MODULE_ID", "3")], Some(0), "HLS_MODULE_ID shows one device"),
    ];
    for (vars, expected, source) in cases {
        let info = read(&[THIRD, vars].concat());
        assert_eq!(info.device_index(), expected, "{vars:?}");
        assert!(
            info.provenance().device_index.contains(source),
            "{vars:?}: {}",
            info.provenance().device_index
        );
    }
    let unknown: Pairs = &[("PMI_RANK", "3"), ("PMI_SIZE", "4")];
    assert_eq!(read(unknown).device_index(), None);
    assert_eq!(read(&[unknown, &[("CUDA_VISIBLE_DEVICES", "3")]].concat()).device_index(), Some(0));
}

#[test]
fn each_worker_of_a_node_has_a_device_of_its_own() {
    let devices = |more: Pairs| -> Vec<_> {
        read(&[SKYPILOT, more].concat())
            .workers(2)
            .unwrap()
            .iter()
            .map(ClusterInfo::device_index)
            .collect()
    };
    assert_eq!(devices(&[]), [Some(0), Some(1)]);
    assert_eq!(devices(&[("CUDA_VISIBLE_DEVICES", "6,7")]), [Some(0), Some(1)]);
    assert_eq!(devices(&[("CUDA_VISIBLE_DEVICES", "7")]), [Some(0), Some(0)]);
}

#[test]
fn restarts_are_counted_by_the_launcher_or_by_what_is_around_it() {
    let lepton: Pairs = &[
        ("LEPTON_JOB_WORKER_INDEX", "1"),
        ("LEPTON_JOB_TOTAL_WORKERS", "2"),
        ("LEPTON_JOB_FAILURE_COUNT", "4"),
    ];
    let cases: [(&[Pairs], Option<u32>, &str); 7] = [
        (&[STEP, &[("SLURM_RESTART_COUNT", "2")]], Some(2), "SLURM_RESTART_COUNT"),
        // Slurm sets it only after the first restart.
        (&[STEP], None, "not provided by the launcher"),
        (
            &[TORCHRUN, &[("TORCHELASTIC_RESTART_COUNT", "0")]],
            Some(0),
            "TORCHELASTIC_RESTART_COUNT",
        ),
        (&[lepton], Some(4), "LEPTON_JOB_FAILURE_COUNT"),
        (&[TORCHRUN, lepton], Some(4), "LEPTON_JOB_FAILURE_COUNT"),
        (
            &[TORCHRUN, &[("TORCHELASTIC_RESTART_COUNT", "1")], lepton],
            Some(1),
            "TORCHELASTIC_RESTART_COUNT",
        ),
        (&[THIRD, &[("TORCHELASTIC_RESTART_COUNT", "x")]], None, "not provided by the launcher"),
    ];
    for (vars, expected, source) in cases {
        let info = read(&vars.concat());
        assert_eq!(
            (info.restart_count(), &*info.provenance().restart_count),
            (expected, source),
            "{vars:?}"
        );
    }
    let error = try_read(&[TORCHRUN, &[("TORCHELASTIC_RESTART_COUNT", "x")]].concat()).unwrap_err();
    assert_eq!(
        (error.launcher(), error.variable()),
        (Some(Launcher::Torchrun), Some("TORCHELASTIC_RESTART_COUNT"))
    );
}

#[test]
fn no_port_depends_on_torchruns_restarts() {
    let port = |count| {
        let around: Pairs = &[
            ("TORCHELASTIC_RESTART_COUNT", count),
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_NODELIST", "a"),
        ];
        read(&[STEP, around].concat()).master_port()
    };
    assert_eq!(port("0"), port("1"));
}

#[test]
fn the_platform_around_a_launcher_is_named() {
    for (inner, launcher) in
        [(TORCHRUN, Launcher::Torchrun), (STEP, Launcher::Slurm), (THIRD, Launcher::User)]
    {
        let info = read(&[SKYPILOT, inner].concat());
        assert_eq!((info.launcher(), info.platform()), (launcher, Some(Launcher::SkyPilot)));
        assert_eq!(info.provenance().platform, "SKYPILOT_NODE_RANK=\"1\"");
        assert_eq!(read(inner).platform(), None);
    }
    // SkyPilot's pods belong to indexed jobs.
    assert_eq!(
        read(&[SKYPILOT, &[("JOB_COMPLETION_INDEX", "1")]].concat()).platform(),
        Some(Launcher::SkyPilot)
    );
    assert_eq!(read(&[]).platform(), None);
    // Users also set these names, so they do not show RunPod, and JAX's names do not show a pod.
    let by_hand: Pairs = &[
        ("NUM_NODES", "2"),
        ("NODE_RANK", "0"),
        ("JAX_PROCESS_ID", "0"),
        ("JAX_NUM_PROCESSES", "4"),
    ];
    assert_eq!(read(&[THIRD, by_hand].concat()).platform(), None);
}

#[test]
fn every_platform_is_its_own_platform_and_that_of_its_workers() {
    for builder in Job::of_each() {
        let several = builder.clone().nodes(2).per_node(2).build();
        let is_platform = matches!(several, Err(JobError::OneProcessANode(_)));
        let Ok(job) = builder.nodes(2).build() else { continue };
        let info = ClusterInfo::from_vars(job.environment(1).unwrap()).unwrap();
        let expected = is_platform.then_some(job.launcher());
        assert_eq!(info.platform(), expected, "{}", job.launcher());
        if expected.is_some() {
            assert_eq!(info.workers(2).unwrap()[1].platform(), expected);
        }
    }
}

#[test]
fn show_prints_the_facts_of_a_node_and_json_has_null_for_what_is_not_known() {
    let show = |words: &[&str], vars: &[Pairs]| {
        let mut command = clean("mpienv");
        let output =
            command.arg("show").args(words).envs(vars.concat().iter().copied()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = show(&[], &[SKYPILOT, TORCHRUN, &[("TORCHELASTIC_RESTART_COUNT", "1")]]);
    let rows: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(name, rest)| (name, rest.trim_start()))
        .collect();
    for (name, value) in
        [("hosts", "-"), ("device index", "1"), ("restart count", "1"), ("platform", "skypilot")]
    {
        assert!(rows.iter().any(|row| row.0 == name && row.1.starts_with(value)), "{name}: {text}");
    }
    let json: Value = serde_json::from_str(&show(&["--json"], &[SKYPILOT])).unwrap();
    assert_eq!(json["hosts"], serde_json::json!(["10.0.0.4", "10.0.0.5"]));
    assert_eq!(
        (&json["device_index"], &json["restart_count"], &json["platform"]),
        (&0.into(), &Value::Null, &"skypilot".into())
    );
    let many: Vec<_> = (0..9).map(|node| format!("10.0.0.{node}")).collect();
    let many = show(
        &[],
        &[&[
            ("SKYPILOT_NODE_RANK", "1"),
            ("SKYPILOT_NUM_NODES", "9"),
            ("SKYPILOT_NODE_IPS", &many.join("\n")),
        ]],
    );
    assert!(many.contains("10.0.0.0, 10.0.0.1, ..., 10.0.0.8 (9 hosts)"), "{many}");
}

#[test]
fn the_own_address_of_one_node_is_a_loopback_address() {
    let own = own_addr(&read(&[])).unwrap();
    assert!(own.address.is_loopback(), "{own:?}");
    let output = clean("mpienv").args(["show", "--json", "--own-addr"]).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&json["own_addr"], json["own_interface"].as_str()),
        (&"127.0.0.1".into(), own.interface.as_deref())
    );
    // Without the option, no name is resolved.
    let output = clean("mpienv")
        .args(["show", "--json"])
        .env("MASTER_ADDR", "no-such-host.invalid")
        .output()
        .unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && json.get("own_addr").is_none(), "{output:?}");
}

/// The second of two ranks on two nodes, with this master.
fn of_two_nodes(master: &str) -> ClusterInfo {
    let rank: Pairs =
        &[("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")];
    read(&[rank, &[("MASTER_ADDR", master)]].concat())
}

#[test]
fn on_several_nodes_a_way_to_this_host_itself_is_an_error_with_the_remedy() {
    for master in ["localhost", "127.0.0.1"] {
        let error = own_addr(&of_two_nodes(master)).unwrap_err();
        assert_eq!((error.variable(), error.value()), (Some("MASTER_ADDR"), Some(master)));
        let text = error.to_string();
        assert!(
            text.contains("leads to this host itself")
                && text.contains("give an address of rank 0's host"),
            "{text}"
        );
    }
    let error = own_addr(&of_two_nodes("no-such-host.invalid")).unwrap_err().to_string();
    assert!(
        error.starts_with("MASTER_ADDR=\"no-such-host.invalid\": this host's own address"),
        "{error}"
    );
    let unknown: Pairs = &[("PMI_RANK", "1"), ("PMI_SIZE", "2")];
    assert!(
        own_addr(&read(unknown))
            .unwrap_err()
            .to_string()
            .contains("no variable names rank 0's host")
    );
    let main: Pairs = &[("AWS_BATCH_JOB_NODE_INDEX", "0"), ("AWS_BATCH_JOB_NUM_NODES", "2")];
    let error = own_addr(&read(main)).unwrap_err().to_string();
    assert!(error.contains("does not know its own address"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn nccls_default_is_not_set_where_it_would_leave_the_jobs_only_host_without_interface() {
    if !is_there("ip") {
        return;
    }
    let script = "
        ip link set lo up
        is='echo [${NCCL_SOCKET_IFNAME-unset}]'
        mpienv launch -q --nproc-per-node 1 -- sh -c \"$is\"
        export RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2
        mpienv exec -q -- sh -c \"$is\"
        (eval \"$(mpienv export -q)\"; eval \"$is\")
        mpienv show | grep -o 'not set, because the default excludes all interfaces'
        NCCL_SOCKET_IFNAME=lo mpienv exec -q -- sh -c \"$is\"
        mpienv exec -q --nccl-ifname '^docker0,lo' -- sh -c \"$is\"
        export MASTER_ADDR=10.0.0.1 WORLD_SIZE=4
        mpienv exec -q -- sh -c \"$is\"";
    let Some(output) = unshared(&["--net"], script) else { return };
    let text = String::from_utf8(output.stdout).unwrap();
    let reason = "not set, because the default excludes all interfaces";
    let lines: Vec<_> = text.lines().collect();
    let default = "[^docker0,lo]";
    let expected = ["[0] [unset]", "[unset]", "[unset]", reason, "[lo]", default, default];
    assert_eq!(lines, expected, "{}", String::from_utf8_lossy(&output.stderr));
}

#[cfg(target_os = "linux")]
#[test]
fn the_own_address_is_that_of_the_interface_with_the_route_to_the_master() {
    if !is_there("ip") {
        return;
    }
    let script = "
        ip link set lo up
        for net in 1 2; do
            ip link add eth$net type veth peer name far$net
            ip address add 10.88.$net.7/24 dev eth$net
            ip link set eth$net up && ip link set far$net up
        done
        for master in 10.88.1.9 10.88.2.9 10.88.2.7 10.99.0.1; do
            MASTER_ADDR=$master mpienv show --json --own-addr 2>&1 | tr -d '\\n'; echo
        done";
    let vars = "export RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1;";
    let Some(output) = unshared(&["--net"], &format!("{vars}{script}")) else { return };
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    for (line, own) in
        lines.iter().zip([("10.88.1.7", "eth1"), ("10.88.2.7", "eth2"), ("10.88.2.7", "eth2")])
    {
        let json: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{text}"));
        assert_eq!(
            (json["own_addr"].as_str(), json["own_interface"].as_str()),
            (Some(own.0), Some(own.1))
        );
    }
    assert!(lines[3].contains("no route to 10.99.0.1"), "{text}");
}

#[test]
fn the_only_rank_of_any_launcher_is_the_only_one_on_its_node() {
    let cases: [Pairs; 3] = [
        &[("PMI_RANK", "0"), ("PMI_SIZE", "1")],
        &[("RANK", "0"), ("WORLD_SIZE", "1")],
        &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("SLURM_STEP_ID", "0")],
    ];
    for vars in cases {
        let info = read(vars);
        assert_eq!((info.local_rank(), info.local_world_size()), (Some(0), Some(1)), "{vars:?}");
        assert_eq!(info.provenance().local_rank, "the world size is 1");
    }
}

#[test]
fn the_only_rank_of_a_node_is_not_one_of_one_on_each_if_the_nodes_before_it_have_more() {
    let ranks = [("PMI_RANK", "2"), ("PMI_SIZE", "3"), ("MASTER_ADDR", "node0")];
    let local = [("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "1")];
    let style = |node| {
        let vars = [&ranks[..], &local, &[("HYDRA_BSTRAP_NODE_ID", node)]].concat();
        read(&vars).launch_style()
    };
    assert_eq!(style("1"), LaunchStyle::PerProcess);
    assert_eq!(style("2"), LaunchStyle::PerNode);
}
