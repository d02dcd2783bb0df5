//! What does not depend on this host's own interfaces.

use super::*;

/// Interfaces in a text such as `lo 127.0.0.1, eth0 10.0.0.4`.
fn these(text: &str) -> Vec<(String, IpAddr)> {
    let pair = |text: &str| {
        let (name, address) = text.split_once(' ').unwrap();
        (name.to_owned(), address.parse().unwrap())
    };
    text.split(", ").map(pair).collect()
}

#[test]
fn gloo_takes_the_first_address_of_the_hosts_name_that_is_its_own() {
    let own = these("lo 127.0.0.1, eth0 10.0.0.4, eth1 10.1.0.4");
    let takes = |text: &str| {
        let addresses = text.split_whitespace().map(|text| text.parse().unwrap());
        gloo_takes(addresses, &own).map(|address| address.to_string())
    };
    for (of_name, taken) in [
        ("", None),
        ("10.9.9.9", None),
        ("127.0.1.1", Some("127.0.1.1")),
        ("10.9.9.9 10.1.0.4", Some("10.1.0.4")),
        ("127.0.1.1 10.0.0.4", Some("127.0.1.1")),
    ] {
        assert_eq!(takes(of_name).as_deref(), taken, "{of_name}");
    }
}

#[test]
fn the_only_interface_is_neither_loopback_nor_a_bridge_nor_link_local() {
    let name = |text: &str| only(&these(text)).map(|own| format!("{} {}", own.name, own.address));
    let host = "lo 127.0.0.1, docker0 172.17.0.1, usb0 169.254.3.1, eth0 fd77::4, eth0 10.0.0.4";
    assert_eq!(name(host).as_deref(), Some("eth0 10.0.0.4"));
    assert_eq!(name(&format!("{host}, eth1 10.1.0.4")), None);
    assert_eq!(name("lo 127.0.0.1, docker0 172.17.0.1"), None);
}

#[test]
fn nccl_is_left_nothing_where_a_host_has_only_loopback_and_dockers_bridge() {
    assert!(nccl_has_none(&these("lo 127.0.0.1")));
    assert!(nccl_has_none(&these("lo 127.0.0.1, docker0 172.17.0.1")));
    assert!(!nccl_has_none(&these("lo 127.0.0.1, eth0 10.0.0.4")));
}

#[test]
fn ucx_gets_the_rdma_device_of_an_interface_and_the_interface_for_tcp() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    // InfiniBand: the second port of one device. RoCE: a VLAN of another device.
    write("net/ib1/dev_port", "1\n");
    write("net/ib1/device/infiniband/mlx5_0/node_type", "1: CA\n");
    write("infiniband/mlx5_0/ports/2/gid_attrs/types/0", "IB/RoCE v1\n");
    write("infiniband/mlx5_2/ports/1/gid_attrs/ndevs/0", "ens2\n");
    write("infiniband/mlx5_2/ports/1/gid_attrs/ndevs/3", "ens2.7\n");
    write("net/eth0/dev_port", "0\n");
    for (name, devices) in [
        ("ib1", "mlx5_0:2,ib1"),
        ("ens2", "mlx5_2:1,ens2"),
        ("ens2.7", "mlx5_2:1,ens2.7"),
        ("eth0", "eth0"),
        ("eth0:1", "eth0"),
    ] {
        assert_eq!(ucx_devices(root, name), devices);
    }
}
