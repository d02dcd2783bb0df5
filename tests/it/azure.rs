//! The published Azure helper's table, value for value, and the differences of mpienv.

use mpienv::ClusterInfo;

/// What `set_environment_variables_for_nccl_backend()` of Azure's guide sets for the same
/// variables.
fn helper(single_node: bool, batch: &str, batchai: &str, port: Option<&str>) -> (String, String) {
    if single_node {
        return (batchai.to_owned(), "54965".to_owned());
    }
    (batch.split(':').next().unwrap().to_owned(), port.unwrap_or("6105").to_owned())
}

fn read(local_size: &str, more: &[(&str, &str)]) -> ClusterInfo {
    let vars = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", local_size),
    ];
    ClusterInfo::from_vars(vars.iter().chain(more).copied()).unwrap()
}

#[test]
fn azures_helper_and_this_crate_give_the_same_values() {
    let (batch, batchai) = ("10.0.0.4:6000", "10.0.0.4");
    for single_node in [false, true] {
        for port in [None, Some("23456")] {
            let mut vars = vec![
                ("AZ_BATCH_MASTER_NODE", batch),
                ("AZ_BATCHAI_MPI_MASTER_NODE", batchai),
                ("NCCL_SOCKET_IFNAME", "eth0"),
            ];
            vars.extend(port.map(|port| ("MASTER_PORT", port)));
            let info = read(if single_node { "4" } else { "2" }, &vars);
            let exports = info.exports().unwrap();
            let (addr, mut helper_port) = helper(single_node, batch, batchai, port);
            if single_node && let Some(port) = port {
                // The only deviation of mpienv: the user's port is also kept on one node.
                helper_port = port.to_owned();
            }
            let get = |name| exports.get(name).unwrap();
            assert_eq!(get("RANK"), "1");
            assert_eq!(get("WORLD_SIZE"), "4");
            assert_eq!(get("MASTER_ADDR"), addr, "one node: {single_node}, port {port:?}");
            assert_eq!(get("MASTER_PORT"), helper_port, "one node: {single_node}, port {port:?}");
            assert_eq!(get("NCCL_SOCKET_IFNAME"), "^docker0,lo");
            assert!(info.provenance().nccl_socket_ifname.contains("\"eth0\""));
        }
    }
}

#[test]
fn what_crashed_the_helper_with_a_key_error_works() {
    // One node, without AZ_BATCHAI_MPI_MASTER_NODE and without NCCL_SOCKET_IFNAME.
    for vars in [
        vec![],
        vec![("AZ_BATCH_MASTER_NODE", "10.0.0.4:6000")],
        vec![("AZ_BATCH_HOST_LIST", "10.0.0.4")],
    ] {
        let exports = read("4", &vars).exports().unwrap();
        assert_eq!(exports.get("MASTER_ADDR"), Some("127.0.0.1"));
        assert_eq!(exports.get("MASTER_PORT"), Some("54965"));
        assert_eq!(exports.get("NCCL_SOCKET_IFNAME"), Some("^docker0,lo"));
    }
}

#[test]
fn several_nodes_take_the_first_variable_that_names_a_host() {
    for (vars, expected) in [
        (vec![("AZ_BATCH_MASTER_NODE", "[fe::1]:6000")], "fe::1"),
        (vec![("AZ_BATCHAI_MPI_MASTER_NODE", "10.0.0.5")], "10.0.0.5"),
        (
            vec![
                ("AZ_BATCHAI_MPI_MASTER_NODE", "localhost"),
                ("AZ_BATCH_HOST_LIST", "10.0.0.6,10.0.0.7"),
            ],
            "10.0.0.6",
        ),
        (vec![("AZ_BATCH_NODE_LIST", "10.0.0.8;10.0.0.9")], "10.0.0.8"),
        (vec![("AZ_BATCHAI_MPI_MASTER_NODE", "localhost"), ("MASTER_ADDR", "mine")], "mine"),
    ] {
        assert_eq!(read("2", &vars).master_addr().unwrap().to_string(), expected, "{vars:?}");
    }
}

#[test]
fn a_master_that_azure_replaces_is_a_finding() {
    let azure = ("AZ_BATCH_MASTER_NODE", "10.0.0.4:6000");
    let info = read("2", &[azure, ("MASTER_ADDR", "10.0.0.9")]);
    assert_eq!(info.master_addr().unwrap().to_string(), "10.0.0.4");
    assert_eq!(info.findings()[0].code, "master-addr-replaced");
    assert_eq!(
        info.findings()[0].what,
        "MASTER_ADDR is 10.0.0.9, but AZ_BATCH_MASTER_NODE says 10.0.0.4"
    );
    assert_eq!(read("2", &[azure, ("MASTER_ADDR", "10.0.0.4")]).findings(), []);
    let info = read("2", &[azure, ("MASTER_ADDR", "10.0.0.9"), ("MPIENV_MASTER_ADDR", "10.0.0.9")]);
    assert_eq!(info.master_addr().unwrap().to_string(), "10.0.0.9");
}

#[test]
fn two_azure_masters_on_several_nodes_are_a_finding() {
    let info = read(
        "2",
        &[("AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"), ("AZ_BATCHAI_MPI_MASTER_NODE", "10.0.0.5")],
    );
    assert_eq!(info.master_addr().unwrap().to_string(), "10.0.0.4");
    assert_eq!(info.findings()[0].code, "azure-masters-differ");
}

#[test]
fn an_ipv6_address_that_may_have_taken_the_port_is_a_finding() {
    let found = |variable: &str, text: &str| {
        let info = read("2", &[(variable, text)]);
        let found = info.findings().iter().find(|finding| finding.code == "unbracketed-ipv6");
        found.map(|finding| (finding.what.clone(), finding.remedy.clone()))
    };
    let (azure, master) = ("AZ_BATCH_MASTER_NODE", "MASTER_ADDR");
    assert_eq!(
        found(azure, "fd00::1:6105"),
        Some((
            "AZ_BATCH_MASTER_NODE is fd00::1:6105, which is read as the address fd00::1:6105".to_owned(),
            "for fd00::1 set AZ_BATCH_MASTER_NODE to [fd00::1]:6105, for fd00::1:6105 to [fd00::1:6105]".to_owned()
        ))
    );
    assert_eq!(
        found(master, "fd00::1:6105").unwrap().1,
        "if you mean [fd00::1]:6105, set MASTER_ADDR to fd00::1 and MASTER_PORT to 6105; \
         for fd00::1:6105 itself write all eight groups"
    );
    assert!(found("AZ_BATCH_NODE_LIST", "fd00::1:6000;fd00::2:6000").is_some());
    for text in ["[fd00::1]:6105", "[fd00::1:6105]", "fd00::1", "10.0.0.4:6105"] {
        assert_eq!(found(azure, text), None, "{text}");
    }
    for text in ["fd00::1", "fd00:0:0:0:0:0:1:6105", "node-0"] {
        assert_eq!(found(master, text), None, "{text}");
    }
}

#[test]
fn one_process_a_node_has_its_rank_for_node_rank() {
    let vars = [
        ("OMPI_COMM_WORLD_RANK", "2"),
        ("OMPI_COMM_WORLD_SIZE", "3"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
        ("AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"),
    ];
    let info = ClusterInfo::from_vars(vars).unwrap();
    assert_eq!((info.node_rank(), info.node_count()), (Some(2), Some(3)));
    let exports = info.workers(2).unwrap()[1].exports().unwrap();
    let get = |name| exports.get(name).unwrap();
    assert_eq!(
        (get("RANK"), get("WORLD_SIZE"), get("LOCAL_RANK"), get("NODE_RANK")),
        ("5", "6", "1", "2")
    );
    assert_eq!((get("MASTER_ADDR"), get("MASTER_PORT")), ("10.0.0.4", "6105"));
}
