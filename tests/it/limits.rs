//! Excessive numbers and limits: an error that states the range or the limit, never a panic.

use std::process::{Output, Stdio};

use crate::support::copy::copy_for_all_users;
use crate::support::launched::master_port;
use crate::support::root::is_root;
use crate::support::timeout::PATIENT;
use crate::support::tool::{clean, is_there};
use mpienv::simulate::{Job, JobError};
use mpienv::{ClusterInfo, Launcher};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether a program exited by itself, without a panic or abort.
fn is_an_error(output: &Output) -> bool {
    output.status.code().is_some_and(|code| code != 101 && code != 134)
        && !said(output).contains("panicked")
}

#[test]
fn numbers_that_no_machine_can_hold_are_refused_with_the_range() {
    let cases: [(&[&str], &str); 4] = [
        (
            &["launch", "--nproc-per-node", "4294967295", "--", "true"],
            "expected a whole number from 1 to 65536",
        ),
        (
            &["simulate", "--launcher", "slurm", "--nodes", "4294967295"],
            "expected a whole number from 1 to 1048576",
        ),
        (
            &["simulate", "--launcher", "slurm", "--ppn", "4294967295"],
            "expected a whole number from 1 to 1048576",
        ),
        (
            &["simulate", "--launcher", "slurm", "--nodes", "x"],
            "expected a whole number from 1 to 1048576",
        ),
    ];
    for (words, range) in cases {
        let output = clean("mpienv").args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
        assert!(said(&output).contains(range), "{words:?}: {}", said(&output));
    }
    let words = ["simulate", "--launcher", "slurm", "--nodes", "1048576", "--ppn", "1048576"];
    let output = clean("mpienv").args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(said(&output).contains("at most 1048576 ranks"), "{}", said(&output));
}

#[test]
fn sizes_are_checked_before_they_are_believed_in_the_library_too() {
    for job in [
        Job::slurm().nodes(u32::MAX),
        Job::slurm().per_node(u32::MAX),
        Job::of(Launcher::Flux).counts([u32::MAX; 9]),
    ] {
        assert_eq!(job.build(), Err(JobError::TooLarge));
    }
    let alone = ClusterInfo::from_vars([("PATH", "/bin")]).unwrap();
    for per_node in [0, ClusterInfo::MOST_WORKERS + 1, u32::MAX] {
        let text = alone.workers(per_node).unwrap_err().to_string();
        assert!(text.contains("start 1 to 65536 workers on each node"), "{text}");
    }
}

#[test]
fn a_launch_without_more_processes_or_threads_says_which_limit() {
    if !is_root() || !is_there("setpriv") || !is_there("prlimit") {
        return;
    }
    // An ordinary user without other processes, and a copy of the program that this user can read.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let program = copy_for_all_users(env!("CARGO_BIN_EXE_mpienv"), folder.path());
    let user = (700_000 + std::process::id() % 90_000).to_string();
    let mut failed = 0;
    for limit in 1..14 {
        let mut command = clean("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
        command.args(["prlimit", &format!("--nproc={limit}")]).arg(&program);
        // The workers' stdin is a pipe that stays open: all workers run at the same time.
        command.args([
            "launch",
            "--nproc-per-node",
            "8",
            "--grace",
            "0.2",
            "--",
            "sh",
            "-c",
            "exec sleep 10",
        ]);
        let output = command.output().unwrap();
        assert!(is_an_error(&output), "{limit}: {output:?}");
        if !output.status.success() {
            failed += 1;
            assert!(said(&output).contains("ulimit -u"), "{limit}: {}", said(&output));
        }
    }
    assert!(failed > 5, "only {failed} launches met the limit");
}

#[test]
fn a_launch_without_memory_for_a_thread_says_so() {
    // From what the loader alone needs, which depends on the build, up to a sufficient limit.
    let launch = "mpienv launch --nproc-per-node 12 -- sh -c 'exec sleep 0.1'";
    let starts = |kilobytes: u32| {
        let script = format!("ulimit -v {kilobytes}; exec mpienv --version");
        clean("sh").args(["-c", &script]).output().unwrap().status.success()
    };
    let least = (1..400).map(|step| step * 500).find(|&limit| starts(limit)).unwrap();
    let (mut started, mut said_so) = (0, 0);
    // Small steps where the first thread just fits or does not, then large ones until all fit.
    for limit in (0..40)
        .map(|step| least + 1000 + step * 200)
        .chain((1..40).map(|step| least + 9000 + step * 10_000))
    {
        let output = clean("sh")
            .args(["-c", &format!("ulimit -v {limit}; exec {launch}")])
            .output()
            .unwrap();
        if output.status.success() {
            started += 1;
        } else {
            assert!(is_an_error(&output), "{limit}: {output:?}");
            assert!(said(&output).contains("ulimit -v"), "{limit}: {}", said(&output));
            said_so += 1;
        }
    }
    assert!(said_so > 0, "no launch met the limit");
    assert!(started > 0, "no launch had enough");
}

/// The first thread's stack cannot grow beyond the limit.
#[cfg(unix)]
#[test]
fn every_command_works_with_a_small_stack() {
    for kilobytes in [64, 96, 128, 512] {
        for command in [
            "show",
            "export",
            "exec -- true",
            "launch --nproc-per-node 2 -- true",
            "check",
            "doctor --timeout 0",
            "man",
            "--help",
        ] {
            let script = format!("ulimit -s {kilobytes}; exec mpienv {command}");
            let output = clean("sh").args(["-c", &script]).output().unwrap();
            // doctor may have something to say of the host.
            let code = output.status.code();
            let is_fine = code == Some(0) || command.starts_with("doctor") && code == Some(3);
            assert!(is_fine, "{script}: {output:?}");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn rank_0_raises_its_soft_limit_of_open_files_to_meet_and_its_programs_have_the_old_one() {
    if !is_there("prlimit") {
        return;
    }
    // More ranks than rank 0 may open files.
    let size = 24;
    let start = |words: &[&str], local_size: u32| {
        // The nodes of a launch meet at the port below.
        let port = master_port().to_string();
        let ranks: Vec<_> = (0..size)
            .map(|index: u32| {
                let files = if index == 0 { "--nofile=24:4096" } else { "--nofile=1024:4096" };
                let mut command = clean("prlimit");
                command.args([files, "mpienv"]).args(words);
                command.env("RANK", index.to_string()).env("WORLD_SIZE", size.to_string());
                command.env("LOCAL_RANK", (index % local_size).to_string());
                command.env("LOCAL_WORLD_SIZE", local_size.to_string());
                command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        let ranks = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap());
        ranks.collect::<Vec<_>>()
    };
    let (meet, of_nodes) = (|words: &[&str]| start(words, size), |words: &[&str]| start(words, 1));
    let limits = "ulimit -Sn; ulimit -Hn";
    for rank in meet(&["check", "--compute", "--timeout", PATIENT]) {
        // On a busy machine, a rank may compute slower than the others.
        assert!(matches!(rank.status.code(), Some(0 | 3)), "{}", said(&rank));
        assert!(rank.stderr.is_empty() || rank.status.code() == Some(3), "{}", said(&rank));
    }
    let ranks = meet(&["exec", "--meet", PATIENT, "--", "sh", "-c", limits]);
    assert!(ranks.iter().all(|rank| rank.status.success()), "{}", said(&ranks[0]));
    assert_eq!(String::from_utf8_lossy(&ranks[0].stdout), "24\n4096\n");
    // The first node of a launch stays connected to all others while its workers run.
    let launch = ["launch", "--max-restarts", "1", "--nproc-per-node", "1", "--"];
    let nodes = of_nodes(&[&launch[..], &["sh", "-c", limits]].concat());
    assert!(nodes.iter().all(|node| node.status.success()), "{}", said(&nodes[0]));
    assert_eq!(String::from_utf8_lossy(&nodes[0].stdout), "[0] 24\n[0] 4096\n");
}
