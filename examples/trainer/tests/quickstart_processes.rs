//! The `quickstart` program with a process for each rank: by the real mpirun, and by hand.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

const SEED: [&str; 4] = ["--lr", "0.4", "--init", "mindspore-1.x"];

#[expect(clippy::disallowed_methods, reason = "tests find programs where the shell does")]
fn inherited(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name)
}

/// Below the ephemeral range, so that no outgoing connection takes it meanwhile.
fn free_port() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed) + u16::try_from(std::process::id() % 9000).unwrap();
        let port = 21_000 + offset % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port.to_string();
        }
    }
}

fn mpirun(folder: &Path) -> Option<Command> {
    let path = inherited("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|folder| folder.join("mpirun").is_file()) {
        assert!(inherited("MPIENV_REQUIRE_ALL").is_none_or(|all| all != "1"), "mpirun is required");
        eprintln!("skipped: no mpirun");
        return None;
    }
    let mut command = Command::new("mpirun");
    command.env_clear().env("PATH", path).env("MASTER_PORT", free_port()).current_dir(folder);
    // Open MPI refuses root otherwise; containers are root.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    Some(command)
}

/// What each of `size` ranks says that nobody else starts, each with its own arguments.
fn processes(folder: &Path, size: u32, arguments: impl Fn(u32) -> Vec<&'static str>) -> Vec<Output> {
    let port = free_port();
    let start = |rank: u32| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quickstart"));
        command.env_clear().env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port).current_dir(folder);
        command.args(arguments(rank)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = (0..size).map(start).collect();
    started.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

fn threads(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quickstart"));
    command.env_clear().current_dir(folder).args(arguments).output().unwrap()
}

#[track_caller]
fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Every file below a folder, with its bytes.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else {
            found.insert(name, fs::read(path).unwrap());
        }
    }
    found
}

#[test]
fn mpirun_prints_the_published_losses_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut command) = mpirun(folder.path()) else { return };
    command.args(["-n", "8", "--oversubscribe", env!("CARGO_BIN_EXE_quickstart")]).args(SEED);
    let text = stdout(&command.output().unwrap());
    assert_eq!(text.lines().count(), 8 * 20, "{text}");
    for (moment, expected) in [
        ("epoch: 3 step: 2, loss is ", 0.367_389_977),
        ("epoch: 3 step: 3, loss is ", 0.353_831_112),
        ("epoch: 3 step: 4, loss is ", 0.331_232_995),
        ("epoch: 4 step: 1, loss is ", 0.295_515_776),
        ("epoch: 4 step: 2, loss is ", 0.244_013_429),
    ] {
        let found: Vec<f64> =
            text.lines().filter_map(|line| line.strip_prefix(moment)).map(|loss| loss.parse().unwrap()).collect();
        assert_eq!(found.len(), 8, "{moment}: {text}");
        assert!(found.iter().all(|loss: &f64| (loss - expected).abs() < 1e-6), "{moment}: {found:?}");
    }
}

#[test]
fn processes_write_the_same_bytes_as_threads() {
    for collectives in ["compat", "min"] {
        let (apart, together) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let arguments = [&SEED[..], &["--epochs", "2", "--collectives", collectives]].concat();
        let outputs = processes(apart.path(), 8, |_| arguments.clone());
        let text = stdout(&threads(together.path(), &[&["--ranks", "8"], &arguments[..]].concat()));
        for output in &outputs {
            // All ranks print the same losses, one rank's line after the other's.
            let lines: Vec<&str> = text.lines().step_by(8).collect();
            assert_eq!(stdout(output).lines().collect::<Vec<_>>(), lines);
        }
        assert!(files(apart.path()) == files(together.path()), "{collectives}");
    }
}

#[test]
fn a_process_with_other_options_is_named_by_all() {
    let folder = tempfile::tempdir().unwrap();
    let outputs = processes(folder.path(), 3, |rank| if rank == 2 { vec!["--lr", "0.3"] } else { Vec::new() });
    for output in outputs {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("rank 2"), "{said}");
        assert!(output.stdout.is_empty());
    }
    assert!(files(folder.path()).is_empty());
}

#[test]
fn a_process_that_never_comes_is_named_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    // The last one is gone at once: it only asks for help.
    let arguments = |rank| if rank == 2 { vec!["--help"] } else { vec!["--timeout", "2"] };
    for output in processes(folder.path(), 3, arguments).iter().take(2) {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(124), "{said}");
        assert!(said.contains("rank 2"), "{said}");
    }
}
