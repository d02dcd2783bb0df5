//! The trainer under `mpienv launch --max-restarts`: ranks are killed at random, and the bits stay the same.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::hosts::Hosts;
use crate::support::tool::{clean, inherited};
use crate::support::trainer::with_trainer;

/// How many jobs a test has.
const JOBS: &str = "MPIENV_RESTART_JOBS";
const EPOCHS: &str = "60";
/// How long a job may take.
const LIMIT: Duration = Duration::from_secs(120);

fn jobs() -> u32 {
    inherited(JOBS).map_or(3, |text| text.to_str().unwrap().parse().unwrap())
}

/// A random number below this.
fn below(limit: usize) -> usize {
    usize::try_from(RandomState::new().hash_one(Instant::now()) % limit as u64).unwrap()
}

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The newest checkpoint of a folder.
fn last(folder: &Path) -> Vec<u8> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    fs::read(files.filter(|path| path.extension().is_some_and(|end| end == "safetensors")).max().unwrap()).unwrap()
}

/// What so many ranks come to that nothing disturbs; `None` where the trainer is not built.
fn undisturbed(ranks: u32) -> Option<Vec<u8>> {
    let kept = folder();
    let mut command = with_trainer(clean("mnist"))?;
    command.args(["--quiet", "--ranks", &ranks.to_string(), "--epochs", EPOCHS, "--checkpoint-dir"]).arg(kept.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(last(kept.path()))
}

/// The trainer, which goes on from its folder.
fn train(command: &mut Command, kept: &Path) {
    command.args(["--", "mnist", "--quiet", "--timeout", "20", "--epochs", EPOCHS]);
    command.args(["--checkpoint-every", "50", "--resume", "--checkpoint-dir"]).arg(kept);
}

/// The trainer's processes that live and have all these variables, each with its rank.
fn workers(variables: &[String]) -> Vec<(String, usize)> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().into_string().ok());
    let rank = |id: &String| {
        let name = fs::read_to_string(format!("/proc/{id}/comm")).ok()?;
        let vars = fs::read(format!("/proc/{id}/environ")).ok()?;
        let vars: Vec<_> = vars.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let has_all = variables.iter().all(|wanted| vars.iter().any(|var| var == wanted));
        let rank = vars.iter().find_map(|var| var.strip_prefix("RANK=")?.parse().ok())?;
        (name == "mnist\n" && has_all).then_some(rank)
    };
    ids.filter_map(|id| rank(&id).map(|rank| (id, rank))).collect()
}

/// Kills a random rank, or all of a host, in each of the first attempts; how many attempts were disturbed.
fn disturb(mark: &str, attempts: usize, ranks: usize, per_host: usize, is_over: &mut dyn FnMut() -> bool) -> usize {
    let mut killed = 0;
    for attempt in 0..attempts {
        let variables = [mark.to_owned(), format!("MPIENV_RESTART_COUNT={attempt}")];
        while workers(&variables).len() < ranks {
            if is_over() {
                return killed;
            }
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(Duration::from_millis(below(500) as u64));
        let victim = below(ranks);
        let whole_host = per_host < ranks && below(3) == 0;
        let is_victim = |rank: usize| if whole_host { rank / per_host == victim / per_host } else { rank == victim };
        let ids = workers(&variables).into_iter().filter(|(_, rank)| is_victim(*rank)).map(|(id, _)| id);
        let ids: Vec<_> = ids.collect();
        // A job that has just ended has none left.
        if !ids.is_empty() && Command::new("kill").args(["-s", "KILL"]).args(ids).status().unwrap().success() {
            killed += 1;
        }
    }
    killed
}

/// What both streams of a launch say, and how it exits.
fn read(mut child: Child) -> thread::JoinHandle<(Option<i32>, String)> {
    thread::spawn(move || {
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (child.wait().unwrap().code(), said)
    })
}

fn start(command: &mut Command) -> thread::JoinHandle<(Option<i32>, String)> {
    read(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
}

/// A job's log has each attempt that failed; whether it says where the next one goes on, which needs a checkpoint.
#[track_caller]
fn reads_well(said: &str, killed: usize) -> bool {
    for attempt in 0..killed {
        let failed = format!("mpienv: attempt {attempt} failed: rank ");
        let next = format!("; attempt {} starts in ", attempt + 1);
        assert!(said.lines().any(|line| line.starts_with(&failed) && line.contains(&next)), "{said}");
    }
    said.contains("[0] mnist: resuming from ")
}

#[test]
fn a_job_whose_ranks_are_killed_at_random_ends_with_the_bits_of_one_that_was_left_alone() {
    let Some(expected) = undisturbed(2) else { return };
    let (mut killed, mut resumed) = (0, false);
    for job in 0..jobs() {
        let (kept, mark) = (folder(), format!("MARK=restarts.{job}.{}", std::process::id()));
        let mut command = with_trainer(clean("mpienv")).unwrap();
        let (name, value) = mark.split_once('=').unwrap();
        command.env(name, value).args(["launch", "--max-restarts", "2", "--nproc-per-node", "2"]);
        train(&mut command, kept.path());
        let begun = Instant::now();
        let launch = start(&mut command);
        let now = disturb(&mark, 2, 2, 2, &mut || launch.is_finished());
        let (code, said) = launch.join().unwrap();
        assert_eq!(code, Some(0), "{said}");
        assert!(last(kept.path()) == expected, "job {job}: other bits: {said}");
        resumed |= reads_well(&said, now);
        assert!(begun.elapsed() < LIMIT && workers(&[mark]).is_empty());
        killed += now;
    }
    assert!(killed > 0 && resumed, "{killed} were killed");
}

#[test]
fn a_job_on_two_hosts_whose_ranks_and_hosts_are_killed_at_random_ends_with_the_same_bits() {
    let Some(hosts) = Hosts::up("restarts", 2, &[]) else { return };
    let Some(expected) = undisturbed(4) else { return };
    let (mut killed, mut resumed) = (0, false);
    for job in 0..jobs() {
        let (kept, mark) = (folder(), format!("MARK=hosts.{job}.{}", std::process::id()));
        let node = |host: &str, rank: &str| {
            let mut command = with_trainer(hosts.on(host, env!("CARGO_BIN_EXE_mpienv"))).unwrap();
            let (name, value) = mark.split_once('=').unwrap();
            command.env(name, value).args(["launch", "--node-rank", rank, "--nnodes", "2"]);
            command.args(["--master-addr", "10.77.0.1", "--master-port", "23456"]);
            command.args(["--max-restarts", "3", "--nproc-per-node", "2"]);
            train(&mut command, kept.path());
            start(&mut command)
        };
        let launches = [node("nodeA", "0"), node("nodeB", "1")];
        let now = disturb(&mark, 3, 4, 2, &mut || launches.iter().all(thread::JoinHandle::is_finished));
        let [first, second] = launches.map(|launch| launch.join().unwrap());
        let said = format!("{}\n{}", first.1, second.1);
        assert_eq!((first.0, second.0), (Some(0), Some(0)), "{said}");
        assert!(last(kept.path()) == expected, "job {job}: other bits: {said}");
        resumed |= reads_well(&first.1, now);
        assert!(workers(&[mark]).is_empty());
        // Nothing listens any more.
        let sockets = hosts.on("nodeA", "ss").args(["-Htlnp"]).output().unwrap();
        let sockets = String::from_utf8_lossy(&sockets.stdout).into_owned();
        assert!(!sockets.contains("mpienv") && !sockets.contains("mnist"), "{sockets}");
        killed += now;
    }
    assert!(killed > 0 && resumed, "{killed} were killed");
}
