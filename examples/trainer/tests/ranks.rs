//! The `mnist` program with several ranks: started by itself and by the real mpirun.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

#[expect(clippy::disallowed_methods, reason = "tests find programs and data where the shell does")]
fn inherited(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name)
}

/// Says that something is missing, and fails where everything is required.
fn skipped(what: &str) {
    assert!(inherited("MPIENV_REQUIRE_ALL").is_none_or(|all| all != "1"), "{what} is required");
    eprintln!("skipped: no {what}");
}

fn mpirun() -> Option<Command> {
    let path = inherited("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|folder| folder.join("mpirun").is_file()) {
        skipped("mpirun");
        return None;
    }
    let mut command = Command::new("mpirun");
    command.env_clear().env("PATH", path);
    // Open MPI refuses root otherwise; containers are root.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    // Every test has a port of its own: they run side by side.
    command.env("MASTER_PORT", free_port().to_string());
    Some(command)
}

fn mnist_data() -> Option<PathBuf> {
    let folder = inherited("DATA_PATH").map(PathBuf::from).filter(|folder| folder.is_dir());
    if folder.is_none() {
        skipped("MNIST (set DATA_PATH)");
    }
    folder
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn mnist() -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_mnist")));
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

fn spawn(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The test accuracy of the last epoch.
fn accuracy(output: &Output) -> f64 {
    assert!(output.status.success(), "{}", said(output));
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().rfind(|line| line.contains("test accuracy")).unwrap_or_else(|| panic!("{text}"));
    line.split("test accuracy is ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap()
}

#[test]
fn two_ranks_of_32_train_as_one_of_64() {
    let two = mnist().args(["--ranks", "2", "--epochs", "2", "--quiet"]).output().unwrap();
    let one = mnist().args(["--batch-size", "64", "--epochs", "2", "--quiet"]).output().unwrap();
    assert!((accuracy(&two) - accuracy(&one)).abs() <= 0.002, "{two:?} {one:?}");
    assert!(accuracy(&one) > 0.8);
}

#[test]
fn each_rank_prints_its_own_losses_and_rank_0_the_epochs() {
    let output = mnist().args(["--ranks", "3", "--epochs", "1"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().filter(|line| line.starts_with("epoch: 0, step: 0, loss is 2.3")).count(), 3, "{text}");
    assert_eq!(text.lines().filter(|line| line.contains("test accuracy")).count(), 1, "{text}");
}

#[test]
fn mpirun_starts_two_ranks_on_real_mnist() {
    let (Some(mut command), Some(data)) = (mpirun(), mnist_data()) else { return };
    command.args(["--oversubscribe", "-n", "2", env!("CARGO_BIN_EXE_mnist"), "--epochs", "1", "--quiet", "--data"]);
    let two = command.arg(&data).output().unwrap();
    let one = mnist().args(["--batch-size", "64", "--epochs", "1", "--quiet", "--data"]).arg(&data).output().unwrap();
    assert!(accuracy(&two) >= 0.90, "{two:?}");
    assert!((accuracy(&two) - accuracy(&one)).abs() <= 0.002, "{two:?} {one:?}");
}

#[test]
fn a_port_in_use_at_rank_0_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let output = rank(0, 2, port).args(["--timeout", "5"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains(&format!("port {port} is in use on this host")), "{}", said(&output));
    assert!(output.stdout.is_empty());
}

#[test]
fn a_rank_that_never_comes_is_named_at_the_deadline_by_all_that_came() {
    let port = free_port();
    let start = Instant::now();
    let came = [0, 1, 3].map(|index| spawn(rank(index, 4, port).args(["--timeout", "2"])));
    for child in came {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(124), "{}", said(&output));
        assert!(said(&output).contains("rank 2"), "{}", said(&output));
        assert!(output.stdout.is_empty());
    }
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_master_that_is_not_there_is_named_at_the_deadline() {
    let output = rank(1, 2, free_port()).args(["--timeout", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(124));
    assert!(said(&output).contains("connection refused: nothing listens there"), "{}", said(&output));
}

#[test]
fn several_nodes_without_a_master_are_an_error_with_the_ways_to_name_one() {
    let output = mnist().env("RANK", "0").env("WORLD_SIZE", "2").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("MPIENV_MASTER_ADDR=HOST"), "{}", said(&output));
    assert!(output.stdout.is_empty());
}

#[test]
fn a_rank_that_is_killed_ends_the_others_and_is_named() {
    let port = free_port();
    let mut ranks = [0, 1].map(|index| spawn(rank(index, 2, port).args(["--epochs", "100000", "--quiet"])));
    // Until the first epoch is done, both are connected.
    let mut first_line = String::new();
    let mut stdout = std::io::BufReader::new(ranks[0].stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut first_line).unwrap();
    assert!(first_line.starts_with("epoch: 0"), "{first_line}");
    let reader = std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    let [zero, mut one] = ranks;
    one.kill().unwrap();
    one.wait().unwrap();
    let output = zero.wait_with_output().unwrap();
    reader.join().unwrap().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("rank 1 on "), "{}", said(&output));
}

#[test]
fn a_rank_that_fails_gives_the_program_its_exit_code() {
    let output = mnist().args(["--ranks", "2", "--lr", "1e38", "--epochs", "1", "--quiet"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
}

/// How many processes live that have the mark among their variables.
fn living(mark: &str) -> usize {
    let wanted = format!("MARK={mark}");
    let folders = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let lives = |folder: &PathBuf| {
        let vars = std::fs::read(folder.join("environ")).unwrap_or_default();
        let stat = std::fs::read_to_string(folder.join("stat")).unwrap_or_default();
        let ended = stat.rsplit(") ").next().unwrap().starts_with(['Z', 'X']);
        !ended && vars.split(|byte| *byte == 0).any(|var| var == wanted.as_bytes())
    };
    folders.filter(lives).count()
}

#[test]
fn ranks_that_the_program_started_end_with_it() {
    for (signal, mark) in [("TERM", "term"), ("INT", "int"), ("KILL", "kill")] {
        let mut command = mnist();
        command.env("MARK", mark).args(["--ranks", "2", "--epochs", "100000", "--quiet"]);
        let mut child = spawn(&mut command);
        let mut first_line = String::new();
        let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut stdout, &mut first_line).unwrap();
        assert!(first_line.starts_with("epoch: 0"), "{first_line}");
        assert!(living(mark) >= 3);
        assert!(Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap().success());
        let reader = std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        assert!(!child.wait().unwrap().success());
        let deadline = Instant::now() + Duration::from_secs(10);
        while living(mark) > 0 {
            assert!(Instant::now() < deadline, "ranks outlive SIG{signal}");
            std::thread::sleep(Duration::from_millis(10));
        }
        reader.join().unwrap().unwrap();
    }
}
