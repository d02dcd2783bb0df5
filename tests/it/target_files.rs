//! The files that the programs of some sets read: MLX's host file, and the ring of mistral.rs.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::address::own_address;
use crate::support::port::free_port;
use crate::support::timeout::PATIENT;
use crate::support::tool::{clean, is_there};

/// One of four ranks, two of which are on each of two nodes, placed round-robin. Both nodes are
/// this host.
fn rank(index: u32, port: u16, address: &str, words: &[&str]) -> Command {
    let mut command = clean("mpienv");
    command.args(words).env("RANK", index.to_string()).env("WORLD_SIZE", "4");
    command.env("LOCAL_RANK", (index / 2).to_string()).env("LOCAL_WORLD_SIZE", "2");
    command.env("MASTER_ADDR", address).env("MASTER_PORT", port.to_string());
    command.env("MPIENV_SIMULATED", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// One of two ranks on this host.
fn local(words: &[&str]) -> Command {
    let mut command = clean("mpienv");
    command.args(words).env("RANK", "0").env("WORLD_SIZE", "2");
    command.env("LOCAL_RANK", "0").env("LOCAL_WORLD_SIZE", "2").env("MASTER_PORT", "7000");
    command
}

fn ended(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn stdout_of(command: &mut Command) -> String {
    let (code, stdout, stderr) =
        ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    assert_eq!(code, Some(0), "{stderr}");
    stdout
}

#[test]
fn mlx_and_its_children_read_a_host_file_that_goes_with_the_program() {
    for (verb, prefix) in [(&["exec"][..], ""), (&["launch", "--nproc-per-node", "2"], "[0] ")] {
        // `sh` does not pass the file's descriptor on to a subshell that closes it.
        let script = "test $RANK = 0 || exit 0; echo $MLX_HOSTFILE; cat $MLX_HOSTFILE; sh -c 'cat $MLX_HOSTFILE' 100<&-";
        let words = [verb, &["--for", "mlx", "--", "sh", "-c", script]].concat();
        let mut command = local(&words);
        if verb[0] == "launch" {
            ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"].iter().for_each(|name| {
                command.env_remove(name);
            });
        }
        let stdout = stdout_of(&mut command);
        let mut lines = stdout.lines().map(|line| line.strip_prefix(prefix).unwrap());
        let path = lines.next().unwrap();
        let ranks = r#"[["127.0.0.1:7000"], ["127.0.0.1:7001"]]"#;
        assert_eq!(lines.collect::<Vec<_>>(), [ranks, ranks], "{verb:?}");
        assert!(!Path::new(path).exists(), "{path} is left");
    }
}

#[test]
fn ranks_that_meet_write_the_host_file_of_hosts_that_no_launcher_gives() {
    let Some(address) = own_address() else { return };
    let port = free_port();
    let run = |words: &[&str]| {
        let ranks = [0, 1, 2, 3].map(|index| {
            let words =
                [&["exec", "--for", "mlx"], words, &["--", "sh", "-c", "cat $MLX_HOSTFILE"]];
            rank(index, port, &address, &words.concat()).spawn().unwrap()
        });
        ranks.map(ended)
    };
    let [first, second] = [port, port + 1].map(|port| format!("[\"{address}:{port}\"]"));
    let expected = format!("[{first}, {first}, {second}, {second}]\n");
    for (code, stdout, stderr) in run(&["--meet", PATIENT]) {
        assert_eq!((code, stdout), (Some(0), expected.clone()), "{stderr}");
    }
    for (code, stdout, stderr) in run(&[]) {
        assert_eq!((code, stdout.as_str()), (Some(1), ""));
        let named = "MLX_HOSTFILE: MLX needs the hosts of all 4 ranks";
        assert!(stderr.contains(named) && stderr.contains("--meet"), "{stderr}");
    }
}

#[test]
fn a_backend_that_the_user_has_set_up_needs_no_host_file() {
    for (name, value) in
        [("MLX_HOSTFILE", "own.json"), ("MLX_IBV_DEVICES", "rdma.json"), ("NCCL_HOST_IP", "node0")]
    {
        let words = ["exec", "--for", "mlx", "--", "sh", "-c", "echo $MLX_RANK $MLX_HOSTFILE"];
        let mut command = rank(3, 7000, "node0", &words);
        let own = if name == "MLX_HOSTFILE" { " own.json" } else { "" };
        assert_eq!(stdout_of(command.env(name, value)), format!("3{own}\n"), "{name}");
    }
    // One rank needs no ring.
    let words = ["exec", "--for", "mlx", "--", "sh", "-c", "echo $MLX_RANK $MLX_HOSTFILE"];
    assert_eq!(stdout_of(clean("mpienv").args(words)), "0\n");
}

#[test]
fn export_writes_no_file_and_says_who_does() {
    let output = local(&["export", "--for", "mlx"]).output().unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b"false;\n"[..]));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let text = "MLX_HOSTFILE: MLX needs a file with the addresses of the ranks; start the program with `mpienv exec --for \
                mlx` or `mpienv launch --for mlx`, which write it, or set MLX_HOSTFILE to a file of your own";
    assert!(stderr.contains(text), "{stderr}");
}

#[test]
fn mlx_refuses_ipv6_because_it_reads_the_address_up_to_the_first_colon() {
    let mut command = local(&["exec", "--for", "mlx", "--", "true"]);
    let output = command.env("MASTER_ADDR", "fe80::1").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let text =
        "MLX_HOSTFILE: MLX needs an IPv4 address of each rank, and a rank is at [fe80::1]:7000";
    assert!(output.status.code() == Some(1) && stderr.contains(text), "{stderr}");
}

/// A stand-in for the ring of mistral.rs, which needs a GPU's or a model's worth of building: it
/// connects as `get_ring_streams` in mistralrs-quant/src/distributed/mod.rs does, and rank 0
/// listens on the master's port, too. Each rank passes on the sum of what it got and its own rank.
const RING: &str = r#"
import json, os, socket, time
config = json.load(open(os.environ["RING_CONFIG"]))
if config["rank"] == 0:
    replicator = socket.create_server(("0.0.0.0", config["master_port"]))
left_listener = socket.create_server(("0.0.0.0", config["port"]))
while True:
    try:
        right = socket.create_connection((config["right_ip"], config["right_port"]))
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
left, _ = left_listener.accept()
value = config["rank"]
for _ in range(config["world_size"] - 1):
    right.sendall(value.to_bytes(4, "big"))
    value = int.from_bytes(left.recv(4, socket.MSG_WAITALL), "big") + config["rank"]
print(config["rank"], config["world_size"], value)
"#;

#[test]
fn the_files_of_mistralrs_make_one_ring_of_all_ranks() {
    if !is_there("python3") {
        return;
    }
    let mut command = clean("mpienv");
    command.args(["launch", "--nproc-per-node", "4", "--for", "mistralrs", "--", "python3", "-c"]);
    let stdout = stdout_of(command.arg(RING).env("MISTRALRS_NO_NCCL", "1"));
    let mut lines: Vec<_> = stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 0 4 6", "[1] 1 4 6", "[2] 2 4 6", "[3] 3 4 6"]);
    let words = ["launch", "--nproc-per-node", "3", "--for", "mistralrs", "--", "true"];
    let output = clean("mpienv").args(words).env("MISTRALRS_NO_NCCL", "1").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("mistral.rs needs a power of two as the number of ranks of its ring"),
        "{stderr}"
    );
}

#[test]
fn a_worker_has_its_own_place_for_torchcomms_not_that_of_the_process_that_started_it() {
    // A stand-in that looks for the rank where `query_ranksize` in comms/torchcomms/utils/Utils.cpp
    // does.
    let script = "echo ${TORCHCOMM_RANK:-${OMPI_COMM_WORLD_RANK:-$RANK}} of \
                  ${TORCHCOMM_SIZE:-${OMPI_COMM_WORLD_SIZE:-$WORLD_SIZE}}";
    for (set, expected) in
        [("torch", ["[0] 0 of 1", "[1] 0 of 1"]), ("torchcomms", ["[0] 0 of 2", "[1] 1 of 2"])]
    {
        let mut command = clean("mpienv");
        command.args(["launch", "--nproc-per-node", "2", "--for", set, "--", "sh", "-c", script]);
        for (name, value) in
            [("RANK", "0"), ("SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "1")]
        {
            command.env(format!("OMPI_COMM_WORLD_{name}"), value);
        }
        let stdout = stdout_of(&mut command);
        let mut lines: Vec<_> = stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, expected, "{set}");
    }
}
