//! Ranks on several hosts ask their launcher where rank 0 is.

use std::fs;
use std::path::PathBuf;

use crate::support::hosts::{Hosts, LAYOUTS, Layout, mpiruns};
use crate::support::python::from_python;
use crate::support::tool::is_there;
use serde_json::Value;

use super::hosts::{assert_places, folder, report, script};

/// What each of four ranks of the example says.
const SUM: &str = "rank RANK of 4: all ranks sum to 6, by Open MPI v5";

/// Returns how many kinds of calls with which a process talks to another one are in what strace
/// said of commands that succeeded.
#[track_caller]
fn network_calls(said: &str) -> usize {
    assert!(said.contains("+++ exited with 0"), "{said}");
    let calls = ["connect(", "socket(", "sendto(", "sendmsg(", "recvfrom(", "recvmsg("];
    calls.iter().filter(|call| said.contains(*call)).count()
}

/// The example, which sums by MPI.
fn sum() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples/mpi_sum")
}

#[test]
fn pmix_knows_rank_0s_host_and_the_nodes_where_mpirun_runs_elsewhere() {
    let Some(hosts) = Hosts::up("pmix", 3, &[]) else { return };
    let Layout { words, hosts: places, .. } = &LAYOUTS[4];
    for (version, mpirun) in mpiruns() {
        // Version 4 answers only one process of each rank, and only once.
        let mpienv = env!("CARGO_BIN_EXE_mpienv");
        let said =
            report(&hosts, &mpirun, words, &format!("eval \"$({mpienv} export --ask-pmix)\""));
        // The name in the host list, or the host's own name.
        assert_places(&format!("Open MPI {version}"), &said, *places, &["10.77.0.2", "nodeB"]);
        let folder = folder();
        let ask = format!(
            "{mpienv} show --json --ask-pmix >{}/$OMPI_COMM_WORLD_RANK",
            folder.path().display()
        );
        let output = script(&hosts, &mpirun, words, &ask).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for rank in 0..4 {
            let shown = fs::read(folder.path().join(rank.to_string())).unwrap();
            let shown: Value = serde_json::from_slice(&shown)
                .unwrap_or_else(|error| panic!("{error}: {output:?}"));
            assert_eq!(
                (&shown["node_rank"], &shown["node_count"]),
                (&(rank / 2).into(), &2.into()),
                "{shown}"
            );
            assert_eq!(
                (shown["hosts"].as_array().unwrap().len(), &shown["hosts"][0]),
                (2, &shown["master_addr"]),
                "{shown}"
            );
        }
        // Without PMIx, the list of hosts shows where rank 0 is under version 4; version 5 has none.
        let show =
            format!("{mpienv} show --json >{}/$OMPI_COMM_WORLD_RANK", folder.path().display());
        assert!(script(&hosts, &mpirun, words, &show).status().unwrap().success());
        for rank in 0..4 {
            let shown = fs::read(folder.path().join(rank.to_string())).unwrap();
            let shown: Value = serde_json::from_slice(&shown).unwrap();
            if version == 4 {
                let names = ["10.77.0.2", "nodeB"];
                assert!(names.iter().any(|name| shown["master_addr"] == *name), "{shown}");
                assert_eq!(shown["findings"], Value::Array(Vec::new()), "{shown}");
            } else {
                assert_eq!(shown["master_addr"], Value::Null, "{shown}");
                assert_eq!(shown["findings"][0]["code"], "master-unknown", "{shown}");
            }
        }
        let export = format!("{mpienv} export --no-ask >/dev/null");
        let output = script(&hosts, &mpirun, words, &export).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), version == 4, "{stderr}");
        assert!(version == 4 || stderr.contains("`mpirun -x MASTER_ADDR=HOST`"), "{stderr}");
    }
}

#[test]
fn ranks_of_open_mpi_5_ask_where_rank_0_is_and_can_still_be_mpi_programs() {
    let Some((_, mpirun)) = mpiruns().into_iter().find(|(version, _)| *version == 5) else {
        eprintln!("skipped: no Open MPI 5");
        return;
    };
    let Some(hosts) = Hosts::up("asking5", 3, &[]) else { return };
    let mpienv = env!("CARGO_BIN_EXE_mpienv");
    let say = "echo $RANK $(hostname) $LOCAL_RANK $MASTER_ADDR";
    let here = format!("{mpienv} show | grep \"^master address\" | tr -s \" \"");
    let sums = format!("{mpienv} exec -- {}", sum().display());
    let late = "test $OMPI_COMM_WORLD_RANK != 1 || sleep 3";
    // What all ranks run, how many of them are on a host, and what each of four ranks then says.
    let commands = [
        (format!("{mpienv} exec -- sh -c '{say}'"), 2, "RANK HOST LOCAL MASTER"),
        (
            format!("{mpienv} launch -q --nproc-per-node 2 -- sh -c '{say}'"),
            1,
            "[RANK] RANK HOST LOCAL MASTER",
        ),
        (format!("eval \"$({mpienv} export)\"; {say}"), 2, "RANK HOST LOCAL MASTER"),
        (format!("{mpienv} exec -- {mpienv} exec -- sh -c '{say}'"), 2, "RANK HOST LOCAL MASTER"),
        (format!("{mpienv} exec -- sh -c '{here}'"), 2, "master address MASTER "),
        (sums.clone(), 2, SUM),
        (format!("{mpienv} exec -- true && {sums}"), 2, SUM),
        // Rank 1 asks while rank 0 waits for it in MPI_Init.
        (format!("{late}; {sums}"), 2, SUM),
        (format!("{late}; eval \"$({mpienv} export)\"; {}", sum().display()), 2, SUM),
    ];
    for places in [["nodeA", "nodeB"], ["nodeB", "nodeC"], ["nodeB", "nodeA"]] {
        // mpirun does not always follow the order of the list: some machines begin with its host.
        let list = format!("{}:1,{}:1", places[0], places[1]);
        // Version 5 sometimes waits forever for ranks that end at once.
        let where_is_0 = "sleep 1; test $OMPI_COMM_WORLD_RANK != 0 || hostname";
        let output = script(&hosts, &mpirun, &["-H", &list], where_is_0).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let first = said.trim();
        let second = places.into_iter().find(|place| *place != first).unwrap();
        for (command, on_a_host, says) in &commands {
            let name = format!("{command} on {places:?}");
            let list = format!("{}:{on_a_host},{}:{on_a_host}", places[0], places[1]);
            let output = script(&hosts, &mpirun, &["-H", &list], command).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            let stdout = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{name}: {stdout}{stderr}");
            let mut lines: Vec<_> = stdout.lines().collect();
            lines.sort_unstable();
            assert_eq!(lines.len(), 4, "{name}: {stdout}{stderr}");
            for rank in 0..4 {
                let expected = says
                    .replace("RANK", &rank.to_string())
                    .replace("HOST", [first, second][rank / 2])
                    .replace("LOCAL", &(rank % 2).to_string())
                    .replace("MASTER", first);
                assert!(lines[rank].starts_with(&expected), "{name}: {expected}: {stdout}");
            }
        }
        let list = format!("{}:2,{}:2", places[0], places[1]);
        if is_there("strace") {
            let calls = |command: &str| {
                let traced = format!("strace -f -e trace=network {mpienv} {command}");
                let output = script(&hosts, &mpirun, &["-H", &list], &traced).output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(output.status.success(), "{said}");
                network_calls(&said)
            };
            assert_eq!(calls("show"), 0, "{places:?}");
            // The same calls would show it.
            assert!(calls("export") > 0, "{places:?}");
        }
        let mut check = hosts.mpirun(&mpirun, &["-H", &list]);
        let output = check.args([mpienv, "check", "--json"]).output().unwrap();
        let map: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(map["ranks"].as_array().unwrap().len(), 4, "{places:?}: {map}");
    }
}

#[test]
fn ranks_of_mpich_and_intel_mpi_ask_where_rank_0_is_and_can_still_be_mpi_programs() {
    let hydras = is_there("mpiexec.hydra").then(|| PathBuf::from("mpiexec.hydra")).into_iter();
    let of_python = ["mpich", "impi-rt"].map(|name| from_python(name, "mpiexec.hydra"));
    let Some(hosts) = Hosts::up("asking", 3, &[]) else { return };
    let mpienv = env!("CARGO_BIN_EXE_mpienv");
    let sum = sum();
    for hydra in hydras.chain(of_python.into_iter().flatten()) {
        for places in [&["nodeA", "nodeB"][..], &["nodeB", "nodeC"], &["nodeC", "nodeA", "nodeB"]] {
            let ranks = 2 * places.len();
            let name = format!("{} on {places:?}", hydra.display());
            let (list, count) = (places.join(","), ranks.to_string());
            let line: Vec<&str> = ["timeout", "-k", "5", "300", hydra.to_str().unwrap()]
                .into_iter()
                .chain(["-hosts", &list, "-ppn", "2", "-n", &count])
                .collect();
            let run = |before: &[&str], words: &[&str]| {
                let all = [before, &line, words].concat();
                let output = hosts.on("nodeA", all[0]).args(&all[1..]).output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(output.status.success(), "{name}: {words:?}: {said}{output:?}");
                String::from_utf8_lossy(&output.stdout).into_owned()
            };
            // The ranks exit one after the other.
            let say = "sleep $LOCAL_RANK; echo $RANK $(hostname) $LOCAL_RANK $MASTER_ADDR ${#MPIENV_TOKEN}";
            let said = run(&[], &[mpienv, "exec", "--", "sh", "-c", say]);
            let mut said: Vec<_> = said.lines().collect();
            said.sort_unstable();
            let expected: Vec<_> = (0..ranks)
                .map(|rank| format!("{rank} {} {} {} 64", places[rank / 2], rank % 2, places[0]))
                .collect();
            assert_eq!(said, expected, "{name}");
            if is_there("strace") {
                let calls = |command| {
                    let words = ["-f", "-e", "trace=network", "-o", "|cat", mpienv, command];
                    network_calls(&run(&[], &[&["strace"], &words[..]].concat()))
                };
                assert_eq!(calls("show"), 0, "{name}");
                assert!(calls("export") > 0, "{name}");
            }
            let map: Value = serde_json::from_str(&run(&[], &[mpienv, "check", "--json"])).unwrap();
            assert_eq!(map["ranks"].as_array().unwrap().len(), ranks, "{name}: {map}");
            // MPI_Finalize of Debian's MPICH 4.0.2 hangs on some runs over two hosts, without
            // mpienv too: one rank polls UCX for a peer that already waits in PMI's barrier. What
            // the ranks print before counts.
            let until_said = format!(
                "exec 3< <(\"$@\"); pid=$!; head -n {ranks} <&3; kill $pid 2>/dev/null || true"
            );
            let before = match hydra.to_str() {
                Some("mpiexec.hydra") => &["bash", "-c", &until_said, "bash"][..],
                _ => &[],
            };
            let sums = run(before, &[mpienv, "exec", "--", sum.to_str().unwrap()]);
            let expected = format!("of {ranks}: all ranks sum to {}, by ", ranks * (ranks - 1) / 2);
            assert_eq!(sums.matches(&expected).count(), ranks, "{name}: {sums}");
        }
    }
}
