//! Ranks that `--bind` really binds to cores, and what `show` and `doctor` say about it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::machine::{Machine, list};
use crate::support::tool::{clean, is_there, missing};
use mpienv_launch::seam::Cpus;

/// What a rank prints: the CPUs that Linux lets it use.
const CPUS: [&str; 3] = ["sed", "-n", "s/^Cpus_allowed_list:\t//p"];
const STATUS: &str = "/proc/self/status";

fn output(command: &mut Command) -> (String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{stdout}{stderr}");
    (stdout, stderr)
}

/// The CPUs that this process may use, if there are at least two.
fn two_cpus() -> Option<Cpus> {
    let (own, _) = output(clean(CPUS[0]).args(&CPUS[1..]).arg(STATUS));
    let own = list(own.trim());
    if own.len() < 2 {
        missing("second core");
        return None;
    }
    Some(own)
}

/// The CPUs of each rank, in the order of the ranks.
fn of_ranks(printed: &str) -> Vec<Cpus> {
    let mut lines: Vec<&str> = printed.lines().collect();
    lines.sort_unstable();
    lines.iter().map(|line| list(line.split("] ").last().unwrap())).collect()
}

fn launched(workers: usize, options: &[&str]) -> (Vec<Cpus>, String) {
    let mut command = clean("mpienv");
    command.args(["launch", "--nproc-per-node", &workers.to_string()]);
    let (stdout, stderr) = output(command.args(options).arg("--").args(CPUS).arg(STATUS));
    (of_ranks(&stdout), stderr)
}

#[test]
fn each_rank_of_a_launch_has_cores_of_its_own() {
    let Some(own) = two_cpus() else { return };
    let (ranks, stderr) = launched(2, &["--bind", "core"]);
    assert!(ranks.len() == 2 && ranks.iter().all(|cpus| !cpus.is_empty()), "{ranks:?}");
    assert!(ranks[0].and(&ranks[1]).is_empty(), "{ranks:?}");
    assert_eq!(stderr, "");
    let (all, _) = launched(2, &[]);
    assert!(all.iter().all(|cpus| cpus.and(&own) == own), "{all:?}");
    // What is divided is what the binding of mpienv leaves.
    let one = own.first().unwrap().to_string();
    if !is_there("taskset") {
        return;
    }
    let mut bound = clean("taskset");
    bound.args(["-c", &one, "mpienv", "launch", "--nproc-per-node", "2", "--bind", "core"]);
    let (stdout, stderr) = output(bound.args(["--keep-binding", "--"]).args(CPUS).arg(STATUS));
    assert_eq!(of_ranks(&stdout), [list(&one), list(&one)]);
    assert_eq!(stderr, "mpienv: bind core: 2 ranks share 1 core\n");
}

/// A shell that batch systems are taken for: Linux shows the name of its file.
fn shell_called(name: &str, folder: &Path) -> Command {
    let shell = folder.join(name);
    fs::copy("/bin/sh", &shell).unwrap();
    clean(shell.to_str().unwrap())
}

#[test]
fn no_rank_leaves_the_cores_that_a_batch_system_gave_the_job() {
    let Some(own) = two_cpus() else { return };
    if !is_there("taskset") || !is_there("mpirun") {
        return;
    }
    let (one, folder) = (own.first().unwrap().to_string(), tempfile::tempdir().unwrap());
    let launch = "mpienv launch --nproc-per-node 1 --";
    let mpirun = "mpirun --oversubscribe -n 1";
    for (shell, command, expected) in [
        // taskset bound mpienv alone, and mpirun the rank.
        ("sh", format!("taskset -c {one} {launch}"), &own),
        ("sh", format!("{mpirun} {launch}"), &own),
        ("sh", format!("{mpirun} mpienv exec --"), &own),
        // The step of a job on one core, and mpirun in its script.
        ("slurmstepd", format!("taskset -c {one} {launch}"), &list(&one)),
        ("slurmstepd", format!("taskset -c {one} {mpirun} {launch}"), &list(&one)),
        ("pbs_mom", format!("taskset -c {one} {mpirun} mpienv exec --"), &list(&one)),
        // mpirun itself has one core.
        ("sh", format!("taskset -c {one} {mpirun} mpienv exec --"), &list(&one)),
        ("sh", format!("taskset -c {one} {mpirun} {launch}"), &list(&one)),
    ] {
        let mut job = shell_called(shell, folder.path());
        job.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        // The shell stays, and does not become the last command.
        let script = format!("{command} {} {} '{}' {STATUS}; exit $?", CPUS[0], CPUS[1], CPUS[2]);
        let (stdout, _) = output(job.args(["-c", &script]));
        let found = &of_ranks(&stdout)[0];
        assert_eq!(&found.and(&own), expected, "{shell}: {command}");
    }
}

#[test]
fn more_ranks_than_cores_share_them_evenly_and_a_note_says_so() {
    let Some(_) = two_cpus() else { return };
    let (one, _) = launched(1, &["--bind", "core"]);
    // Without SMT, this is the number of cores.
    let many = one[0].len() + 1;
    let (ranks, stderr) = launched(many, &["--bind", "core"]);
    assert!(stderr.starts_with(&format!("mpienv: bind core: {many} ranks share ")), "{stderr}");
    let uses = |cpu| ranks.iter().filter(|cpus| cpus.contains(&cpu)).count();
    let uses: Vec<usize> = one[0].iter().map(uses).collect();
    assert!(uses.iter().max().unwrap() - uses.iter().min().unwrap() <= 1, "{uses:?}");
}

#[test]
fn the_ranks_that_mpirun_starts_bind_themselves_unless_mpirun_was_asked_to() {
    let Some(own) = two_cpus() else { return };
    if !is_there("mpirun") {
        return;
    }
    let mpirun = |options: &[&str], words: &[&str]| {
        let mut command = clean("mpirun");
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.args(["--oversubscribe", "-n", "2"]).args(options).args(["mpienv", "exec"]);
        let (stdout, stderr) = output(command.args(words).arg("--").args(CPUS).arg(STATUS));
        (of_ranks(&stdout), stderr)
    };
    for options in [&[][..], &["--bind-to", "none"]] {
        let (ranks, stderr) = mpirun(options, &["--bind", "core"]);
        assert!(ranks.len() == 2 && ranks[0].and(&ranks[1]).is_empty(), "{ranks:?} {stderr}");
    }
    // mpienv inside leaves it alone.
    let (ranks, stderr) = mpirun(&[], &["--bind", "core", "--", "mpienv", "exec"]);
    assert!(ranks.len() == 2 && ranks[0].and(&ranks[1]).is_empty(), "{ranks:?} {stderr}");
    let (ranks, stderr) = mpirun(&["--bind-to", "core"], &["--bind", "numa"]);
    assert!(ranks.iter().all(|cpus| cpus.len() < own.len()), "{ranks:?}");
    let note = "mpienv: bind numa: this process is bound to CPUs ";
    assert_eq!(stderr.matches(note).count(), 1, "{stderr}");
    assert!(stderr.contains("stays there; start it with mpirun --bind-to none"), "{stderr}");
}

#[test]
fn show_prints_the_binding_of_a_rank_and_who_bound_it() {
    let Some(_) = two_cpus() else { return };
    let show = |words: &[&str]| {
        let mut command = clean("mpienv");
        command.args(["launch", "--nproc-per-node", "1", "--bind", "core", "--"]);
        let (stdout, _) = output(command.args(["mpienv", "show"]).args(words));
        stdout
            .lines()
            .map(|line| line.trim_start_matches("[0] ").to_owned() + "\n")
            .collect::<String>()
    };
    let (cpus, _) = launched(1, &["--bind", "core"]);
    let shown: serde_json::Value = serde_json::from_str(&show(&["--json"])).unwrap();
    assert_eq!(shown["binding"]["cpus"], cpus[0].to_string());
    assert!(shown["binding"]["cores"].as_u64().unwrap() >= 1);
    let mut two = clean("mpienv");
    two.args(["launch", "--nproc-per-node", "2", "--bind", "core", "--", "mpienv", "show"]);
    let (stdout, _) = output(&mut two);
    assert!(
        stdout.lines().any(|line| line.starts_with("[1] binding ") && line.contains(" CPUs ")),
        "{stdout}"
    );
    assert!(
        stdout.contains(
            " cores, by mpienv --bind core, with OMP_NUM_THREADS=1; this node has 2 ranks"
        ),
        "{stdout}"
    );
}

#[test]
fn doctor_finds_ranks_that_share_a_core_while_another_is_idle() {
    let Some(own) = two_cpus() else { return };
    if !is_there("taskset") {
        return;
    }
    let doctor = |words: &[&str]| {
        let mut command = clean("mpienv");
        command.args(["launch", "--nproc-per-node", "2", "--bind", "core", "--"]);
        let output = command.args(words).args(["mpienv", "doctor", "--timeout", "300"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let one = own.first().unwrap().to_string();
    let together = doctor(&["taskset", "-c", &one]);
    assert!(together.contains("[cores-shared]: on "), "{together}");
    assert!(together.contains(", the ranks 0-1 share cores, and no rank uses the cores of CPUs "));
    let apart = doctor(&[]);
    assert!(apart.contains("rank 1: ") && !apart.contains("cores-shared"), "{apart}");
}

#[test]
fn a_device_that_this_host_does_not_have_starts_nothing() {
    let machine = Machine::new("two_sockets");
    for verb in [&["launch", "--nproc-per-node", "2"][..], &["exec"]] {
        let mut command = clean("mpienv");
        command.args(verb).args(["--bind", "device", "--", "echo", "started"]);
        let output = command.env("MPIENV_HOST_ROOT", machine.root()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), output.stdout.as_slice()),
            (Some(1), &b""[..]),
            "{stderr}"
        );
        assert_eq!(
            stderr,
            "mpienv: bind=\"device\": this host has no GPU of NVIDIA or AMD on its PCI bus: 16 \
             cores and 2 NUMA nodes; use core or numa instead\n"
        );
    }
}

#[test]
fn an_exec_that_does_not_know_its_place_on_the_node_binds_nothing() {
    let mut command = clean("mpienv");
    command.envs([
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "a"),
        ("MASTER_PORT", "29500"),
    ]);
    let output = command.args(["exec", "-q", "--bind", "core", "--", "true"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("bind=\"core\": the launcher does not provide the local rank"),
        "{stderr}"
    );
}
