//! Every check of `mpienv doctor`: an environment and a host that make it fire, and ones that keep
//! it quiet.

mod network;

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use mpienv::command::doctor::{Machine, MpiLibrary, examine};
use mpienv::simulate::Job;
use mpienv::{ClusterInfo, Finding, Severity};
use mpienv_launch::seam::{Cpus, Topology};
use mpienv_rendezvous::seam::listen::PortState;

/// Rank 0 of two nodes with two ranks each.
const RANK_0: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_RANK", "0"),
    ("OMPI_COMM_WORLD_SIZE", "4"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("MASTER_ADDR", "10.0.0.4"),
    ("MASTER_PORT", "29500"),
];

fn mpi(version: &str) -> Option<MpiLibrary> {
    Some(MpiLibrary { file: "libmpi.so".into(), version: version.to_owned() })
}

/// A host on which nothing is wrong for that rank.
fn host() -> Machine {
    let interfaces = [("lo", "127.0.0.1"), ("eth0", "10.0.0.4"), ("docker0", "172.17.0.1")];
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    Machine {
        master: Ok(vec![address("10.0.0.4")]),
        interfaces: interfaces.map(|(name, text)| (name.to_owned(), address(text))).to_vec(),
        port: PortState::Free,
        ephemeral_ports: Some(32768..=60999),
        own_name: ("node0".to_owned(), vec![address("10.0.0.4")]),
        cores: Some((64, 64)),
        topology: Topology::default(),
        cpus: Cpus::default(),
        usable: Cpus::default(),
        mpi: mpi("Open MPI v4.1.4"),
        gone_session: None,
        ended_task: None,
        ended_launcher: None,
    }
}

/// A host whose first four GPUs are on the first of two NUMA nodes.
fn h100() -> Topology {
    crate::support::machine::Machine::new("dgx_h100").topology()
}

/// A host with one GPU.
fn one_gpu() -> Topology {
    let machine = crate::support::machine::Machine::new("two_sockets");
    machine.write("dev/nvidia0", "");
    machine.topology()
}

/// The findings with these variables added, on this host.
fn findings(more: &[(&str, &str)], machine: &Machine) -> Vec<Finding> {
    let vars = || RANK_0.iter().chain(more).copied();
    let info = ClusterInfo::from_vars(vars()).unwrap();
    examine(&info, machine)
}

/// The codes of the findings with these variables added, on this host.
fn codes(more: &[(&str, &str)], machine: &Machine) -> Vec<&'static str> {
    findings(more, machine).iter().map(|finding| finding.code).collect()
}

#[test]
fn a_sound_host_has_no_findings() {
    assert_eq!(codes(&[], &host()), [""; 0]);
    let quiet = [
        ("GLOO_SOCKET_IFNAME", "eth0"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
        ("OMP_NUM_THREADS", "8"),
        ("http_proxy", "http://proxy:3128"),
        ("no_proxy", "localhost,10.0.0.4"),
    ];
    assert_eq!(codes(&quiet, &host()), [""; 0]);
    let range = [("https_proxy", "http://proxy:3128"), ("no_proxy", ".svc, 10.0.0.0/8")];
    assert_eq!(codes(&range, &host()), [""; 0]);
}

#[test]
fn each_check_fires_and_is_quiet_where_its_cause_is_gone() {
    let mut fired = BTreeSet::new();
    let mut fires = |code: &'static str, more: &[(&str, &str)], change: fn(&mut Machine)| {
        let mut machine = host();
        change(&mut machine);
        assert_eq!(codes(more, &machine), [code], "{more:?}");
        fired.insert(code);
    };
    let as_it_is: fn(&mut Machine) = |_| {};
    fires("master-unresolved", &[("MASTER_ADDR", "nowhere")], |m| m.master = Err("unknown".into()));
    fires("master-not-here", &[("MASTER_ADDR", "10.0.0.9")], |m| {
        m.master = Ok(vec!["10.0.0.9".parse().unwrap()])
    });
    fires("master-loopback", &[("MASTER_ADDR", "127.0.0.1")], |m| {
        m.master = Ok(vec!["127.0.0.1".parse().unwrap()])
    });
    fires("master-loopback", &[("MASTER_ADDR", "node0")], |m| {
        m.master = Ok(vec!["127.0.1.1".parse().unwrap()])
    });
    fires("master-link-local", &[("MASTER_ADDR", "169.254.0.4")], |m| {
        m.master = Ok(vec!["169.254.0.4".parse().unwrap()]);
        m.interfaces.push(("eth0".into(), "169.254.0.4".parse().unwrap()));
    });
    fires("master-link-local", &[("MASTER_ADDR", "fe80::4%eth0")], |m| {
        m.master = Ok(vec!["fe80::4".parse().unwrap()]);
        m.interfaces.push(("eth0".into(), "fe80::4".parse().unwrap()));
    });
    fires("port-in-use", &[], |m| m.port = PortState::InUse);
    fires("port-privileged", &[("MASTER_PORT", "80")], |m| m.port = PortState::Denied);
    fires("port-ephemeral", &[("MASTER_PORT", "54965")], as_it_is);
    fires("hostname-loopback", &[], |m| m.own_name.1 = vec!["127.0.1.1".parse().unwrap()]);
    fires("stale-open-mpi", &[], |m| {
        m.gone_session = Some(("PMIX_SERVER_TMPDIR", "/tmp/gone".into()))
    });
    let task = [("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
    let task = [&task[..], &[("MPIENV_LAUNCHER", "slurm")]].concat();
    fires("stale-slurm", &task, |m| m.ended_task = Some(4711));
    fires("stale-place", &[], |m| m.ended_launcher = Some("PMI_FD is 9, which is not open".into()));
    fires("proxy", &[("https_proxy", "http://proxy:3128")], as_it_is);
    fires(
        "proxy",
        &[("https_proxy", "http://proxy:3128"), ("no_proxy", "localhost,.cluster")],
        as_it_is,
    );
    fires("proxy", &[("https_proxy", "http://proxy:3128"), ("no_proxy", "10.1.0.0/16")], as_it_is);
    fires("visible-devices", &[("CUDA_VISIBLE_DEVICES", "0")], as_it_is);
    fires("visible-devices", &[("CUDA_VISIBLE_DEVICES", "-1,-1")], as_it_is);
    fires("few-devices", &[], |m| m.topology = one_gpu());
    fires("cpu-binding", &[], |m| m.cores = Some((1, 64)));
    // Its device is on the first socket.
    fires("device-far", &[], |m| {
        m.topology = h100();
        m.cpus = "56-111,168-223".parse().unwrap();
    });
    fires("mpi-library", &[], |m| m.mpi = mpi("MPICH Version: 4.0.2"));
    fires("mpi-library", &[("OMPI_VERSION", "5.0.11")], as_it_is);
    fires("nccl-nothing-left", &[("NCCL_SOCKET_IFNAME", "ib")], as_it_is);
    fires("nccl-bridge", &[("NCCL_SOCKET_IFNAME", "^lo")], as_it_is);
    fires("nccl-bridge", &[("NCCL_SOCKET_IFNAME", "docker")], as_it_is);
    fires("nccl-address", &[("NCCL_SOCKET_IFNAME", "10.0.0.4")], as_it_is);
    fires("gloo-no-such-interface", &[("GLOO_SOCKET_IFNAME", "^docker0")], as_it_is);
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide/findings.md");
    let guide = fs::read_to_string(guide).unwrap();
    let section = guide.split("\n## ").find(|text| text.starts_with("From inspecting the host"));
    let codes =
        section.unwrap().lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(fired, codes.collect());
}

#[test]
fn an_mpi_library_is_of_its_launchers_family() {
    let codes = |vars: &[(&str, &str)], version: &str| {
        let vars =
            || vars.iter().chain(&[("MASTER_ADDR", "10.0.0.4"), ("MASTER_PORT", "29500")]).copied();
        let machine = Machine { mpi: mpi(version), ..host() };
        let info = ClusterInfo::from_vars(vars()).unwrap();
        examine(&info, &machine).iter().map(|f| f.code).collect::<Vec<_>>()
    };
    let hydra =
        [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "2")];
    assert_eq!(codes(&hydra, "Open MPI v4.1.4"), ["mpi-library"]);
    for version in ["MPICH Version: 5.0.2", "Intel(R) MPI Library 2021.18 for Linux* OS"] {
        assert_eq!(codes(&hydra, version), [""; 0]);
    }
    let slurm = [
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_ID", "7"),
    ];
    let pmix = [&slurm[..], &[("SLURM_MPI_TYPE", "pmix_v4")]].concat();
    assert_eq!(codes(&slurm, "Open MPI v5.0.11"), ["mpi-library"]);
    assert_eq!(codes(&pmix, "Open MPI v5.0.11"), [""; 0]);
    assert_eq!(codes(&slurm, "MPICH Version: 4.0.2"), [""; 0]);
    // The library of Open MPI 5 also recognizes the mpirun of version 4.
    let [rank, size, local, local_size, ..] = RANK_0 else {
        panic!("RANK_0 has Open MPI's four first")
    };
    let open_mpi = [*rank, *size, *local, *local_size];
    assert_eq!(codes(&open_mpi, "Open MPI v5.0.11"), [""; 0]);
    assert_eq!(
        codes(&[&open_mpi[..], &[("OMPI_VERSION", "5.0.11")]].concat(), "Open MPI v5.0.11"),
        [""; 0]
    );
    // A process that is alone, or that a launcher without MPI started, needs no library.
    assert_eq!(codes(&[("MPIENV_LAUNCHER", "alone")], "Open MPI v5.0.11"), [""; 0]);
    assert_eq!(codes(&[("RANK", "0"), ("WORLD_SIZE", "2")], "MPICH Version: 4.0.2"), [""; 0]);
}

#[test]
fn one_node_needs_neither_a_network_nor_a_proxys_consent() {
    let one_node = [
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("http_proxy", "http://proxy"),
    ];
    let mut machine = host();
    machine.master = Ok(vec!["127.0.0.1".parse().unwrap()]);
    machine.own_name.1 = vec!["127.0.1.1".parse().unwrap()];
    assert_eq!(codes(&one_node, &machine), [""; 0]);
}

#[test]
fn a_device_far_from_the_cores_names_both_numa_nodes_and_whether_the_binding_is_the_cause() {
    let found = |usable: &str, vars: &[(&str, &str)]| {
        let cpus: Cpus = "56-111,168-223".parse().unwrap();
        let machine = Machine { topology: h100(), cpus, usable: usable.parse().unwrap(), ..host() };
        findings(vars, &machine).into_iter().find(|finding| finding.code == "device-far")
    };
    let bound = found("0-223", &[]).unwrap();
    assert_eq!(
        bound.what,
        "bound to CPUs on NUMA node 1 (56-111,168-223), and its device 0 (0000:1b:00.0) is attached to NUMA node 0"
    );
    assert!(bound.remedy.starts_with("start it unbound, with `mpienv exec --bind device`"));
    let given = found("56-111,168-223", &[]).unwrap();
    assert!(
        given.remedy.starts_with("ask the scheduler for cores near the device"),
        "{}",
        given.remedy
    );
    assert_eq!(found("0-223", &[("CUDA_VISIBLE_DEVICES", "4,5")]), None);
}

#[test]
fn a_binding_is_compared_with_threads_and_ranks_and_gets_the_launchers_own_remedy() {
    let found = |vars: &[(&str, &str)], cores: (usize, usize)| {
        let vars =
            || vars.iter().chain(&[("MASTER_ADDR", "10.0.0.4"), ("MASTER_PORT", "29500")]).copied();
        let machine = Machine { cores: Some(cores), mpi: None, ..host() };
        let info = ClusterInfo::from_vars(vars()).unwrap();
        let found = examine(&info, &machine);
        found.into_iter().find(|f| f.code == "cpu-binding").map(|f| (f.severity, f.what, f.remedy))
    };
    let finding_of =
        |severity, what: &str, remedy: &str| Some((severity, what.to_owned(), remedy.to_owned()));
    let bind_none = "start it with mpirun --bind-to none, or use fewer threads";
    let exec = format!(
        "start the program with `mpienv exec`, which lets it use all cores; or {bind_none}"
    );
    assert_eq!(
        found(RANK_0, (1, 64)),
        finding_of(
            Severity::Note,
            "bound to 1 of 64 cores, by Open MPI; each of this node's 2 ranks could have 32",
            &exec
        )
    );
    assert_eq!(
        found(&[RANK_0, &[("OMP_NUM_THREADS", "33,2")]].concat(), (32, 64)),
        finding_of(
            Severity::Warning,
            "bound to 32 of 64 cores, by Open MPI, with OMP_NUM_THREADS=33; this node has 2 ranks",
            bind_none
        )
    );
    assert_eq!(
        found(&[("OMP_NUM_THREADS", "1")], (1, 2)),
        finding_of(
            Severity::Note,
            "bound to 1 of 2 cores, by what started it, with OMP_NUM_THREADS=1",
            "start it without taskset, numactl and the like (`mpirun --bind-to none`), or use fewer threads"
        )
    );
    // `mpienv exec` leaves a binding that a user has chosen, and one to a fair share of the cores.
    let chosen = [RANK_0, &[("OMPI_MCA_hwloc_base_binding_policy", "core")]].concat();
    assert_eq!(found(&chosen, (1, 64)).unwrap().2, bind_none);
    assert_eq!(found(RANK_0, (64, 64)), None);
}

#[test]
fn the_other_ranks_leave_rank_0s_host_and_port_alone() {
    let mut machine = host();
    machine.interfaces.retain(|(name, _)| name != "eth0");
    machine.interfaces.push(("eth0".into(), "10.0.0.5".parse().unwrap()));
    assert_eq!(codes(&[("OMPI_COMM_WORLD_RANK", "2")], &machine), [""; 0]);
}

#[test]
fn the_port_on_which_torchruns_agent_listens_is_not_in_use_by_another_program() {
    let mut machine = host();
    machine.port = PortState::InUse;
    for (store, expected) in
        [(Some("True"), &[][..]), (Some("False"), &["port-in-use"]), (None, &["port-in-use"])]
    {
        let job = Job::torchrun().nodes(2).per_node(2).build().unwrap().environment(0).unwrap();
        let mut job: Vec<_> = job.into_iter().collect();
        job.retain(|(name, _)| name != "TORCHELASTIC_USE_AGENT_STORE" && name != "MASTER_ADDR");
        job.push(("MASTER_ADDR".into(), "10.0.0.4".into()));
        job.extend(store.map(|value| ("TORCHELASTIC_USE_AGENT_STORE".into(), value.into())));
        let info = ClusterInfo::from_vars(job).unwrap();
        let found = examine(&info, &machine);
        assert_eq!(
            found.iter().map(|finding| finding.code).collect::<Vec<_>>(),
            expected,
            "{store:?}"
        );
    }
}

#[test]
fn the_store_of_another_nodes_agent_is_no_error_for_pytorch() {
    let mut machine = host();
    machine.master = Ok(vec!["10.0.0.9".parse().unwrap()]);
    for (store, severity) in [("True", Severity::Note), ("False", Severity::Error)] {
        let job = Job::torchrun().nodes(2).per_node(2).build().unwrap().environment(0).unwrap();
        let mut job: Vec<_> = job.into_iter().collect();
        job.retain(|(name, _)| name != "TORCHELASTIC_USE_AGENT_STORE" && name != "MASTER_ADDR");
        job.push(("MASTER_ADDR".into(), "10.0.0.9".into()));
        job.push(("TORCHELASTIC_USE_AGENT_STORE".into(), store.into()));
        let info = ClusterInfo::from_vars(job).unwrap();
        let found = examine(&info, &machine);
        let [found] = &found[..] else { panic!("{found:?}") };
        assert_eq!((found.code, found.severity), ("master-not-here", severity), "{store}");
        assert_eq!(found.why.starts_with("PyTorch's ranks meet"), store == "True", "{found}");
    }
}

#[test]
fn a_derived_port_among_outgoing_connections_names_that_range_and_the_variable_that_moves_the_port()
{
    let step = [
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_ID", "7"),
    ];
    let step = [&step[..], &[("SLURM_STEP_NODELIST", "a,b"), ("MASTER_ADDR", "10.0.0.4")]].concat();
    let found = |more: &[(&str, &str)]| {
        let vars = || step.iter().chain(more).copied();
        let machine = Machine { ephemeral_ports: Some(9000..=65000), mpi: None, ..host() };
        let info = ClusterInfo::from_vars(vars()).unwrap();
        examine(&info, &machine)
    };
    let findings = found(&[]);
    assert_eq!(findings.iter().map(|finding| finding.code).collect::<Vec<_>>(), ["port-ephemeral"]);
    assert!(findings[0].what.contains("9000 to 65000"), "{:?}", findings[0]);
    assert_eq!(findings[0].remedy, "set MPIENV_PORT_RANGE=8000-8999 for all ranks");
    assert!(found(&[("MPIENV_PORT_RANGE", "8000-8999")]).is_empty());
    assert_eq!(
        found(&[("MASTER_PORT", "29500")])[0].remedy,
        "choose a MASTER_PORT from 8000 to 8999"
    );
}
