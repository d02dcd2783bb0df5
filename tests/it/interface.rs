//! The network interface of gloo, NCCL and other libraries: what is set, on hosts with two networks
//! whose names resolve well, to a loopback address, or not at all.

use std::collections::BTreeMap;
use std::process::{Command, Output};

use crate::support::hosts::Hosts;
use crate::support::namespace::unshared;
use crate::support::tool::{clean, is_there};
use mpienv::{ClusterInfo, Interface, NcclIfname, Reason, ask};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The first of two nodes' processes, whose masters are on another.
const NODE: [(&str, &str); 4] =
    [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")];

/// Every variable of an interface.
const ALL: [&str; 5] = [
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "UCX_NET_DEVICES",
    "VLLM_HOST_IP",
];

/// The variables of an interface in the output of `env`, without NCCL's default. Workers' lines
/// start with their rank.
fn set(output: &Output) -> BTreeMap<String, String> {
    assert!(output.status.success(), "{}", said(output));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let lines = text.lines().map(|line| line.split_once("] ").map_or(line, |(_, line)| line));
    // The dotenv format quotes some values.
    let pairs = lines.filter_map(|line| line.split_once('='));
    let pairs = pairs.map(|(name, value)| (name, value.trim_matches(['\'', '"'])));
    let pairs = pairs.filter(|(name, value)| ALL.contains(name) && *value != "^docker0,lo");
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn only_gloo(name: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(ALL[0].to_owned(), name.to_owned())])
}

fn all(name: &str, address: &str) -> BTreeMap<String, String> {
    let values = [name, &format!("={name}"), name, name, address].map(str::to_owned);
    ALL.map(str::to_owned).into_iter().zip(values).collect()
}

/// Two hosts with two networks each. The commands run on the second.
struct Job {
    hosts: Hosts,
    /// Holds the names that the hosts know.
    folder: TempDir,
}

impl Job {
    fn up(name: &str) -> Option<Job> {
        let hosts = Hosts::up(name, 2, &[("TWO_HOSTS_NETS", "2")])?;
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Some(Job { hosts, folder })
    }

    /// The names that both hosts know from now on.
    fn names(&self, known: &str) {
        self.hosts.forget_names(self.folder.path(), &format!("127.0.0.1 localhost\n{known}"));
    }

    fn command(&self, master: &str, words: &str) -> Command {
        let mut command = self.hosts.on("nodeB", env!("CARGO_BIN_EXE_mpienv"));
        command.args(words.split_whitespace()).envs(NODE).env("MASTER_ADDR", master);
        command
    }

    fn run(&self, master: &str, words: &str) -> Output {
        self.command(master, words).output().unwrap()
    }
}

#[test]
fn gloo_gets_the_interface_towards_the_master_if_the_hosts_name_has_no_other_address() {
    let Some(job) = Job::up("gloo") else { return };
    let commands = ["exec -- env", "exec --per-node -- env", "launch --nproc-per-node 1 -- env"];
    for names in ["", "127.0.1.1 nodeB\n", "10.99.0.1 nodeB\n"] {
        job.names(names);
        for words in commands {
            assert_eq!(set(&job.run("10.77.0.1", words)), only_gloo("eth0"), "{names}{words}");
            assert_eq!(set(&job.run("10.78.0.1", words)), only_gloo("eth1"), "{names}{words}");
        }
        let kept = job.command("10.78.0.1", "exec -- env").env(ALL[0], "eth0").output().unwrap();
        assert_eq!(set(&kept), only_gloo("eth0"), "{names}");
        let nothing = BTreeMap::new();
        assert_eq!(set(&job.run("10.77.0.1", "exec --interface keep -- env")), nothing);
        assert_eq!(set(&job.run("10.77.0.1", "export --shell dotenv")), nothing);
        let asked = job.run("10.77.0.1", "export --shell dotenv --interface default");
        assert_eq!(set(&asked), only_gloo("eth0"));
        // The ranks of a job that meets on a loopback address are all on one host.
        assert_eq!(set(&job.run("localhost", "exec -- env")), nothing);
        let mut alone = job.command("10.77.0.1", "exec -- env");
        let alone = alone.env("WORLD_SIZE", "1").env("RANK", "0").output().unwrap();
        assert_eq!(set(&alone), nothing);
    }
    job.names("10.77.0.2 nodeB\n");
    for words in commands {
        assert_eq!(set(&job.run("10.78.0.1", words)), BTreeMap::new(), "{words}");
    }
}

#[test]
fn an_interface_that_is_asked_for_reaches_every_library_in_its_own_variable() {
    let Some(job) = Job::up("iface") else { return };
    for (interface, found) in [
        ("auto", all("eth0", "10.77.0.2")),
        ("eth1", all("eth1", "10.78.0.2")),
        ("10.78.0.0/16", all("eth1", "10.78.0.2")),
        ("10.77.0.2", all("eth0", "10.77.0.2")),
    ] {
        for words in [
            "exec --interface INTERFACE -- env",
            "exec --per-node --interface INTERFACE -- env",
            "launch --nproc-per-node 1 --interface INTERFACE -- env",
            "export --shell dotenv --interface INTERFACE",
        ] {
            let words = words.replace("INTERFACE", interface);
            assert_eq!(set(&job.run("10.77.0.1", &words)), found, "{words}");
        }
    }
    let mut launch = job.command("10.78.0.1", "launch --nproc-per-node 3 -- sh -c");
    launch.arg("echo $NCCL_SOCKET_IFNAME $VLLM_HOST_IP").env("MPIENV_INTERFACE", "auto");
    let workers = String::from_utf8(launch.output().unwrap().stdout).unwrap();
    let mut workers: Vec<_> = workers.lines().collect();
    workers.sort_unstable();
    let expected = [3, 4, 5].map(|rank| format!("[{rank}] =eth1 10.78.0.2"));
    assert_eq!(workers, expected);
    for (interface, why) in [
        ("eth9", "no interface has this name; this host has lo (127.0.0.1"),
        ("eth", "no interface has this name; "),
        ("192.168.0.0/24", "no address is in this range; "),
        ("10.0.0.0/8", "several interfaces are in this range; "),
    ] {
        let output = job.run("10.77.0.1", &format!("exec --interface {interface} -- env"));
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with(&format!("mpienv: --interface=\"{interface}\": {why}")), "{said}");
        assert!(said.contains("eth0 (10.77.0.2") && said.contains("eth1 (10.78.0.2"), "{said}");
    }
}

#[test]
fn show_and_doctor_say_what_is_set_and_what_is_kept() {
    let Some(job) = Job::up("shown") else { return };
    job.names("");
    let json = |command: &mut Command| -> Value {
        let output = command.output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)))
    };
    let expected = json!({
        "name": "eth1",
        "address": "10.78.0.2",
        "source": "auto (asked for): the route to 10.78.0.1",
        "variables": {
            "GLOO_SOCKET_IFNAME": "eth1",
            "TP_SOCKET_IFNAME": "eth0",
            "NCCL_SOCKET_IFNAME": "=eth1",
            "UCX_NET_DEVICES": "eth1",
            "VLLM_HOST_IP": "10.78.0.2",
        },
        "kept": ["TP_SOCKET_IFNAME"],
    });
    let auto = |words| {
        let mut command = job.command("10.78.0.1", words);
        command.env("TP_SOCKET_IFNAME", "eth0");
        command
    };
    let shown = json(&mut auto("show --json --interface auto"));
    assert_eq!((&shown["interface"], &shown["nccl_socket_ifname"]), (&expected, &"=eth1".into()));
    let examined = json(&mut auto("doctor --json --interface auto"));
    assert_eq!(examined["interface"], expected);
    assert_eq!(examined["nccl_interfaces"], json!(["eth1"]));
    let text = auto("show --interface auto").output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    let has = |text: &str, words: &[&str]| {
        text.lines().any(|line| line.split_whitespace().take(words.len()).eq(words.iter().copied()))
    };
    assert!(has(&text, &["interface", "eth1", "auto"]), "{text}");
    assert!(has(&text, &["TP_SOCKET_IFNAME", "eth0", "set", "already,", "kept"]), "{text}");
    assert!(has(&text, &["UCX_NET_DEVICES", "eth1", "set"]), "{text}");

    // Without a request, show resolves no name, and doctor says what exec would set.
    let shown = json(&mut job.command("10.77.0.1", "show --json"));
    assert!(shown.get("interface").is_none(), "{shown}");
    let examined = json(&mut job.command("10.77.0.1", "doctor --json"));
    assert_eq!(examined["interface"]["variables"], json!({"GLOO_SOCKET_IFNAME": "eth0"}));
    assert_eq!(examined["interface"]["source"], "default: the route to 10.77.0.1");
    let code = |examined: &Value| -> Vec<String> {
        let findings = examined["findings"].as_array().unwrap();
        findings.iter().map(|finding| finding["code"].as_str().unwrap().to_owned()).collect()
    };
    let examined = json(&mut job.command("10.77.0.1", "doctor --json --interface eth9"));
    assert!(code(&examined).contains(&"no-interface".to_owned()), "{examined}");
    assert_eq!(examined["interface"], Value::Null);

    job.names("127.0.1.1 nodeB\n");
    let loopback = |words: &str| {
        code(&json(&mut job.command("10.77.0.1", words))).contains(&"hostname-loopback".to_owned())
    };
    assert!(loopback("doctor --json"));
    assert!(!loopback("doctor --json --interface auto"));
}

#[test]
fn on_the_masters_host_another_host_or_the_only_interface_shows_the_way() {
    let Some(job) = Job::up("way") else { return };
    job.names("127.0.1.1 nodeA\n");
    let first = |words: &str| {
        let mut command = job.hosts.on("nodeA", env!("CARGO_BIN_EXE_mpienv"));
        command.args(words.split_whitespace());
        command
    };
    // The list has an address of the other host.
    let mut command = first("exec -- env");
    command.env("SKYPILOT_NODE_RANK", "0").env("SKYPILOT_NUM_NODES", "2");
    let listed = command.env("SKYPILOT_NODE_IPS", "nodeA\n10.78.0.2").output().unwrap();
    assert_eq!(set(&listed), only_gloo("eth1"));
    // Nothing shows which of two interfaces others reach.
    let of_two = |words: &str| {
        let mut command = first(words);
        command.envs(NODE).env("RANK", "0").env("MASTER_ADDR", "nodeA").output().unwrap()
    };
    assert_eq!(set(&of_two("exec -- env")), BTreeMap::new());
    let refused = of_two("exec --interface auto -- env");
    assert!(said(&refused).contains("leads to this host itself"), "{}", said(&refused));
    job.hosts.act(&["exec", "nodeA", "--", "ip", "address", "flush", "dev", "eth1"]);
    assert_eq!(set(&of_two("exec -- env")), only_gloo("eth0"));
    assert_eq!(set(&of_two("exec --interface auto -- env")), all("eth0", "10.77.0.1"));
}

#[test]
fn a_name_service_that_does_not_answer_does_not_hold_up_a_job() {
    if !is_there("ip") {
        return;
    }
    // Packets to the name servers vanish, and the resolver alone would wait for 450 s.
    let script = "
        ip link set lo up
        ip link add eth0 type veth peer name far0
        ip address add 10.88.1.7/24 dev eth0
        ip link set eth0 up && ip link set far0 up
        for server in 1 2 3; do
            ip neighbour add 10.88.1.$server lladdr 02:88:00:00:00:01 dev eth0
            echo nameserver 10.88.1.$server >>$0.conf
        done
        echo 'options timeout:30 attempts:5' >>$0.conf
        echo hosts: dns >$0.switch && mount --bind $0.switch /etc/nsswitch.conf
        mount --bind $0.conf /etc/resolv.conf && hostname not-in-any-hosts-file
        exec timeout 300 mpienv exec -- env";
    let folder = tempfile::tempdir().unwrap();
    let script = script.replace("$0", folder.path().join("names").to_str().unwrap());
    let vars = "export RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.88.1.9;";
    let Some(output) = unshared(&["--net", "--uts", "--mount"], &format!("{vars}{script}")) else {
        return;
    };
    assert_eq!(set(&output), only_gloo("eth0"), "{}", said(&output));
}

#[test]
fn an_option_precedes_the_variable_and_a_users_choice_for_nccl_precedes_both() {
    let nccl = |command: &str, variables: &[(&str, &str)]| {
        let mut exec = clean("mpienv");
        exec.args(command.split_whitespace()).args(["--", "env"]);
        let output = exec.envs(variables.iter().copied()).output().unwrap();
        (set(&output).get(ALL[1]).cloned(), set(&output).get(ALL[0]).cloned())
    };
    let some = |nccl: &str, gloo: &str| (Some(nccl.to_owned()), Some(gloo.to_owned()));
    let variable = ("MPIENV_INTERFACE", "no-such-interface");
    assert_eq!(nccl("exec --interface lo", &[variable]), some("=lo", "lo"));
    assert_eq!(nccl("exec --interface lo", &[(ALL[1], "ib0")]), some("ib0", "lo"));
    assert_eq!(nccl("exec --interface lo --nccl-ifname ib1", &[]), some("ib1", "lo"));
    assert_eq!(nccl("exec --interface lo --nccl-ifname keep", &[]).0, None);
    assert_eq!(nccl("exec", &[("MPIENV_INTERFACE", "127.0.0.0/8")]), some("=lo", "lo"));
    // Azure sets NCCL's variable on every node.
    let azure = [("AZ_BATCH_MASTER_NODE", "127.0.0.1:6000"), (ALL[1], "eth0")];
    assert_eq!(nccl("exec --interface lo", &azure), some("=lo", "lo"));
}

#[test]
fn reading_finds_no_interface_and_keeps_the_request() {
    let vars = NODE.into_iter().chain([("MASTER_ADDR", "no-such-host.invalid")]);
    let info = ClusterInfo::builder().interface(Interface::Auto).vars(vars).read().unwrap();
    assert_eq!(info.interface(), None);
    let exports = info.exports().unwrap();
    assert_eq!(exports.get("MPIENV_INTERFACE"), Some("auto"));
    assert_eq!(exports.get("GLOO_SOCKET_IFNAME"), None);

    let alone = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MPIENV_INTERFACE", "no-such-interface")];
    let error = ask::on_interface(&ClusterInfo::from_vars(alone).unwrap()).unwrap_err();
    assert_eq!(error.variable(), Some("MPIENV_INTERFACE"));
    assert!(matches!(error.reason(), Reason::NoInterface(_)), "{error}");

    let lo = ClusterInfo::builder().interface("127.0.0.1".parse().unwrap());
    let lo = lo.nccl_ifname(NcclIfname::Unset).vars(alone).read().unwrap();
    let lo = ask::on_interface(&lo).unwrap();
    assert_eq!(lo.nccl_socket_ifname(), None);
    let workers = lo.workers(2).unwrap();
    let names: Vec<_> = workers
        .iter()
        .map(|worker| worker.exports().unwrap().get("VLLM_HOST_IP").map(str::to_owned))
        .collect();
    assert_eq!(names, [Some("127.0.0.1".to_owned()), Some("127.0.0.1".to_owned())]);
}

#[test]
fn a_text_that_is_no_interface_says_what_is_one() {
    for text in ["^docker0,lo", "=eth0", "eth0,eth1", "10.0.0.0/33", "a b"] {
        let error = ClusterInfo::from_vars([("MPIENV_INTERFACE", text)]).unwrap_err().to_string();
        let expected = "an interface is auto, default, keep, one complete name, or a range";
        assert!(error.contains(expected) && error.contains(&format!("{text:?}")), "{error}");
    }
}
