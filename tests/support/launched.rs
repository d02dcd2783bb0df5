//! Jobs of `mpienv launch`, whose processes can be distinguished from those of other jobs.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::port::free_port;
use super::processes::{all, command_line};
use super::timeout::PATIENT;
use super::tool::clean;

/// A mark that the same test of another checkout on this machine does not have. No other test of
/// this process may use it.
fn own(mark: &str) -> String {
    format!("{mark}.{}", std::process::id())
}

/// `mpienv launch` with a shell script; a variable marks its processes.
#[must_use]
pub fn launch(mark: &str, workers: u32, options: &[&str], script: &str) -> Command {
    let mut command = clean("mpienv");
    command
        .env("MARK", own(mark))
        .args(["launch", "--nproc-per-node", &workers.to_string()])
        .args(options);
    command.args(["--", "sh", "-c", script]);
    command
}

/// `mpienv launch` of two workers on one of two nodes; both nodes are this machine.
#[must_use]
pub fn node(mark: &str, rank: u32, port: u16, options: &[&str], script: &str) -> Command {
    node_of(2, mark, rank, port, options, script)
}

/// `mpienv launch` of any number of workers on one of two nodes.
#[must_use]
pub fn node_of(
    workers: u32,
    mark: &str,
    rank: u32,
    port: u16,
    options: &[&str],
    script: &str,
) -> Command {
    let (rank, port) = (rank.to_string(), port.to_string());
    let place = [
        "--node-rank",
        &rank,
        "--nnodes",
        "2",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        &port,
    ];
    // A busy machine may not hear from a node for a long time.
    let patience =
        if options.contains(&"--node-timeout") { &[][..] } else { &["--node-timeout", PATIENT] };
    launch(mark, workers, &[&place[..], patience, options].concat(), script)
}

/// A master port; the launches use the port below it.
#[must_use]
pub fn master_port() -> u16 {
    let mut ports = [free_port(), free_port()];
    while ports[0] + 1 != ports[1] {
        ports = [ports[1], free_port()];
    }
    ports[1]
}

/// Starts a command without input; the test reads its output.
pub fn piped(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The command lines of the running processes that have the mark.
#[must_use]
pub fn living(mark: &str) -> Vec<String> {
    let wanted = format!("MARK={}", own(mark));
    let vars = |folder: &PathBuf| fs::read(folder.join("environ")).unwrap_or_default();
    let has_mark = |folder: &PathBuf| {
        vars(folder).split(|byte| *byte == 0).any(|var| var == wanted.as_bytes())
    };
    all().iter().filter(|folder| has_mark(folder)).map(|folder| command_line(folder)).collect()
}

/// Sends a signal by its name.
pub fn signal(name: &str, child: &Child) {
    assert!(
        Command::new("kill")
            .args(["-s", name, &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
}

/// The output of a program.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The lines that several workers have written, sorted.
#[must_use]
pub fn sorted(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = text(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}
