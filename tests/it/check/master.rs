//! What rank 0 says of the master's address, name and port.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use super::ended;
use crate::support::port::free_port;
use crate::support::tool::clean;

/// Rank 0 of two, alone on its node, with additional variables.
fn rank_0_with(vars: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command: Command = clean("mpienv");
    command
        .args(["check", "--timeout", "5"])
        .env("OMPI_COMM_WORLD_RANK", "0")
        .env("OMPI_COMM_WORLD_SIZE", "2");
    command.env("OMPI_COMM_WORLD_LOCAL_RANK", "0").env("OMPI_COMM_WORLD_LOCAL_SIZE", "1");
    command.env("MASTER_PORT", free_port().to_string()).envs(vars.iter().copied());
    let (code, _, stderr) =
        ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    (code, stderr)
}

#[test]
fn rank_0_says_that_the_masters_address_is_not_its_own() {
    // No host has an address in this network, which is reserved for documentation.
    let (code, said) = rank_0_with(&[("MASTER_ADDR", "192.0.2.9")]);
    assert_eq!(code, Some(124), "{said}");
    let not_here = "mpienv: this is rank 0, but MASTER_ADDR 192.0.2.9 is not an address of this host (its addresses: ";
    assert!(
        said.starts_with(not_here)
            && said.contains("set MASTER_ADDR to one of these addresses on all ranks"),
        "{said}"
    );
    for line in
        ["why: the other ranks look", "remedy: ", "rank 1 of 2 has not connected to 192.0.2.9:"]
    {
        assert!(said.contains(&format!("\n  {line}")), "{line}: {said}");
    }
    // On Azure, another variable takes precedence.
    let (code, said) = rank_0_with(&[("AZ_BATCH_MASTER_NODE", "192.0.2.9:6000")]);
    assert_eq!(code, Some(124), "{said}");
    assert!(
        said.contains("MASTER_ADDR 192.0.2.9 (of AZ_BATCH_MASTER_NODE) is not an address of"),
        "{said}"
    );
    assert!(
        said.contains("set MPIENV_MASTER_ADDR to one of these addresses on all ranks"),
        "{said}"
    );
}

#[test]
fn rank_0_says_that_the_masters_name_has_no_address() {
    let (code, said) = rank_0_with(&[("MASTER_ADDR", "no-such-host.invalid")]);
    assert_eq!(code, Some(124), "{said}");
    assert!(
        said.starts_with(
            "mpienv: MASTER_ADDR is no-such-host.invalid, which does not resolve here: "
        ),
        "{said}"
    );
}

#[test]
fn a_name_that_does_not_resolve_is_explained_once_before_or_after_the_wait() {
    for words in [&["check", "--timeout", "1"][..], &["exec", "--meet", "1", "--", "true"]] {
        for quiet in [false, true] {
            let mut command: Command = clean("mpienv");
            command.args(words).env("MASTER_ADDR", "no-such-host.invalid");
            for (name, value) in
                [("RANK", "0"), ("SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "2")]
            {
                command.env(format!("OMPI_COMM_WORLD_{name}"), value);
            }
            command.env("MASTER_PORT", free_port().to_string());
            if quiet {
                command.env("MPIENV_QUIET", "1");
            }
            let output = command.output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(124), "{said}");
            assert_eq!(said.matches("which does not resolve here").count(), 1, "{words:?}: {said}");
            assert!(said.contains("[master-unresolved]"), "{words:?}: {said}");
            assert!(said.contains("rank 1 of 2 has not connected"), "{words:?}: {said}");
        }
    }
}

#[test]
fn rank_0_whose_port_is_taken_names_the_jobs_own_port() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let (code, said) = rank_0_with(&[
        ("MASTER_PORT", &port),
        ("MASTER_ADDR", "127.0.0.1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("PMIX_NAMESPACE", "3024551937"),
    ]);
    assert_eq!(code, Some(3), "{said}");
    let own = format!("; or unset MASTER_PORT={port}, and the job meets at its own port, 2");
    assert!(
        said.starts_with(&format!("mpienv: port {port} is in use on this host"))
            && said.contains(&own),
        "{said}"
    );
    // The remedy names what chose the port.
    let job = [
        ("MASTER_ADDR", "127.0.0.1"),
        ("PMIX_NAMESPACE", "3024551937"),
        ("MPIENV_MASTER_PORT", &port),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ];
    let (_, said) = rank_0_with(&job);
    assert!(
        said.contains(&format!("; or unset MPIENV_MASTER_PORT={port}, and the job meets")),
        "{said}"
    );
    let rank = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let mut asked = clean("mpienv");
    asked
        .args(["check", "--timeout", "5", "--master-port", &port])
        .envs(rank)
        .envs(job.into_iter().take(2));
    asked.envs([("OMPI_COMM_WORLD_LOCAL_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]);
    let said = String::from_utf8(asked.output().unwrap().stderr).unwrap();
    assert!(
        said.contains(&format!("; or omit the option that sets port {port}, and the job meets")),
        "{said}"
    );
    // Ranks set by hand do not get a separate port, only the port that all such jobs share.
    let by_hand =
        [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)];
    let output = clean("mpienv").args(["check", "--timeout", "5"]).envs(by_hand).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("is in use on this host") && !said.contains("or unset MASTER_PORT"),
        "{said}"
    );
}

#[test]
fn every_command_says_at_once_that_a_job_of_several_nodes_has_a_loopback_master() {
    let commands: [&[&str]; 6] = [
        &["show"],
        &["export"],
        &["exec", "--", "true"],
        &["exec", "--meet", "1", "--", "true"],
        &["launch", "--nproc-per-node", "1", "--", "true"],
        &["check", "--timeout", "1"],
    ];
    let said = |words: &[&str], vars: &[(&str, &str)]| {
        let mut command: Command = clean("mpienv");
        command.args(words).env("MASTER_PORT", free_port().to_string());
        let output = command.envs(vars.iter().copied()).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let by_mpirun = [
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
    ];
    let by_hand = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")];
    for words in commands {
        let found = said(words, &by_mpirun);
        let finding =
            "error [master-loopback]: MASTER_ADDR is 127.0.0.1, and the job is on several nodes\n";
        assert_eq!(found.matches(finding).count(), 1, "{words:?}: {found}");
        let found = said(words, &by_hand);
        assert!(!found.contains("master-loopback"), "{words:?}: {found}");
        // Each pod is a machine of its own.
        let found = said(words, &[&by_hand[..], &[("KUBERNETES_SERVICE_HOST", "1")]].concat());
        assert_eq!(found.matches(finding).count(), 1, "{words:?}: {found}");
        // KubeDL calls only the master's own pod so.
        for (own, times) in [("train-master-0", 0), ("train-0", 1)] {
            let pod = [("KUBERNETES_SERVICE_HOST", "1"), ("HOSTNAME", own)];
            let vars = [&by_hand[..], &pod, &[("MASTER_ADDR", "localhost")]].concat();
            let found = said(words, &vars);
            assert_eq!(found.matches("[master-loopback]").count(), times, "{words:?}: {found}");
        }
        // By hand, several nodes may be tried on one machine, but no rank is at every address.
        let nodes = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "0.0.0.0"];
        let at = words.iter().position(|word| *word == "--").unwrap_or(words.len());
        let found = said(&[&words[..at], &nodes, &words[at..]].concat(), &[]);
        let finding =
            "error [master-loopback]: MASTER_ADDR is 0.0.0.0, and the job is on several nodes\n";
        assert_eq!(found.matches(finding).count(), 1, "{words:?}: {found}");
        // AWS gives only the other nodes the main node's address.
        let main = [("AWS_BATCH_JOB_NODE_INDEX", "0"), ("AWS_BATCH_JOB_NUM_NODES", "2")];
        let found = said(words, &main);
        assert!(!found.contains("master-loopback"), "{words:?}: {found}");
    }
}
