//! The trainer under `mpienv launch --max-restarts`: ranks are killed or stopped at random, and the
//! results keep the same bits.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::clock::SLACK;
use crate::support::hosts::Hosts;
use crate::support::timeout::{PATIENT, in_time};
use crate::support::tool::{clean, inherited};
use crate::support::trainer::with_trainer;

/// The number of jobs in a test, and how often each of them is disturbed.
const JOBS: &str = "MPIENV_RESTART_JOBS";
const KILLS: &str = "MPIENV_RESTART_KILLS";
/// The time limit of a job, without the pauses before its restarts.
const LIMIT: Duration = SLACK;

fn setting(name: &str, usual: usize) -> usize {
    inherited(name).map_or(usual, |text| text.to_str().unwrap().parse().unwrap())
}

/// A random number below this limit.
fn below(limit: usize) -> usize {
    usize::try_from(RandomState::new().hash_one(Instant::now()) % limit as u64).unwrap()
}

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The newest checkpoint of a folder.
fn last(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "safetensors")).max()
}

/// A job that nothing disturbs.
struct Undisturbed {
    ranks: usize,
    epochs: String,
    weights: Vec<u8>,
    took: Duration,
}

impl Undisturbed {
    /// A job that is long enough for this many kills; `None` if the trainer is not built.
    fn run(ranks: usize, kills: usize) -> Option<Undisturbed> {
        let (kept, epochs) = (folder(), (15 + 5 * kills).to_string());
        let mut command = with_trainer(clean("mnist"))?;
        command.args([
            "--quiet",
            "--timeout",
            PATIENT,
            "--ranks",
            &ranks.to_string(),
            "--epochs",
            &epochs,
            "--checkpoint-dir",
        ]);
        let begun = Instant::now();
        let output = command.arg(kept.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let weights = fs::read(last(kept.path()).unwrap()).unwrap();
        Some(Undisturbed { ranks, epochs, weights, took: begun.elapsed() })
    }

    /// Configures a launch to run the same job, which continues from its folder.
    fn again(&self, command: &mut Command, kept: &Path) {
        command.args(["--", "mnist", "--quiet", "--timeout", PATIENT, "--epochs", &self.epochs]);
        command.args(["--checkpoint-every", "50", "--resume", "--checkpoint-dir"]).arg(kept);
    }
}

/// The trainer's running processes that have all these variables, each with its rank.
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

/// Kills a random rank, or all ranks of a host, in each of the first attempts of a job that keeps
/// its weights here. Returns how many attempts it tried to disturb.
fn disturb(
    mark: &str,
    kills: usize,
    job: &Undisturbed,
    per_host: usize,
    kept: &Path,
    is_over: &mut dyn FnMut() -> bool,
) -> usize {
    // At least half of the job is left after the last kill.
    let longest =
        (job.took / (2 * u32::try_from(kills).unwrap() + 2)).min(Duration::from_millis(500));
    for attempt in 0..kills {
        let variables = [mark.to_owned(), format!("MPIENV_RESTART_COUNT={attempt}")];
        // The second attempt continues from weights; later ones may be disturbed before they have
        // written any themselves.
        while workers(&variables).len() < job.ranks || (attempt == 0 && last(kept).is_none()) {
            if is_over() {
                return attempt;
            }
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_micros(below(longest.as_micros() as usize + 1) as u64));
        let victim = below(job.ranks);
        let whole_host = per_host < job.ranks && below(3) == 0;
        let is_victim = |rank: usize| {
            if whole_host { rank / per_host == victim / per_host } else { rank == victim }
        };
        let ids =
            workers(&variables).into_iter().filter(|(_, rank)| is_victim(*rank)).map(|(id, _)| id);
        // Of a host's processes, one may have just exited, and the other is still killed.
        let kill = |id: &String| Command::new("kill").args(["-s", "KILL", id]).status().unwrap();
        let ids: Vec<_> = ids.collect();
        // A job that has just finished has no processes left.
        if ids.iter().filter(|id| kill(id).success()).count() == 0 {
            return attempt;
        }
    }
    kills
}

/// Reads a launch's stderr to its end; returns the exit code and the text.
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

/// The number of failed attempts in a job's log, if the log fits a job that was disturbed this
/// often.
#[track_caller]
fn failures(said: &str, killed: usize) -> usize {
    let lines: Vec<_> = said.lines().filter(|line| line.starts_with("mpienv: attempt ")).collect();
    for (attempt, line) in lines.iter().enumerate() {
        let (failed, next) = (format!("mpienv: attempt {attempt} failed: rank "), attempt + 1);
        assert!(
            line.starts_with(&failed) && line.contains(&format!("; attempt {next} starts in ")),
            "{said}"
        );
        assert!(line.contains(": signal 9 (SIGKILL) after "), "{said}");
    }
    // The last kill may hit ranks that have just exited by themselves.
    assert!(
        [killed, killed.saturating_sub(1)].contains(&lines.len()),
        "{killed} were killed: {said}"
    );
    assert!(!lines.is_empty() && said.contains("[0] mnist: resuming from "), "{said}");
    lines.len()
}

/// The sum of the pauses before this many restarts.
fn pauses(kills: usize) -> Duration {
    (0..kills)
        .map(|restart| Duration::from_millis(500 << restart.min(6)).min(Duration::from_secs(30)))
        .sum()
}

#[test]
fn a_job_whose_ranks_are_killed_at_random_ends_with_the_bits_of_one_that_was_left_alone() {
    let (jobs, kills) = (setting(JOBS, 3), setting(KILLS, 2));
    let Some(expected) = Undisturbed::run(2, kills) else { return };
    for job in 0..jobs {
        let (kept, mark) = (folder(), format!("MARK=restarts.{job}.{}", std::process::id()));
        let mut command = with_trainer(clean("mpienv")).unwrap();
        let (name, value) = mark.split_once('=').unwrap();
        command.env(name, value).args([
            "launch",
            "--max-restarts",
            &kills.to_string(),
            "--nproc-per-node",
            "2",
        ]);
        expected.again(&mut command, kept.path());
        let begun = Instant::now();
        let launch = start(&mut command);
        let killed = disturb(&mark, kills, &expected, 2, kept.path(), &mut || launch.is_finished());
        let (code, said) = launch.join().unwrap();
        assert_eq!(code, Some(0), "{said}");
        assert!(
            fs::read(last(kept.path()).unwrap()).unwrap() == expected.weights,
            "job {job}: other bits: {said}"
        );
        let failed = failures(&said, killed);
        eprintln!("job {job}: {failed} of {kills} kills, {:.1} s", begun.elapsed().as_secs_f64());
        assert!(
            begun.elapsed() < LIMIT + 2 * expected.took + pauses(kills),
            "{:?}: {said}",
            begun.elapsed()
        );
        assert_eq!(workers(&[mark]), []);
    }
}

/// Stops a random rank of the first attempt once there is a checkpoint. Returns the rank, or `None`
/// if the job was over.
fn stop_one(
    mark: &str,
    job: &Undisturbed,
    kept: &Path,
    is_over: &dyn Fn() -> bool,
) -> Option<usize> {
    let variables = [mark.to_owned(), "MPIENV_RESTART_COUNT=0".to_owned()];
    while workers(&variables).len() < job.ranks || last(kept).is_none() {
        if is_over() {
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_micros(below(500_000) as u64));
    let workers = workers(&variables);
    let (id, rank) = workers.get(below(workers.len().max(1)))?;
    let status = Command::new("kill").args(["-s", "STOP", id]).status().unwrap();
    status.success().then_some(*rank)
}

#[test]
fn a_job_of_which_a_rank_is_stopped_at_random_stalls_and_ends_with_the_same_bits() {
    let Some(expected) = Undisturbed::run(2, 2) else { return };
    let run = |timeout: u32| {
        let (kept, mark) = (folder(), format!("MARK=stalls.{timeout}.{}", std::process::id()));
        let mut command = with_trainer(clean("mpienv")).unwrap();
        let (name, value) = mark.split_once('=').unwrap();
        command.env(name, value).args(["launch", "--max-restarts", "9", "--nproc-per-node", "2"]);
        command.args(["--stall-timeout", &timeout.to_string()]);
        expected.again(&mut command, kept.path());
        // What it prints shows that it is making progress.
        let words: Vec<_> = command.get_args().filter(|word| *word != "--quiet").collect();
        let mut loud = with_trainer(clean("mpienv")).unwrap();
        let launch = start(loud.env(name, value).args(words));
        let stopped = stop_one(&mark, &expected, kept.path(), &|| launch.is_finished());
        let (code, said) = launch.join().unwrap();
        assert_eq!(workers(&[mark]), []);
        let weights = last(kept.path()).map(|path| fs::read(path).unwrap());
        (stopped, code, said, weights)
    };
    let is_named = |said: &str, rank: usize| {
        said.contains(&format!("  rank {rank} differs from the others: stopped by a signal\n"))
    };
    // On a busy machine, the ranks may be silent for a short time before one is stopped.
    let were_in_time = |(stopped, code, said, _): &(Option<usize>, Option<i32>, String, _)| {
        stopped.is_some_and(|rank| is_named(said, rank)) && *code == Some(0)
    };
    let (stopped, code, said, weights) = in_time(run, were_in_time);
    assert!(stopped.is_some_and(|rank| is_named(&said, rank)), "{stopped:?}: {said}");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("mpienv: attempt 0 failed: stalled, silent for "), "{said}");
    assert!(weights.is_some_and(|weights| weights == expected.weights), "other bits: {said}");
}

#[test]
fn a_job_on_two_hosts_whose_ranks_and_hosts_are_killed_at_random_ends_with_the_same_bits() {
    let (jobs, kills) = (setting(JOBS, 2), setting(KILLS, 3));
    let Some(hosts) = Hosts::up("restarts", 2, &[]) else { return };
    let Some(expected) = Undisturbed::run(4, kills) else { return };
    // Only launches that have the secret may start or stop workers.
    let secrets = folder();
    let secret = secrets.path().join("secret");
    fs::write(&secret, "of this job").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    for job in 0..jobs {
        let (kept, mark) = (folder(), format!("MARK=hosts.{job}.{}", std::process::id()));
        let node = |host: &str, rank: &str| {
            let mut command = with_trainer(hosts.on(host, env!("CARGO_BIN_EXE_mpienv"))).unwrap();
            let (name, value) = mark.split_once('=').unwrap();
            command.env(name, value).env("MPIENV_TOKEN_FILE", &secret);
            command.args([
                "launch",
                "--node-rank",
                rank,
                "--nnodes",
                "2",
                "--max-restarts",
                &kills.to_string(),
            ]);
            command.args([
                "--master-addr",
                "10.77.0.1",
                "--master-port",
                "23456",
                "--nproc-per-node",
                "2",
            ]);
            expected.again(&mut command, kept.path());
            start(&mut command)
        };
        let begun = Instant::now();
        let launches = [node("nodeA", "0"), node("nodeB", "1")];
        let is_over = &mut || launches.iter().all(thread::JoinHandle::is_finished);
        let killed = disturb(&mark, kills, &expected, 2, kept.path(), is_over);
        let [first, second] = launches.map(|launch| launch.join().unwrap());
        let said = format!("{}\n{}", first.1, second.1);
        assert_eq!((first.0, second.0), (Some(0), Some(0)), "{said}");
        assert!(
            fs::read(last(kept.path()).unwrap()).unwrap() == expected.weights,
            "job {job}: other bits: {said}"
        );
        let failed = failures(&first.1, killed);
        eprintln!("job {job}: {failed} of {kills} kills, {:.1} s", begun.elapsed().as_secs_f64());
        assert!(
            begun.elapsed() < LIMIT + 2 * expected.took + pauses(kills),
            "{:?}: {said}",
            begun.elapsed()
        );
        assert_eq!(workers(&[mark]), []);
        // No socket of any kind is left.
        for host in ["nodeA", "nodeB"] {
            let sockets = hosts.on(host, "ss").args(["-Hanp"]).output().unwrap();
            let sockets = String::from_utf8_lossy(&sockets.stdout).into_owned();
            let own = |line: &&str| line.contains("\"mpienv\"") || line.contains("\"mnist\"");
            assert_eq!(sockets.lines().find(own), None, "{host}");
        }
    }
}
