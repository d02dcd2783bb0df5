//! `mpienv doctor` on this host, alone and as the ranks of a job.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use crate::support::port::free_port;
use crate::support::timeout::{PATIENT, in_time};
use crate::support::tool::clean;

/// What `mpienv --version` prints, and this host.
fn version_and_host() -> String {
    let version = clean("mpienv").arg("--version").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    format!("{} on {}", version.trim_end(), mpienv::host_name().unwrap())
}

#[test]
fn the_report_and_the_object_name_the_version_and_the_host() {
    let printed = |words: &[&str]| {
        let output = clean("mpienv").arg("doctor").args(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let expected = version_and_host();
    let text = printed(&[]);
    assert_eq!(text.lines().next(), Some(expected.as_str()), "{text}");
    let object =
        |words: &[&str]| -> serde_json::Value { serde_json::from_str(&printed(words)).unwrap() };
    let (examined, unasked) = (object(&["--json"]), object(&["--json", "--timeout", "0"]));
    assert_eq!(unasked["info"]["rank"], examined["info"]["rank"]);
    let [version, host] = ["version", "host"].map(|key| examined[key].as_str().unwrap());
    assert_eq!(format!("mpienv {version} on {host}"), expected);
}

#[test]
fn the_report_has_every_row_of_show() {
    let names = |verb: &str| -> Vec<String> {
        let vars = [("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")];
        let output = clean("mpienv").arg(verb).envs(vars).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let row = |line: &str| line.split_once("  ").map(|(name, _)| name.to_owned());
        text.lines().take_while(|line| !line.is_empty()).filter_map(row).collect()
    };
    let (shown, examined) = (names("show"), names("doctor"));
    assert!(shown.contains(&"device index".to_owned()), "{shown:?}");
    let missing: Vec<_> = shown.iter().filter(|name| !examined.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?} of {examined:?}");
}

#[test]
fn the_command_looks_at_this_very_host() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let mut command = clean("mpienv");
    command
        .args(["doctor", "--json"])
        .env("MASTER_PORT", listener.local_addr().unwrap().port().to_string());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let examined: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let codes: Vec<_> = examined["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["code"].as_str().unwrap())
        .collect();
    assert!(codes.contains(&"port-in-use"), "{codes:?}");
    assert_eq!(examined["info"]["world_size"], 1);

    let mut command = clean("mpienv");
    command.args(["doctor"]).env("MASTER_ADDR", "no-such-host.invalid");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("error [master-unresolved]: MASTER_ADDR is no-such-host.invalid"),
        "{text}"
    );
    assert!(text.lines().any(|line| line.starts_with("NCCL selects  ")), "{text}");

    let mut command = clean("mpienv");
    command.args(["doctor", "--timeout", "1"]).envs([
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_STEP_NODELIST", "n[0-1].invalid"),
    ]);
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let master =
        "the master n0.invalid (SLURM_STEP_NODELIST: the first host) does not resolve here";
    assert!(text.contains(&format!("[master-unresolved]: {master}")), "{text}");
    assert!(examined["nccl_interfaces"].is_array(), "{examined}");
}

/// `mpienv doctor` as one of two ranks.
fn command(timeout: &str, index: u32, port: u16) -> Command {
    let mut command: Command = clean("mpienv");
    command.args(["doctor", "--timeout", timeout]);
    command.env("RANK", index.to_string()).env("WORLD_SIZE", "2");
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn rank(index: u32, port: u16, more: &[(&str, &str)]) -> Child {
    command(PATIENT, index, port).envs(more.iter().copied()).spawn().unwrap()
}

#[test]
fn the_ranks_of_a_job_print_one_report_and_the_others_differences() {
    let port = free_port();
    let ranks = [rank(0, port, &[]), rank(1, port, &[("GLOO_SOCKET_IFNAME", "nowhere9")])];
    let [first, second] = ranks.map(|rank| rank.wait_with_output().unwrap());
    let text = String::from_utf8(first.stdout).unwrap();
    assert_eq!(text.matches("launcher  ").count(), 1, "{text}");
    assert!(text.contains("\nrank 1:\n  error [gloo-no-such-interface]: "), "{text}");
    // A finding of one rank makes all ranks fail.
    assert_eq!(first.status.code(), Some(3), "{text}");
    assert_eq!((second.status.code(), second.stdout.len(), second.stderr.len()), (Some(0), 0, 0));
}

#[test]
fn ranks_that_do_not_meet_print_one_table_and_each_why_and_its_own_errors() {
    let failed = |index: u32, port: u16, more: &[(&str, &str)]| {
        let output = command("2", index, port).envs(more.iter().copied()).output().unwrap();
        let [text, stderr] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(output.status.code(), Some(3), "{text}{stderr}");
        (text, stderr)
    };
    let host = mpienv::host_name().unwrap();
    let (text, stderr) = failed(1, free_port(), &[("GLOO_SOCKET_IFNAME", "nowhere9")]);
    let mut lines = text.lines();
    let why = format!("rank 1 on {host}: not compared with the other ranks: rank 1 did not reach");
    assert!(lines.next().unwrap().starts_with(&why), "{text}");
    assert!(text.contains("\n  error [gloo-no-such-interface]: "), "{text}");
    assert!(lines.all(|line| line.starts_with("  error [") || line.starts_with("  warning [")));
    // Its report has said it.
    assert_eq!(stderr, "");
    // Rank 0 knows why, and says it for all.
    let missing = "\nnot compared with the other ranks: rank 2 of 3 has not connected to ";
    let meet = |timeout: u32| {
        let port = free_port();
        let ranks = [0, 1].map(|index| {
            let mut command = command(&timeout.to_string(), index, port);
            command.env("WORLD_SIZE", "3").spawn().unwrap()
        });
        let ranks = ranks.map(|rank| rank.wait_with_output().unwrap());
        (port, ranks.map(|rank| String::from_utf8(rank.stdout).unwrap()))
    };
    let (port, [first, second]) = in_time(meet, |(_, [first, _])| first.contains(missing));
    let table = format!("{}\nlauncher  ", version_and_host());
    assert!(first.starts_with(&table) && first.contains(missing), "{first}");
    let start = format!(
        "rank 1 on {host}: not compared with the other ranks: the meeting of the ranks failed; rank 0 at \
         127.0.0.1:{port} prints why\n"
    );
    assert!(second.starts_with(&start) && !second.contains("launcher  "), "{second}");
}

#[test]
fn without_a_master_only_rank_0_prints_a_table() {
    for index in ["0", "1"] {
        let vars = [("PMI_RANK", index), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "1")];
        let output = clean("mpienv").arg("doctor").envs(vars).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.matches("launcher  ").count(), usize::from(index == "0"), "{text}");
        let why = "not compared with the other ranks: nothing names the master\n";
        assert!(text.contains(why) && text.contains("error [master-unknown]: "), "{text}");
        assert_eq!(output.status.code(), Some(3), "{text}");
    }
}

#[test]
fn rank_0_that_does_not_meet_the_others_reports_for_itself_and_fails() {
    let output = command("0.2", 0, free_port()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("launcher  ").count(), 1, "{text}");
    assert!(text.contains("\nnot compared with the other ranks: "), "{text}");
    // A warning about this host makes doctor fail anyway.
    let is_sound = text.contains("no problems found on this host\n");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{text}{stderr}");
    assert_eq!(stderr.contains("could not compare the ranks"), is_sound, "{text}{stderr}");
}

#[test]
fn a_rank_that_is_inspected_alone_prints_its_table() {
    let output = command("0", 1, free_port()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("launcher ") && !text.contains("not compared"), "{text}");
}
