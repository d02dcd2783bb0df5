//! Real launchers on several hosts: what each rank knows about its place, and whether all ranks
//! meet.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::support::hosts::{
    Hosts, LAYOUTS, Layout, SECOND_NETWORK, address, mpiruns, partly_set, said_in_time,
};
use crate::support::timeout::in_time;
use crate::support::tool::is_there;
use serde_json::Value;
use tempfile::TempDir;

const BLOCK: &[&str] = &["-H", "10.77.0.1:2,10.77.0.2:2"];

/// The output of one rank.
pub(super) struct Said {
    host: String,
    exports: Value,
    pub(super) shown: Value,
}

/// A folder that all hosts see.
pub(super) fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Runs a shell script on every rank with mpirun.
pub(super) fn script(hosts: &Hosts, mpirun: &Path, words: &[&str], script: &str) -> Command {
    let mut command = hosts.mpirun(mpirun, words);
    command.args(["sh", "-c", script]);
    command
}

/// What each of four ranks exports and shows after a first command, and the map of all ranks when
/// they meet.
pub(super) fn report(
    hosts: &Hosts,
    mpirun: &Path,
    words: &[&str],
    first: &str,
) -> (Vec<Said>, Value) {
    let (mpienv, folder) = (env!("CARGO_BIN_EXE_mpienv"), folder());
    let all = format!(
        "cd {} && {first} && rank=$OMPI_COMM_WORLD_RANK && hostname >$rank.host && {mpienv} export --shell json \
         >$rank.exports && {mpienv} show --json --own-addr >$rank.shown && exec {mpienv} check --json --timeout 1200",
        folder.path().display()
    );
    let output = script(hosts, mpirun, words, &all).output().unwrap();
    let said = format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let map = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let read = |rank: usize, what| {
        fs::read_to_string(folder.path().join(format!("{rank}.{what}"))).unwrap()
    };
    let rank = |rank| Said {
        host: read(rank, "host").trim().to_owned(),
        exports: serde_json::from_str(&read(rank, "exports")).unwrap(),
        shown: serde_json::from_str(&read(rank, "shown")).unwrap(),
    };
    ((0..4).map(rank).collect(), map)
}

/// Every rank exports its place in `hosts` and one of the `masters`, and rank 0's map agrees.
#[track_caller]
pub(super) fn assert_places(
    name: &str,
    (ranks, map): &(Vec<Said>, Value),
    hosts: [&str; 4],
    masters: &[&str],
) {
    let master = ranks[0].exports["MASTER_ADDR"].as_str().unwrap();
    assert!(masters.contains(&master), "{name}: {master}");
    for (rank, Said { host, exports, shown }) in ranks.iter().enumerate() {
        assert_eq!(host, hosts[rank], "{name}: rank {rank}");
        let local_size = hosts.iter().filter(|other| *other == host).count();
        let expected = [
            ("RANK", rank),
            ("WORLD_SIZE", 4),
            ("LOCAL_RANK", hosts[..rank].iter().filter(|other| *other == host).count()),
            ("LOCAL_WORLD_SIZE", local_size),
        ];
        for (variable, value) in expected {
            assert_eq!(exports[variable], value.to_string(), "{name}: rank {rank}: {exports}");
        }
        assert_eq!(exports["MASTER_ADDR"], master, "{name}: rank {rank}");
        let (port, of_first) =
            (exports["MASTER_PORT"].as_str().unwrap(), &ranks[0].exports["MASTER_PORT"]);
        assert!(
            (20_000..30_000).contains(&port.parse().unwrap()) && port == of_first,
            "{name}: rank {rank}: {exports}"
        );
        let suspicious = |finding: &Value| finding["severity"] != "note";
        assert!(
            !shown["findings"].as_array().unwrap().iter().any(suspicious),
            "{name}: rank {rank}: {shown}"
        );
        let own = shown["own_addr"].as_str().unwrap();
        assert!(
            own == address(host) || !masters[0].starts_with("10.77."),
            "{name}: rank {rank}: {shown}"
        );
        let met = &map["ranks"][rank];
        assert_eq!(
            (&met["host"], &met["local_size"]),
            (&host.as_str().into(), &local_size.into()),
            "{name}: {map}"
        );
    }
}

#[test]
fn every_layout_of_ranks_on_hosts_is_known_and_all_meet() {
    let Some(hosts) = Hosts::up("layouts", 3, &[]) else { return };
    for (version, mpirun) in mpiruns() {
        for Layout { name, words, hosts: places } in LAYOUTS {
            let name = format!("Open MPI {version}, {name}");
            // Rank 0's host, made known in whichever way this mpirun allows.
            let given = format!("MASTER_ADDR={}", address(places[0]));
            if version == 5 || name.contains("elsewhere") {
                let words = [&["-x", &given], words].concat();
                let said = report(&hosts, &mpirun, &words, "true");
                assert_places(&name, &said, places, &[address(places[0])]);
            } else {
                assert_places(
                    &name,
                    &report(&hosts, &mpirun, words, "true"),
                    places,
                    &[address(places[0])],
                );
            }
        }
    }
}

#[test]
fn a_port_that_is_set_for_only_some_ranks_is_named_with_those_ranks() {
    let Some(hosts) = Hosts::up("ports", 2, &[]) else { return };
    for (version, mpirun) in mpiruns() {
        for case in 0..2 {
            let (said, verdict) = said_in_time(|timeout| {
                let program = [env!("CARGO_BIN_EXE_mpienv"), "check", "--timeout", timeout];
                let (words, verdict) = partly_set(&program).swap_remove(case);
                let output =
                    hosts.mpirun(&mpirun, &words).env("MASTER_PORT", "23456").output().unwrap();
                assert!(!output.status.success(), "Open MPI {version}");
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                (said, verdict)
            });
            for part in [
                "mpienv: the ranks disagree on MASTER_PORT: ",
                verdict,
                "; only some ranks have the setting",
            ] {
                assert!(said.contains(part), "Open MPI {version}: {said}");
            }
            // This happens before the deadline.
            assert!(!said.contains("connected to"), "Open MPI {version}: {said}");
        }
    }
}

#[test]
fn ranks_meet_over_two_networks_over_ipv6_alone_and_where_host_names_do_not_resolve() {
    let settings = [("TWO_HOSTS_NETS", "2"), ("TWO_HOSTS_IPV6", "1")];
    let Some(hosts) = Hosts::up("networks", 2, &settings) else { return };
    let places = ["nodeA", "nodeA", "nodeB", "nodeB"];
    let run = |version: u32, mpirun: &Path, name: &str, words: &[&str], master: &str| {
        // Version 5 does not name the host of any rank.
        let given = format!("MASTER_ADDR={master}");
        let given =
            if version == 5 || !master.starts_with("10.") { &["-x", &given][..] } else { &[] };
        let said = report(&hosts, mpirun, &[given, words, BLOCK].concat(), "true");
        assert_places(&format!("Open MPI {version}, {name}"), &said, places, &[master]);
        said.1["ranks"][2]["address"].as_str().unwrap().to_owned()
    };
    let mpiruns = mpiruns();
    for (version, mpirun) in &mpiruns {
        assert_eq!(run(*version, mpirun, "two networks", &[], "10.77.0.1"), "10.77.0.2");
        assert_eq!(
            run(*version, mpirun, "the second network", SECOND_NETWORK, "10.78.0.1"),
            "10.78.0.2"
        );
        assert_eq!(run(*version, mpirun, "IPv6", &[], "fd77::1"), "fd77::2");
    }
    let folder = folder();
    hosts.forget_names(folder.path(), "127.0.0.1 localhost\nfd77::1 six\n");
    for (version, mpirun) in &mpiruns {
        assert_eq!(run(*version, mpirun, "no names", &[], "10.77.0.1"), "10.77.0.2");
        assert_eq!(run(*version, mpirun, "no names but one", &[], "six"), "fd77::2");
    }
}

#[test]
fn slurms_steps_on_two_hosts_know_their_places_and_meet() {
    let Some(hosts) = Hosts::up("slurm", 2, &[]) else { return };
    let (mpienv, folder) = (env!("CARGO_BIN_EXE_mpienv"), folder());
    // Each host has four CPUs: without options, Slurm puts three ranks on the first.
    let layouts = [
        ("", ["nodeA", "nodeA", "nodeA", "nodeB"]),
        ("--ntasks-per-node=2", ["nodeA", "nodeA", "nodeB", "nodeB"]),
    ];
    let say = format!(
        "hostname >$0.$SLURM_PROCID.host; {mpienv} show --json >$0.$SLURM_PROCID.shown; \
         exec {mpienv} check --json --timeout 1200 >$0.$SLURM_PROCID.map"
    );
    let steps = layouts.iter().enumerate().map(|(index, (words, _))| {
        format!("srun -N2 -n4 {words} sh -c \"$1\" {}/{index} && ", folder.path().display())
    });
    let steps = steps.collect::<String>() + "true";
    let Some(mut command) = hosts.slurm(folder.path()) else { return };
    let output = command.args(["sh", "-c", &steps, "steps", &say]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |name: String| fs::read_to_string(folder.path().join(name)).unwrap();
    let parse = |name| -> Value { serde_json::from_str(&read(name)).unwrap() };
    for (index, (_, places)) in layouts.iter().enumerate() {
        let map = parse(format!("{index}.0.map"));
        for (rank, place) in places.iter().enumerate() {
            let shown = parse(format!("{index}.{rank}.shown"));
            assert_eq!(read(format!("{index}.{rank}.host")).trim(), *place);
            assert_eq!(map["ranks"][rank]["host"], *place, "{map}");
            assert_eq!(
                (&shown["rank"], &shown["world_size"]),
                (&rank.into(), &4.into()),
                "{shown}"
            );
            let node = usize::from(*place == "nodeB");
            assert_eq!(
                (&shown["node_rank"], &shown["node_count"]),
                (&node.into(), &2.into()),
                "{shown}"
            );
            let local_rank = places[..rank].iter().filter(|other| *other == place).count();
            assert_eq!(
                (&shown["local_rank"], &shown["master_addr"]),
                (&local_rank.into(), &"nodeA".into()),
                "{shown}"
            );
            assert_eq!(shown["findings"], Value::Array(Vec::new()), "{shown}");
        }
    }
}

#[test]
fn of_two_jobs_of_mpirun_on_both_hosts_that_two_tasks_have_started_the_second_fails_in_check() {
    let Some(hosts) = Hosts::up("twice", 2, &[]) else { return };
    let folder = folder();
    let Some(mut command) = hosts.slurm(folder.path()) else { return };
    if !is_there("mpirun") {
        return;
    }
    let check = format!("{} check --timeout 1200; echo code $?", env!("CARGO_BIN_EXE_mpienv"));
    let steps = ["", "srun --overlap --ntasks-per-node=1 "]
        .map(|start| format!("{start}mpirun --oversubscribe -n 4 sh -c \"$1\" && "));
    command.args(["salloc", "-N2", "--ntasks-per-node=1", "sh", "-c"]);
    let output = command.arg(steps.concat() + "true").args(["steps", &check]).output().unwrap();
    let found = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{found}");
    let codes = ["code 0", "code 3"].map(|code| found.matches(code).count());
    assert_eq!(codes, [8, 4], "{found}");
    assert!(
        found.contains("error [launchers-disagree]: rank 0: Open MPI says rank 0 of 4"),
        "{found}"
    );
}

#[test]
fn a_rank_whose_host_is_cut_off_while_the_last_one_is_waited_for_is_named_by_rank_0() {
    let Some(hosts) = Hosts::up("waiting", 3, &[]) else { return };
    let rank = |timeout: u32, index: u32, host: &str| {
        let mut command = hosts.on(host, env!("CARGO_BIN_EXE_mpienv"));
        command.args(["check", "--timeout", &timeout.to_string()]);
        command.env("RANK", index.to_string()).env("WORLD_SIZE", "3");
        command.env("MASTER_ADDR", "10.77.0.1").env("MASTER_PORT", "6105");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let cut = |timeout: u32| {
        let (zero, one) = (rank(timeout, 0, "nodeA"), rank(timeout, 1, "nodeB"));
        // By then, rank 1 has sent its hello and waits.
        thread::sleep(Duration::from_secs(timeout.into()) / 3);
        hosts.act(&["cut", "nodeB"]);
        let two = rank(timeout, 2, "nodeC");
        let ends = [zero, two, one].map(|rank| rank.wait_with_output().unwrap());
        hosts.act(&["heal", "nodeB"]);
        ends
    };
    let named = b"mpienv: rank 1 (10.77.0.2) connected, then stopped answering within ";
    let refers = b"mpienv: the meeting of the ranks failed; rank 0 at 10.77.0.1:6105 prints why";
    let [zero, two, one] = in_time(cut, |[zero, two, _]| {
        zero.stderr.starts_with(named) && two.stderr.starts_with(refers)
    });
    for (output, expected) in [(zero, &named[..]), (two, refers)] {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(124), "{said}");
        assert!(output.stdout.is_empty(), "{output:?}");
        assert!(output.stderr.starts_with(expected), "{said}");
    }
    assert_eq!(one.status.code(), Some(124));
}

#[test]
fn rank_0_says_that_another_program_answers_at_the_masters_address() {
    if !is_there("python3") {
        return;
    }
    let Some(hosts) = Hosts::up("elsewhere", 2, &[]) else { return };
    let listen = "import socket; s = socket.create_server(('', 6105)); print('up', flush=True); s.accept(); s.accept()";
    let mut other =
        hosts.on("nodeB", "python3").args(["-c", listen]).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(other.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let mut command = hosts.on("nodeA", env!("CARGO_BIN_EXE_mpienv"));
    command.args(["check", "--timeout", "8"]).env("RANK", "0").env("WORLD_SIZE", "2");
    let output =
        command.env("MASTER_ADDR", "10.77.0.2").env("MASTER_PORT", "6105").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let _ = other.kill();
    let _ = other.wait();
    let what = "MASTER_ADDR 10.77.0.2 is not an address of this host (its addresses: 10.77.0.1";
    assert!(
        said.contains(what) && said.contains("another program answers there, on port 6105"),
        "{said}"
    );
}

/// Open MPI 4 names only the host of mpirun, which has no ranks here.
#[test]
fn all_ranks_of_an_mpirun_without_ranks_meet_at_rank_0s_host() {
    let Some((_, mpirun)) = mpiruns().into_iter().find(|(version, _)| *version == 4) else {
        eprintln!("skipped: no mpirun");
        return;
    };
    let Some(hosts) = Hosts::up("idle", 3, &[]) else { return };
    let (b, c) = ("nodeB", "nodeC");
    for (words, places) in [
        (&["-H", "nodeB:2,nodeC:2"][..], [b, b, c, c]),
        (&["-H", "nodeB:2,nodeC:2", "--map-by", "node"], [b, c, b, c]),
        (&["-H", "nodeC:2,nodeB:2"], [c, c, b, b]),
        (&["-H", "nodeC:1,nodeB:4", "-n", "4"], [c, b, b, b]),
        // Here, the last host has none.
        (&["-H", "nodeA:2,nodeB:2,nodeC:2", "-n", "4"], ["nodeA", "nodeA", b, b]),
    ] {
        let master = if places[0] == "nodeA" { "10.77.0.1" } else { places[0] };
        let said = report(&hosts, &mpirun, words, "true");
        assert_places(&format!("{words:?}"), &said, places, &[master]);
    }
}

#[test]
fn a_rank_0_on_another_host_than_the_other_ranks_expect_starts_no_program() {
    let Some((_, mpirun)) = mpiruns().into_iter().find(|(version, _)| *version == 4) else {
        eprintln!("skipped: no mpirun");
        return;
    };
    let Some(hosts) = Hosts::up("by_hand", 3, &[]) else { return };
    let (mpienv, folder) = (env!("CARGO_BIN_EXE_mpienv"), folder());
    let file = folder.path().join("ranks");
    fs::write(&file, "rank 0=nodeC slot=0\nrank 1=nodeB slot=0\n").unwrap();
    let words = ["-H", "nodeB:1,nodeC:1", "-n", "2", "--rankfile", file.to_str().unwrap()];
    let first = "test $OMPI_COMM_WORLD_RANK = 0 || exec sleep 3000";
    for command in ["exec -- echo started", "export", "check --timeout 600"] {
        let output =
            script(&hosts, &mpirun, &words, &format!("{first}; {mpienv} {command}")).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && !output.stdout.starts_with(b"started"), "{said}");
        let expected = "Open MPI: MASTER_ADDR: Open MPI names only mpirun's host, and rank 0 is on another one";
        assert!(said.contains(expected) && said.contains("tcp://10.77.0.3"), "{command}: {said}");
        assert!(said.contains("`mpirun -x MASTER_ADDR=HOST`"), "{command}: {said}");
    }
}
