//! Properties of every environment.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use mpienv::simulate::{Job, Vars};
use mpienv::testing::{any_job, any_shape};
use mpienv::{ClusterInfo, LaunchStyle, Launcher, Rank};
use mpienv_core::seam::OF_AZURE;
use proptest::prelude::*;

/// Names that the crate reads, and some that it does not read.
fn name() -> impl Strategy<Value = String> {
    let of_launchers = Launcher::ALL.iter().flat_map(|launcher| launcher.variables());
    let others = [
        "MASTER_ADDR",
        "MASTER_PORT",
        "NCCL_SOCKET_IFNAME",
        "TORCHELASTIC_USE_AGENT_STORE",
        "MPIENV_CONTEXT",
        "MPIENV_LAUNCHER",
        "MPIENV_MASTER_ADDR",
        "MPIENV_MASTER_PORT",
        "MPIENV_NCCL_IFNAME",
    ];
    let read = of_launchers.chain(OF_AZURE).map(|variable| variable.name).chain(others);
    prop_oneof![
        8 => prop::sample::select(read.collect::<Vec<_>>()).prop_map(str::to_owned),
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
            "n[1-4],m",
            "n[1",
            "2(x3),1",
            "0,1,2",
            "[\"a\",\"b\"]",
            "l 1 a 2 b 2",
            "auto",
            "slurm",
            "hydra",
            "arbitrary",
            "1 user addr=a port=1 RANK:00000001 token=x",
            "1 open-mpi PMI_RANK:zz",
        ])
        .prop_map(OsString::from),
        any::<String>().prop_map(OsString::from),
        prop::collection::vec(any::<u8>(), 0..12).prop_map(OsString::from_vec),
    ]
}

/// Every rank's variables, with more added to each; if a name occurs twice, the last value counts.
fn with(job: &Job, more: &[(&str, &str)]) -> Vec<Vars> {
    let more: Vars =
        more.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    job.environments().map(|vars| [vars, more.clone()].concat()).collect()
}

/// All values, without their sources.
fn values(info: &ClusterInfo) -> serde_json::Value {
    let mut json = serde_json::to_value(info).unwrap();
    let object = json.as_object_mut().unwrap();
    object.remove("provenance");
    object.remove("findings");
    json
}

fn read(vars: &Vars) -> ClusterInfo {
    ClusterInfo::from_vars(vars.clone()).unwrap()
}

/// The values of an environment after its own exports have been applied to it.
fn exported(info: &ClusterInfo, vars: &Vars) -> Vars {
    let exports = info.exports().unwrap();
    let gone: BTreeSet<_> = exports.removals().map(str::to_owned).collect();
    let mut vars: Vars =
        vars.iter().filter(|(name, _)| !gone.contains(name.as_str())).cloned().collect();
    vars.extend(
        exports.iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))),
    );
    vars
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_environment_makes_reading_panic(vars in prop::collection::vec((name(), value()), 0..12)) {
        match ClusterInfo::from_vars(vars.clone()) {
            Ok(info) => {
                prop_assert_eq!(info.world_size(), info.rank().size());
                if let (Some(rank), Some(size)) = (info.local_rank(), info.local_world_size()) {
                    prop_assert!(rank < size && size <= info.world_size());
                }
                // Either exports, or an error with a remedy.
                if let Err(error) = info.exports() {
                    prop_assert!(info.findings().iter().any(|finding| finding.code == "master-unknown"));
                    prop_assert!(!error.remedy().is_empty());
                }
                serde_json::to_string(&info).unwrap();
                let _ = info.workers(3);
            }
            Err(error) => {
                // One paragraph that ends with a remedy.
                let text = error.to_string();
                prop_assert!(!text.contains('\n'), "{text}");
                prop_assert!(text.ends_with(error.remedy()) && !error.remedy().is_empty(), "{text}");
            }
        }
    }

    #[test]
    fn all_ranks_of_a_job_agree_and_are_a_permutation(job in any_job(), master in prop::option::of("[a-z]{1,8}")) {
        let more: Vec<_> = master.iter().map(|host| ("MASTER_ADDR", host.as_str())).collect();
        let infos: Vec<_> = with(&job, &more).iter().map(read).collect();
        prop_assert_eq!(infos.len(), job.world_size() as usize);
        for (rank, info) in (0..).zip(&infos) {
            let place = job.place(rank).unwrap();
            prop_assert_eq!(info.launcher(), job.launcher());
            prop_assert_eq!(info.rank().index(), rank);
            prop_assert_eq!(info.world_size(), job.world_size());
            // AWS and mistral.rs give the main node's address only to the other nodes.
            if ![Launcher::AwsBatch, Launcher::MistralRs].contains(&job.launcher()) {
                prop_assert_eq!(info.master_addr().ok(), infos[0].master_addr().ok());
            }
            prop_assert_eq!(info.master_port(), infos[0].master_port());
            prop_assert_eq!(info.hosts(), infos[0].hosts());
            prop_assert!(info.hosts().is_none_or(|hosts| hosts.len() == job.counts().len()));
            if let Some(local_rank) = info.local_rank() {
                prop_assert_eq!(local_rank, place.local_rank);
            }
            if let Some(local_size) = info.local_world_size() {
                prop_assert_eq!(local_size, job.counts()[place.node as usize]);
            }
            // If a node number is reported, it is correct.
            if let Some(node) = info.node_rank() {
                prop_assert_eq!(node, place.node);
            }
            if let Some(nodes) = info.node_count() {
                prop_assert_eq!(nodes as usize, job.counts().len());
            }
            let codes: Vec<_> = info.findings().iter().map(|finding| finding.code).collect();
            let is_expected = |code: &&str| match *code {
                "local-rank-order" | "master-unknown" => true,
                "place-unknown" => master.is_some() && info.launcher() == Launcher::Alone,
                // A script does not number ranks against the order of their nodes.
                "launchers-disagree" => {
                    info.launcher() == Launcher::User && rank < place.node + place.local_rank
                }
                code => code == "master-not-rank-0" && master.is_some(),
            };
            prop_assert!(codes.iter().all(is_expected), "{codes:?}");
        }
    }

    #[test]
    fn workers_of_all_nodes_are_a_permutation(nodes in 1u32..6, per_node in 1u32..6) {
        let job = Job::open_mpi().nodes(nodes).build().unwrap();
        let outer = with(&job, &[("MASTER_ADDR", "a")]);
        let workers: Vec<_> = outer.iter().flat_map(|vars| read(vars).workers(per_node).unwrap()).collect();
        for (rank, worker) in (0..).zip(&workers) {
            prop_assert_eq!(worker.rank(), Rank::new(rank, nodes * per_node).unwrap());
            prop_assert_eq!(worker.local_rank(), Some(rank % per_node));
            prop_assert_eq!(worker.local_world_size(), Some(per_node));
            prop_assert_eq!(worker.node_rank(), Some(rank / per_node));
            prop_assert_eq!(worker.node_count(), Some(nodes));
            // Variables that a worker inherits from mpirun are ignored.
            let again = read(&exported(worker, &outer[(rank / per_node) as usize]));
            prop_assert_eq!(again.launcher(), Launcher::User);
            prop_assert_eq!(again.rank(), worker.rank());
            prop_assert_eq!(again.world_size(), worker.world_size());
            prop_assert_eq!(again.findings(), []);
        }
    }

    #[test]
    fn exporting_and_reading_again_gives_the_same(
        job in any_job(), azure in any::<bool>(), store in any::<bool>(), ifname in prop::option::of("[a-z^,=0-9]{1,9}"),
        port in prop::option::of(1u16..), host in prop::option::of("[a-z]{1,8}"),
    ) {
        let port = port.map(|port| port.to_string());
        let mut more = vec![("MASTER_ADDR", "10.0.0.9")];
        if azure { more.push(("AZ_BATCH_MASTER_NODE", "10.0.0.4:6000")); }
        if store { more.push(("TORCHELASTIC_USE_AGENT_STORE", "True")); }
        if let Some(ifname) = &ifname { more.push(("NCCL_SOCKET_IFNAME", ifname)); }
        if let Some(port) = &port { more.push(("MASTER_PORT", port)); }
        for vars in with(&job, &more) {
            let mut builder = ClusterInfo::builder();
            if let Some(host) = &host { builder = builder.master_addr(host.parse().unwrap()); }
            let first = builder.vars(vars.clone()).read().unwrap();
            let after = exported(&first, &vars);
            let second = read(&after);
            // Exported values take precedence over variables of a cloud platform; with every other
            // launcher, the launcher stays the same.
            if second.launcher() == first.launcher() {
                prop_assert_eq!(values(&first), values(&second));
            } else {
                prop_assert_eq!(second.launcher(), Launcher::User);
            }
            let after: BTreeMap<_, _> = after.into_iter().collect();
            let once: Vars = after.clone().into_iter().collect();
            let twice: BTreeMap<_, _> = exported(&second, &once).into_iter().collect();
            prop_assert_eq!(after, twice);
        }
    }

    #[test]
    fn a_launch_style_is_what_the_sizes_say(job in any_job()) {
        for vars in job.environments() {
            let info = read(&vars);
            let is_per_node = match (info.node_count(), info.node_rank()) {
                (Some(nodes), _) => nodes == info.world_size(),
                // With one rank on each node, the numbers are the same.
                (None, node) => node.is_none_or(|node| node == info.rank().index()),
            };
            let expected = match (info.world_size(), info.local_world_size()) {
                (1, _) => LaunchStyle::Alone,
                (_, None) => LaunchStyle::Unknown,
                (size, Some(local)) if size == local => LaunchStyle::SingleNode,
                (_, Some(1)) if is_per_node => LaunchStyle::PerNode,
                _ => LaunchStyle::PerProcess,
            };
            prop_assert_eq!(info.launch_style(), expected);
        }
    }

    #[test]
    fn a_slurm_job_of_any_shape_is_read_completely(job in any_shape(Job::slurm())) {
        for (rank, vars) in (0..).zip(job.environments()) {
            let (info, place) = (read(&vars), job.place(rank).unwrap());
            prop_assert_eq!(info.local_rank(), Some(place.local_rank));
            prop_assert_eq!(info.local_world_size(), Some(job.counts()[place.node as usize]));
            prop_assert_eq!(info.node_rank(), Some(place.node));
            prop_assert_eq!(info.node_count(), Some(job.counts().len() as u32));
        }
    }
}
