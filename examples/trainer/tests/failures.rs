//! Ranks that are killed, hung or told to stop, as real processes.
#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use mpienv_trainer::random::{Purpose, Stream};
use mpienv_trainer::tensor_file::TensorFile;
use rustix::process::{Pid, Signal, kill_process};

/// Far more epochs than any test waits for.
const FOREVER: [&str; 3] = ["--epochs", "1000000", "--quiet"];
/// What the tests' machine may take beyond what is promised: it does other things too.
const SLACK: Duration = Duration::from_secs(5);

fn mnist() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mnist"));
    command.env_clear();
    command
}

/// One rank of a world that nobody else starts.
fn rank(rank: u32, size: u32, port: u16) -> Command {
    let mut command = mnist();
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A process under way, whose outputs are read all the time so that it never waits for a reader.
struct Running {
    child: Child,
    lines: thread::JoinHandle<()>,
    errors: thread::JoinHandle<String>,
}

impl Running {
    /// Starts a process; with `first_line` waits until it has written one, when all ranks train.
    fn start(command: &mut Command, first_line: bool) -> Running {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        if first_line {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            assert!(line.starts_with("epoch: "), "{line}");
        }
        let lines = thread::spawn(move || drop(std::io::copy(&mut stdout, &mut std::io::sink())));
        let errors = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        Running { child, lines, errors }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end: exit code and what was said on stderr.
    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        self.lines.join().unwrap();
        (status.code(), self.errors.join().unwrap())
    }

    /// The rank that this launcher has started.
    fn rank(&self, rank: u32) -> Pid {
        let wanted = format!("RANK={rank}");
        let started = |pid: i32| {
            let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            variables.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
        };
        let pid = children(self.child.id()).into_iter().find(|&pid| started(pid)).unwrap();
        Pid::from_raw(pid).unwrap()
    }
}

fn children(parent: u32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    // Beside the ranks there is a guard, which ends them should the launcher be killed.
    let is_rank = |pid: &&str| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "mnist\n");
    list.split_whitespace().filter(is_rank).map(|pid| pid.parse().unwrap()).collect()
}

/// Three ranks that nobody watches, all training; `more` arguments for all.
fn three_ranks(more: &[&str]) -> Vec<Running> {
    let port = free_port();
    let mut others: Vec<Running> =
        [1, 2].map(|index| Running::start(rank(index, 3, port).args(FOREVER).args(more), false)).into();
    others.insert(0, Running::start(rank(0, 3, port).args(FOREVER).args(more), true));
    others
}

fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

#[test]
fn a_killed_rank_ends_all_others_which_name_it_and_its_host() {
    for odd in [0, 1] {
        let mut ranks = three_ranks(&["--timeout", "60"]);
        let killed = ranks.remove(odd);
        let begun = Instant::now();
        killed.signal(Signal::KILL);
        for rank in ranks {
            let (code, said) = rank.end();
            assert_eq!(code, Some(3), "{said}");
            assert!(said.contains(&format!("mnist: rank {odd} on {} (127.0.0.1) is lost: ", host())), "{said}");
        }
        assert!(begun.elapsed() < SLACK);
        killed.end();
    }
}

#[test]
fn a_hung_rank_ends_all_others_within_the_timeout_which_name_it_and_its_host() {
    for odd in [0, 1] {
        let mut ranks = three_ranks(&["--timeout", "1"]);
        let hung = ranks.remove(odd);
        let begun = Instant::now();
        hung.signal(Signal::STOP);
        for rank in ranks {
            let (code, said) = rank.end();
            assert_eq!(code, Some(124), "{said}");
            assert!(
                said.contains(&format!("mnist: rank {odd} on {} (127.0.0.1) did not come within 1 s", host())),
                "{said}"
            );
        }
        let waited = begun.elapsed();
        assert!(waited >= Duration::from_secs(1) && waited < Duration::from_millis(1500) + SLACK, "{waited:?}");
        hung.signal(Signal::KILL);
        hung.end();
    }
}

#[test]
fn a_killed_rank_of_a_launcher_ends_all() {
    let launcher = Running::start(mnist().args(["--ranks", "3"]).args(FOREVER), true);
    kill_process(launcher.rank(1), Signal::KILL).unwrap();
    let begun = Instant::now();
    let (code, said) = launcher.end();
    // Whose end is seen first is chance.
    assert!(code == Some(137) || code == Some(3), "{code:?} {said}");
    assert!(said.contains(&format!("mnist: rank 1 on {} (127.0.0.1) is lost: ", host())), "{said}");
    assert!(begun.elapsed() < SLACK + SLACK, "{:?}", begun.elapsed());
}

#[test]
fn a_hung_rank_of_a_launcher_ends_all() {
    let launcher = Running::start(mnist().args(["--ranks", "3", "--timeout", "1"]).args(FOREVER), true);
    let hung = launcher.rank(1);
    kill_process(hung, Signal::STOP).unwrap();
    let begun = Instant::now();
    let (code, said) = launcher.end();
    assert_eq!(code, Some(124), "{said}");
    assert!(said.contains(&format!("mnist: rank 1 on {} (127.0.0.1) did not come within 1 s", host())), "{said}");
    // The launcher gives the others 5 s to end by themselves; a hung one does not.
    assert!(begun.elapsed() < Duration::from_secs(7) + SLACK, "{:?}", begun.elapsed());
    assert!(!Path::new(&format!("/proc/{}", hung.as_raw_nonzero())).exists());
}

/// The arguments that keep checkpoints in `folder`.
fn keeping(folder: &Path) -> [&str; 5] {
    ["--checkpoint-dir", folder.to_str().unwrap(), "--checkpoint-every", "3", "--resume"]
}

/// The checkpoints in a folder, the newest last.
fn checkpoints(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "safetensors")).collect();
    files.sort();
    files
}

/// What a checkpoint says about itself.
fn about(checkpoint: &Path) -> serde_json::Value {
    serde_json::from_str(&TensorFile::read(checkpoint).unwrap().about).unwrap()
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn fifty_kills_at_random_times_leave_a_newest_checkpoint_that_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("killed");
    let mut random = Stream::new(7, Purpose::Digit(0));
    let (mut kills, mut steps) = (0, 0);
    // More than fifty on a machine so busy that the first fifty came before the runs had done anything.
    while kills < 50 || steps < 30 && kills < 500 {
        let run = Running::start(mnist().args(["--epochs", "1000000", "--quiet"]).args(keeping(&kept)), false);
        thread::sleep(Duration::from_secs_f64(random.between(0.05, 0.25)));
        run.signal(Signal::KILL);
        let (_, said) = run.end();
        assert!(!said.contains("corrupt"), "{said}");
        kills += 1;
        let files = checkpoints(&kept);
        for file in &files {
            assert!(!about(file)["sha256"].is_null(), "{}", file.display());
        }
        assert!(files.len() <= 5, "{files:?}");
        if let Some(newest) = files.last() {
            let now = newest.file_stem().unwrap().to_str().unwrap().split_once('-').unwrap().1.parse().unwrap();
            // No run goes back behind what the one before had kept.
            assert!(now >= steps, "{now} after {steps}");
            steps = now;
        }
    }
    assert!(steps >= 30, "{steps} steps in {kills} kills");

    // What all those pieces came to is what one run without a stop comes to.
    let epochs = (steps / 375 + 1).to_string();
    let whole = folder.path().join("whole");
    for kept in [&kept, &whole] {
        let arguments = ["--epochs", &epochs, "--quiet", "--resume", "--checkpoint-dir", kept.to_str().unwrap()];
        succeeded(&mnist().args(arguments).output().unwrap());
    }
    let last = |folder: &Path| fs::read(checkpoints(folder).pop().unwrap()).unwrap();
    assert_eq!(last(&kept), last(&whole));
}

#[test]
fn a_signal_to_any_rank_stops_all_after_the_same_step_and_a_checkpoint_is_kept() {
    for (signal, code, name) in [(Signal::TERM, 143, "SIGTERM"), (Signal::INT, 130, "SIGINT")] {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("kept");
        let ranks = three_ranks(&["--checkpoint-dir", kept.to_str().unwrap()]);
        ranks[1].signal(signal);
        let ends: Vec<_> = ranks.into_iter().map(Running::end).collect();
        let newest = checkpoints(&kept).pop().unwrap();
        let about = about(&newest);
        let number = |name: &str| about[name].as_str().unwrap();
        let at = format!("mnist: stopped by {name} in epoch {} after {} steps; ", number("epoch"), number("step"));
        for (index, (end, said)) in ends.into_iter().enumerate() {
            assert_eq!(end, Some(code), "{said}");
            let rest = match index {
                0 => format!("{} is written: go on from it with --resume", newest.display()),
                _ => "rank 0 has written a checkpoint: go on from it with --resume".to_owned(),
            };
            assert!(said.contains(&format!("{at}{rest}")), "{said}");
        }
    }
}

#[test]
fn a_signal_without_a_folder_stops_all_and_says_that_nothing_is_kept() {
    let run = Running::start(mnist().args(FOREVER), true);
    run.signal(Signal::INT);
    let (code, said) = run.end();
    assert_eq!(code, Some(130));
    assert!(said.ends_with(" steps; nothing is kept without --checkpoint-dir\n"), "{said}");
}

#[test]
fn sigterm_to_a_launcher_reaches_its_ranks_and_none_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let launcher = Running::start(mnist().args(["--ranks", "2"]).args(FOREVER).args(keeping(folder.path())), true);
    let ranks = children(launcher.child.id());
    assert_eq!(ranks.len(), 2);
    launcher.signal(Signal::TERM);
    let (code, said) = launcher.end();
    assert_eq!(code, Some(143), "{said}");
    assert!(said.contains("mnist: stopped by SIGTERM in epoch "), "{said}");
    assert!(ranks.iter().all(|rank| !Path::new(&format!("/proc/{rank}")).exists()));
    assert!(TensorFile::read(&checkpoints(folder.path()).pop().unwrap()).is_ok());
}

#[test]
fn a_checkpoint_of_another_world_is_refused_by_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--epochs", "1", "--quiet", "--resume", "--checkpoint-dir", folder.path().to_str().unwrap()];
    succeeded(&mnist().args(arguments).output().unwrap());
    let port = free_port();
    let ranks = [0, 1].map(|index| Running::start(rank(index, 2, port).args(arguments), false));
    for (end, said) in ranks.map(Running::end) {
        assert_eq!(end, Some(1), "{said}");
        assert!(said.contains("000000375.safetensors is of another run: it has ranks 1, this run has 2; "), "{said}");
    }
}
