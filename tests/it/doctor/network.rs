//! Checks of the master's address and of the interfaces that libraries choose.

use mpienv::command::doctor::{Machine, examine, nccl_interfaces};
use mpienv::{ClusterInfo, Severity};

use super::{RANK_0, codes, findings, host};

#[test]
fn a_loopback_master_is_as_bad_as_what_is_known_of_the_nodes() {
    let on = |addresses: &[&str]| Machine {
        master: Ok(addresses.iter().map(|address| address.parse().unwrap()).collect()),
        ..host()
    };
    let severity = |more: &[(&str, &str)], machine: &Machine| {
        let found =
            findings(more, machine).into_iter().find(|finding| finding.code == "master-loopback");
        found.map(|finding| finding.severity)
    };
    let local = on(&["127.0.0.1", "::1"]);
    for rank in ["0", "2"] {
        let rank = ("OMPI_COMM_WORLD_RANK", rank);
        assert_eq!(severity(&[rank, ("MASTER_ADDR", "localhost")], &local), Some(Severity::Error));
        assert_eq!(
            severity(&[rank, ("MASTER_ADDR", "0.0.0.0")], &on(&["0.0.0.0"])),
            Some(Severity::Error)
        );
        // The other hosts may have a better entry for the name.
        assert_eq!(
            severity(&[rank, ("MASTER_ADDR", "node0")], &on(&["127.0.1.1"])),
            Some(Severity::Warning)
        );
        assert_eq!(
            severity(&[rank, ("MASTER_ADDR", "node0")], &on(&["127.0.1.1", "10.0.0.4"])),
            None
        );
    }
    let flux = |nodes| {
        let vars = [
            ("FLUX_TASK_RANK", "0"),
            ("FLUX_JOB_SIZE", "4"),
            ("FLUX_TASK_LOCAL_ID", "0"),
            ("FLUX_JOB_NNODES", nodes),
        ];
        let vars = || vars.into_iter().chain([("MASTER_ADDR", "127.0.0.1")]);
        let found = examine(&ClusterInfo::from_vars(vars()).unwrap(), &local);
        found
            .into_iter()
            .find(|finding| finding.code == "master-loopback")
            .map(|finding| finding.severity)
    };
    assert_eq!((flux("2"), flux("1")), (Some(Severity::Error), None));
    let of_user = |more: &[(&str, &str)]| {
        let vars = || {
            [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]
                .iter()
                .chain(more)
                .copied()
        };
        let info = ClusterInfo::from_vars(vars()).unwrap();
        let found = examine(&info, &local);
        found
            .into_iter()
            .find(|finding| finding.code == "master-loopback")
            .map(|finding| finding.severity)
    };
    assert_eq!(of_user(&[]), Some(Severity::Note));
    assert_eq!(of_user(&[("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")]), Some(Severity::Error));
    assert_eq!(of_user(&[("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")]), None);
    let [finding] = &findings(&[("MASTER_ADDR", "node0")], &on(&["127.0.1.1"]))[..] else {
        panic!("one finding")
    };
    assert_eq!(
        finding.what,
        "MASTER_ADDR node0 resolves to 127.0.1.1 here, and the job is on several nodes"
    );
    assert_eq!(
        finding.remedy,
        "set MASTER_ADDR for all ranks to an address of rank 0's host that the others can reach \
         (this is rank 0, with 10.0.0.4 (eth0)), or correct /etc/hosts"
    );
}

#[test]
fn a_master_of_another_job_is_to_be_unset_first() {
    let remedy = |code: &str, more: &[(&str, &str)], machine: &Machine| {
        let found = findings(more, machine).into_iter().find(|finding| finding.code == code);
        found.map(|finding| finding.remedy).unwrap_or_default()
    };
    let one_node = ("OMPI_COMM_WORLD_LOCAL_SIZE", "4");
    let mpirun = ("OMPI_MCA_orte_hnp_uri", "1.0;tcp://10.0.0.4:39829");
    let at = |addresses: Result<&str, &str>| Machine {
        master: addresses.map(|one| vec![one.parse().unwrap()]).map_err(str::to_owned),
        ..host()
    };
    let unresolved = at(Err("unknown"));
    for (code, vars, machine, start) in [
        (
            "master-unresolved",
            [("MASTER_ADDR", "oldnode"), one_node],
            &unresolved,
            "unset MASTER_ADDR=oldnode, if it is left from another job: this job then uses 127.0.0.1; or use rank 0's IP",
        ),
        (
            "master-unresolved",
            [("MPIENV_MASTER_ADDR", "oldnode"), mpirun],
            &unresolved,
            "unset MPIENV_MASTER_ADDR=oldnode, if it is left from another job: this job then uses 10.0.0.4; or use",
        ),
        (
            "master-not-here",
            [("MASTER_ADDR", "10.0.0.9"), one_node],
            &at(Ok("10.0.0.9")),
            "unset MASTER_ADDR=10.0.0.9, if it is left from another job: this job then uses 127.0.0.1; or set MASTER_ADDR",
        ),
        (
            "master-loopback",
            [("MASTER_ADDR", "127.0.0.1"), mpirun],
            &at(Ok("127.0.0.1")),
            "unset MASTER_ADDR=127.0.0.1, if it is left from another job: this job then uses 10.0.0.4; or set MASTER_ADDR",
        ),
    ] {
        let remedy = remedy(code, &vars, machine);
        assert!(remedy.starts_with(start), "{code}: {remedy}");
    }
    // Nothing else names a master.
    let remedy = remedy("master-unresolved", &[("MASTER_ADDR", "oldnode")], &unresolved);
    assert!(remedy.starts_with("use rank 0's IP address instead"), "{remedy}");
}

#[test]
fn anothers_link_local_address_is_not_here() {
    let machine = Machine { master: Ok(vec!["fe80::9".parse().unwrap()]), ..host() };
    assert_eq!(
        codes(&[("MASTER_ADDR", "fe80::9%eth0")], &machine),
        ["master-not-here", "master-link-local"]
    );
}

#[test]
fn a_bridge_that_nccl_selects_is_left_for_what_the_host_has_else() {
    let found = |value: &str, interfaces: &[(&str, &str)], local_size: &str| {
        let interfaces = interfaces
            .iter()
            .map(|(name, text)| ((*name).to_owned(), text.parse().unwrap()))
            .collect();
        let machine = Machine { interfaces, master: Ok(Vec::new()), ..host() };
        let found = findings(
            &[("NCCL_SOCKET_IFNAME", value), ("OMPI_COMM_WORLD_LOCAL_SIZE", local_size)],
            &machine,
        );
        found
            .into_iter()
            .find(|f| f.code == "nccl-bridge")
            .map(|finding| (finding.what, finding.remedy))
    };
    let (lo, bridge, eth) = (("lo", "127.0.0.1"), ("docker1", "172.18.0.1"), ("eth0", "10.0.0.4"));
    let default = "^docker0,lo";
    let only = |value| format!("NCCL_SOCKET_IFNAME={value} allows only docker1");
    let none = "this host has no other interface; give it one on the cluster's network, and set MPIENV_NCCL_IFNAME to its name";
    assert_eq!(found(default, &[lo, bridge], "2"), Some((only(default), none.to_owned())));
    // On one node, no rank takes another host's bridge for its own.
    assert_eq!(found(default, &[lo, bridge], "4"), None);
    assert_eq!(
        found("docker", &[lo, bridge, eth], "2"),
        Some((only("docker"), "set MPIENV_NCCL_IFNAME=eth0".to_owned()))
    );
    assert_eq!(
        found(default, &[lo, bridge, eth], "2"),
        Some((
            format!("NCCL_SOCKET_IFNAME={default} allows docker1 in addition to eth0"),
            "set MPIENV_NCCL_IFNAME=eth0".to_owned()
        ))
    );
    assert_eq!(found(default, &[lo, eth], "2"), None);
    for bridge in ["lxdbr0", "lxcbr0", "nerdctl0", "incusbr0"] {
        let what = format!("NCCL_SOCKET_IFNAME={default} allows {bridge} in addition to eth0");
        let found = found(default, &[lo, (bridge, "172.18.0.1"), eth], "2");
        assert_eq!(found.map(|(what, _)| what), Some(what));
    }
}

#[test]
fn what_nccl_selects_follows_nccls_own_grammar() {
    let selected = |value: &str| {
        let requested = [("MPIENV_NCCL_IFNAME", value)];
        let vars = RANK_0.iter().chain(&requested).copied();
        nccl_interfaces(&ClusterInfo::from_vars(vars).unwrap(), &host())
            .map(|names| names.join(","))
    };
    assert_eq!(selected("^docker0,lo").as_deref(), Some("eth0"));
    for (value, names) in [
        ("=eth", ""),
        ("=eth0", "eth0"),
        ("^=eth", "lo,eth0,docker0"),
        ("^=eth0", "lo,docker0"),
        ("eth,lo", "lo,eth0"),
        ("eth1", ""),
        ("eth0:1", "eth0"),
    ] {
        assert_eq!(selected(value).as_deref(), Some(names), "{value}");
    }
    assert_eq!(selected("unset"), None);
}
