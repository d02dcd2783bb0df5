//! What holds for every environment.

#[path = "support/job.rs"]
mod job;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use job::{Vars, job};
use mpienv::{ClusterInfo, LaunchStyle, Launcher};
use proptest::prelude::*;

/// Names that the crate reads, and some that it does not.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => prop::sample::select(vec![
            "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_MCA_orte_num_nodes", "OMPI_MCA_orte_hnp_uri",
            "OMPI_MCA_orte_local_daemon_uri", "AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE",
            "AZ_BATCH_HOST_LIST", "AZ_BATCH_NODE_LIST", "RANK", "WORLD_SIZE", "LOCAL_RANK",
            "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "NCCL_SOCKET_IFNAME",
            "TORCHELASTIC_USE_AGENT_STORE", "MPIENV_LAUNCHER", "MPIENV_MASTER_ADDR",
            "MPIENV_MASTER_PORT", "MPIENV_NCCL_IFNAME",
        ]).prop_map(str::to_owned),
        1 => "[A-Za-z_]{1,12}",
    ]
}

#[cfg(unix)]
fn value() -> impl Strategy<Value = OsString> {
    use std::os::unix::ffi::OsStringExt;
    prop_oneof![
        (0u32..6).prop_map(|n| n.to_string().into()),
        any::<u32>().prop_map(|n| n.to_string().into()),
        prop::sample::select(vec![
            "",
            " ",
            "-1",
            "+1",
            "0x1",
            "four",
            "4294967296",
            "localhost",
            "10.0.0.4:6000",
            ":",
            "host:99999",
            "[fe::1]:6000",
            "fe::1",
            "$(x)",
            "user",
            "open-mpi",
            "alone",
            "keep",
            "unset",
            "1.0;tcp://10.0.0.1:2",
            "1.0;tcp6://[fd00::1,fe80::2]:3",
            "1.0;tcp://",
            "a,b",
            "a;b",
            "^docker0,lo",
        ])
        .prop_map(OsString::from),
        any::<String>().prop_map(OsString::from),
        prop::collection::vec(any::<u8>(), 0..12).prop_map(OsString::from_vec),
    ]
}

fn read(vars: &Vars) -> ClusterInfo {
    ClusterInfo::from_vars(vars.clone()).unwrap()
}

/// The values of an environment after its own exports have been applied to it.
fn exported(info: &ClusterInfo, vars: &Vars) -> Vars {
    let exports = info.exports().unwrap();
    let gone: BTreeSet<_> = exports.unset().collect();
    let mut vars: Vars = vars.iter().filter(|(name, _)| !gone.contains(name.as_str())).cloned().collect();
    vars.extend(exports.into_iter().map(|(name, value)| (name.to_owned(), value)));
    vars
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_environment_makes_reading_panic(vars in prop::collection::vec((name(), value()), 0..12)) {
        match ClusterInfo::from_vars(vars.clone()) {
            Ok(info) => {
                prop_assert!(info.rank() < info.world_size());
                if let (Some(rank), Some(size)) = (info.local_rank(), info.local_world_size()) {
                    prop_assert!(rank < size && size <= info.world_size());
                }
                // Either exports or a reason with a remedy.
                if let Err(error) = info.exports() {
                    prop_assert!(info.findings().iter().any(|finding| finding.code == "master-unknown"));
                    prop_assert!(!error.remedy().is_empty());
                }
                serde_json::to_string(&info).unwrap();
                let _ = info.workers(3);
            }
            Err(error) => {
                // One paragraph that ends with what to do.
                let text = error.to_string();
                prop_assert!(!text.contains('\n'), "{text}");
                prop_assert!(text.ends_with(error.remedy()) && !error.remedy().is_empty(), "{text}");
            }
        }
    }

    #[test]
    fn all_ranks_of_a_job_agree_and_are_a_permutation(job in job(), master in prop::option::of("[a-z]{1,8}")) {
        let more: Vec<_> = master.iter().map(|host| ("MASTER_ADDR", host.as_str())).collect();
        let infos: Vec<_> = job.all(&more).iter().map(read).collect();
        let ranks: BTreeSet<u32> = infos.iter().map(ClusterInfo::rank).collect();
        prop_assert_eq!(ranks.len(), infos.len());
        for (rank, info) in infos.iter().enumerate() {
            prop_assert_eq!(info.launcher(), Launcher::OpenMpi);
            prop_assert_eq!(info.rank() as usize, rank);
            prop_assert_eq!(info.world_size() as usize, infos.len());
            prop_assert_eq!(info.master_addr().ok(), infos[0].master_addr().ok());
            prop_assert_eq!(info.master_port(), infos[0].master_port());
            prop_assert_eq!(info.local_rank(), Some(job.places[rank].1));
            prop_assert_eq!(info.local_world_size(), Some(job.counts[job.places[rank].0]));
            // A node's number is claimed only where it is right.
            if let Some(node) = info.node_rank() {
                prop_assert_eq!(node as usize, job.places[rank].0);
            }
            if let Some(nodes) = info.node_count() {
                prop_assert_eq!(nodes as usize, job.counts.len());
            }
        }
    }

    #[test]
    fn workers_of_all_nodes_are_a_permutation(nodes in 1u32..6, per_node in 1u32..6) {
        let job = job::Job { places: (0..nodes).map(|node| (node as usize, 0)).collect(), counts: vec![1; nodes as usize] };
        let infos: Vec<_> = job.all(&[("MASTER_ADDR", "a")]).iter().map(read).collect();
        let workers: Vec<_> = infos.iter().flat_map(|info| info.workers(per_node).unwrap()).collect();
        for (rank, worker) in workers.iter().enumerate() {
            prop_assert_eq!(worker.rank() as usize, rank);
            prop_assert_eq!(worker.world_size(), nodes * per_node);
            prop_assert_eq!(worker.local_rank(), Some(rank as u32 % per_node));
            prop_assert_eq!(worker.local_world_size(), Some(per_node));
            prop_assert_eq!(worker.node_rank(), Some(rank as u32 / per_node));
            prop_assert_eq!(worker.node_count(), Some(nodes));
            // What a worker inherits from mpirun does not count.
            let outer = job.all(&[("MASTER_ADDR", "a")]).swap_remove(rank / per_node as usize);
            let again = read(&exported(worker, &outer));
            prop_assert_eq!(again.launcher(), Launcher::User);
            prop_assert_eq!(again.rank(), worker.rank());
            prop_assert_eq!(again.world_size(), worker.world_size());
        }
    }

    #[test]
    fn exporting_and_reading_again_gives_the_same(
        job in job(), azure in any::<bool>(), store in any::<bool>(), ifname in prop::option::of("[a-z^,=0-9]{1,9}"),
        port in prop::option::of(1u16..), host in prop::option::of("[a-z]{1,8}"),
    ) {
        let port = port.map(|port| port.to_string());
        let mut more = vec![("MASTER_ADDR", "10.0.0.9")];
        if azure { more.push(("AZ_BATCH_MASTER_NODE", "10.0.0.4:6000")); }
        if store { more.push(("TORCHELASTIC_USE_AGENT_STORE", "True")); }
        if let Some(ifname) = &ifname { more.push(("NCCL_SOCKET_IFNAME", ifname)); }
        if let Some(port) = &port { more.push(("MASTER_PORT", port)); }
        for vars in job.all(&more) {
            let mut builder = ClusterInfo::builder();
            if let Some(host) = &host { builder = builder.master_addr(host.parse().unwrap()); }
            let first = builder.from_vars(vars.clone()).unwrap();
            let after = exported(&first, &vars);
            let second = read(&after);
            let values = |info: &ClusterInfo| {
                let mut json = serde_json::to_value(info).unwrap();
                let object = json.as_object_mut().unwrap();
                object.remove("provenance");
                object.remove("findings");
                json
            };
            prop_assert_eq!(values(&first), values(&second));
            let twice: BTreeMap<_, _> = exported(&second, &after).into_iter().collect();
            let after: BTreeMap<_, _> = after.into_iter().collect();
            prop_assert_eq!(after, twice);
        }
    }

    #[test]
    fn a_launch_style_is_what_the_sizes_say(job in job()) {
        for vars in job.all(&[]) {
            let info = read(&vars);
            let expected = match (info.world_size(), info.local_world_size()) {
                (1, _) => LaunchStyle::Alone,
                (size, Some(local)) if size == local => LaunchStyle::SingleNode,
                (_, Some(1)) => LaunchStyle::PerNode,
                _ => LaunchStyle::PerProcess,
            };
            prop_assert_eq!(info.launch_style(), expected);
        }
    }
}
