//! The `mnist` program over each MPI of this machine, started by its own launcher.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const LAUNCHERS: [&str; 2] = ["mpirun", "mpiexec.hydra"];

#[expect(clippy::disallowed_methods, reason = "tests find programs and data where the shell does")]
fn inherited(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name)
}

/// Says that something is missing, and fails where everything is required.
fn skipped(what: &str) {
    assert!(inherited("MPIENV_REQUIRE_ALL").is_none_or(|all| all != "1"), "{what} is required");
    eprintln!("skipped: no {what}");
}

/// Ranks spin while they wait: jobs side by side would take each other's time.
fn one_job() -> MutexGuard<'static, ()> {
    static ONE_JOB: Mutex<()> = Mutex::new(());
    ONE_JOB.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Two ranks of `mnist` started by a launcher, if it is there; a job that hangs is ended.
fn two_ranks(launcher: &str) -> Option<Command> {
    let path = inherited("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|folder| folder.join(launcher).is_file()) {
        skipped(launcher);
        return None;
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new("timeout");
    command.env_clear().env("PATH", path).env("MASTER_PORT", port.to_string());
    // Open MPI refuses root otherwise, which containers are, and more ranks than cores.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command.env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    command.args(["-k", "5", "60", launcher, "-n", "2", env!("CARGO_BIN_EXE_mnist")]);
    Some(command)
}

fn texts(output: &Output) -> (String, String) {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (out, err)
}

/// The last epoch's line up to its time: losses and accuracy.
fn outcome(output: &Output) -> String {
    let (out, err) = texts(output);
    assert!(output.status.success(), "{}: {out}\n{err}", output.status);
    let mut lines = out.lines().filter(|line| line.contains("test accuracy"));
    let line = lines.next_back().unwrap_or_else(|| panic!("{out}\n{err}"));
    assert!(!lines.any(|other| other.starts_with("epoch: 1")), "one rank writes it: {out}");
    let accuracy = line.find("test accuracy is ").unwrap();
    line[accuracy..].split(", ").next().unwrap().to_owned()
}

#[test]
fn ranks_over_mpi_train_as_over_tcp() {
    let _guard = one_job();
    for launcher in LAUNCHERS {
        let run = |backend| {
            let output = two_ranks(launcher)?.args(["--epochs", "2", "--backend", backend]).output().unwrap();
            Some((outcome(&output), texts(&output).1))
        };
        let (Some((mpi, said)), Some((auto, said_of_auto)), Some((tcp, said_of_tcp))) =
            (run("mpi"), run("auto"), run("tcp"))
        else {
            continue;
        };
        assert_eq!(mpi, tcp, "{launcher}");
        assert_eq!(auto, tcp, "{launcher}");
        assert_eq!(said.matches("mnist: gradients over MPI (libmpi").count(), 1, "{launcher}: {said}");
        assert_eq!(said_of_auto.matches("mnist: gradients over MPI (libmpi").count(), 1, "{launcher}: {said_of_auto}");
        assert_eq!(said_of_tcp.matches("mnist: gradients over TCP\n").count(), 1, "{launcher}: {said_of_tcp}");
    }
}

#[test]
fn auto_is_tcp_where_the_launcher_starts_no_mpi_programs() {
    let output = Command::new(env!("CARGO_BIN_EXE_mnist")).env_clear().args(["--ranks", "2", "--epochs", "1"]).output();
    let output = output.unwrap();
    outcome(&output);
    let said = texts(&output).1;
    assert_eq!(said.matches("mnist: gradients over TCP (the launcher starts no MPI programs)\n").count(), 1, "{said}");
}

#[test]
fn a_library_that_was_wished_for_and_is_not_there_is_an_error() {
    let _guard = one_job();
    let Some(mut command) = two_ranks("mpirun") else { return };
    let output = command.env("MPIENV_MPI_LIB", "/nowhere/libmpi.so").output().unwrap();
    let (out, err) = texts(&output);
    assert!(!output.status.success());
    assert!(!out.contains("epoch"), "{out}");
    assert!(err.contains("/nowhere/libmpi.so"), "{err}");
    assert!(err.contains("--backend tcp does without mpi"), "{err}");
}

#[test]
fn a_library_of_another_mpi_than_the_launchers_is_an_error() {
    let _guard = one_job();
    let Some(mut command) = two_ranks("mpiexec.hydra") else { return };
    let output = command.args(["--epochs", "1"]).env("MPIENV_MPI_LIB", "libmpi.so.40").output().unwrap();
    let (out, err) = texts(&output);
    if err.contains("no mpi library could be loaded") {
        return skipped("libmpi.so.40 of Open MPI");
    }
    assert!(!output.status.success(), "{out}\n{err}");
    assert!(!out.contains("epoch"), "{out}");
    assert!(err.contains("mpi says rank 0 of 1, the environment"), "{err}");
}

/// What other systems gave with two ranks: tests/parity/expected.json.
#[derive(serde::Deserialize)]
struct Expected {
    two_ranks: Vec<Run>,
}

#[derive(serde::Deserialize)]
struct Run {
    system: String,
    test_accuracy: f64,
    loss: BTreeMap<usize, f32>,
}

#[test]
fn one_epoch_over_mpi_gives_the_losses_and_the_accuracy_of_other_systems() {
    let _guard = one_job();
    let Some(data) = inherited("DATA_PATH").map(PathBuf::from).filter(|folder| folder.is_dir()) else {
        return skipped("MNIST (set DATA_PATH)");
    };
    let parity = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity");
    let expected: Expected = serde_json::from_slice(&fs::read(parity.join("expected.json")).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let metrics = folder.path().join("metrics.jsonl");
    for launcher in LAUNCHERS {
        let Some(mut command) = two_ranks(launcher) else { continue };
        command.args(["--backend", "mpi", "--epochs", "1", "--order", "file", "--data"]).arg(&data);
        command.arg("--init").arg(parity.join("w0.f32")).arg("--metrics").arg(&metrics);
        assert_eq!(outcome(&command.output().unwrap()), "test accuracy is 0.9053", "{launcher}");
        let lines = fs::read_to_string(&metrics).unwrap();
        let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for Run { system, test_accuracy, loss } in &expected.two_ranks {
            assert_eq!(lines.last().unwrap()["test_accuracy"], *test_accuracy, "{launcher}, {system}");
            assert_eq!(loss.len(), 11);
            for (step, loss) in loss {
                let own = lines.iter().find(|line| line["step"] == *step).unwrap()["loss"].as_f64().unwrap();
                assert!((own - f64::from(*loss)).abs() <= 2e-5, "{launcher}, step {step}: {own}, {system} {loss}");
            }
        }
    }
}

/// Two ranks that train without end under a launcher, and what is done to one of them: how the job ended.
fn job_that_loses_a_rank(launcher: &str, signal: Signal) -> Option<(Option<i32>, String, Duration)> {
    // Longer than the whole test, but for a rank that hangs, which only the timeout ends.
    let timeout = if signal == Signal::STOP { "2" } else { "60" };
    let mut command = two_ranks(launcher)?;
    // Each test's ranks are found by a name of their own.
    let mark = format!("{}-{signal:?}", launcher);
    command.env("MNIST_TEST", &mark).args(["--backend", "mpi", "--epochs", "1000000", "--timeout", timeout]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut stderr = child.stderr.take().unwrap();
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let lines = std::thread::spawn(move || drop(std::io::copy(&mut stdout, &mut std::io::sink())));
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).unwrap();
        text
    });
    let begun = Instant::now();
    let rank = rank_of(&mark, 1);
    kill_process(rank.unwrap_or_else(|| panic!("{launcher}: {line}")), signal).unwrap();
    let code = child.wait().unwrap().code();
    let taken = begun.elapsed();
    lines.join().unwrap();
    Some((code, errors.join().unwrap(), taken))
}

/// The process of a rank, of the job with this mark.
fn rank_of(mark: &str, rank: u32) -> Option<Pid> {
    let wanted = [
        vec![format!("MNIST_TEST={mark}"), format!("OMPI_COMM_WORLD_RANK={rank}")],
        vec![format!("MNIST_TEST={mark}"), format!("PMI_RANK={rank}")],
    ];
    let is_wanted = |pid: i32| {
        let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let variables: Vec<&[u8]> = variables.split(|&byte| byte == 0).collect();
        wanted.iter().any(|all| all.iter().all(|one| variables.contains(&one.as_bytes())))
    };
    let processes = fs::read_dir("/proc").unwrap().map_while(Result::ok);
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(|&pid| is_wanted(pid)).and_then(Pid::from_raw)
}

fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

#[test]
fn a_killed_rank_ends_the_job_with_an_error() {
    let _guard = one_job();
    for launcher in LAUNCHERS {
        let Some((code, said, taken)) = job_that_loses_a_rank(launcher, Signal::KILL) else { continue };
        // 124 would be the test's own limit.
        assert!(code.is_some_and(|code| code != 0 && code != 124), "{launcher}: {code:?}, {said}");
        let named = format!("mnist: rank 1 on {} is lost: its connection was closed", host_name());
        assert!(said.contains(&named), "{launcher}: {said}");
        assert!(taken < Duration::from_secs(20), "{launcher}: {taken:?}, {said}");
    }
}

#[test]
fn a_rank_that_hangs_ends_the_job_after_the_timeout() {
    let _guard = one_job();
    for launcher in LAUNCHERS {
        let Some((code, said, taken)) = job_that_loses_a_rank(launcher, Signal::STOP) else { continue };
        assert!(code.is_some_and(|code| code != 0), "{launcher}: {said}");
        let named = format!("mnist: rank 1 on {} did not come within 2 s: it hangs, is cut off", host_name());
        assert!(said.contains(&named), "{launcher}: {said}");
        assert!(taken < Duration::from_secs(20), "{launcher}: {taken:?}, {said}");
    }
}

#[test]
fn a_rank_that_never_comes_to_mpi_ends_the_job_after_the_timeout() {
    let _guard = one_job();
    const NOT_RANK_1: &str = r#"[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ] && exec sleep 60; exec "$0" "$@""#;
    for launcher in LAUNCHERS {
        let Some(command) = two_ranks(launcher) else { continue };
        let mut words: Vec<_> = command.get_args().collect();
        let mnist = words.pop().unwrap();
        let mut shell = Command::new("timeout");
        shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.args(words).args(["sh", "-c", NOT_RANK_1]).arg(mnist).args(["--timeout", "2"]);
        let begun = Instant::now();
        let output = shell.output().unwrap();
        let said = texts(&output).1;
        assert!(!output.status.success(), "{launcher}: {said}");
        assert!(said.contains("mnist: MPI was not initialized within 2 s: "), "{launcher}: {said}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{launcher}: {said}");
    }
}
