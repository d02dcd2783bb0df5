//! Workers on one machine: their places, and how they exit.

use crate::support::clock::SLACK;
use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use mpienv::{ClusterInfo, ErrorKind, Launch, LaunchError, Output};

fn alone() -> ClusterInfo {
    ClusterInfo::from_vars([("PATH", "/bin")]).unwrap()
}

fn run(workers: u32, grace: u64, script: &str) -> Result<(), LaunchError> {
    Launch::new(&alone(), workers).unwrap().grace(Duration::from_millis(grace)).run(|_| {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    })
}

#[test]
fn every_worker_has_its_own_rank() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    run(
        3,
        0,
        &format!("echo $WORLD_SIZE $LOCAL_WORLD_SIZE $LOCAL_RANK $MASTER_PORT > {path}/$RANK"),
    )
    .unwrap();
    let texts: Vec<_> = (0..3)
        .map(|rank| std::fs::read_to_string(folder.path().join(rank.to_string())).unwrap())
        .collect();
    let port = texts[0].trim().rsplit(' ').next().unwrap().to_owned();
    for (rank, text) in texts.iter().enumerate() {
        assert_eq!(text, &format!("3 3 {rank} {port}\n"));
    }
}

#[test]
fn when_one_fails_the_others_end_and_it_is_named() {
    let start = Instant::now();
    let error = run(3, 100, "test $RANK = 1 && exit 7; exec sleep 3000").unwrap_err();
    assert!(start.elapsed() < SLACK);
    assert!(error.to_string().starts_with("rank 1 on "), "{error}");
    assert!(matches!(error.kind(), ErrorKind::Failed(status) if status.code() == Some(7)));
}

/// Listens as soon as no concurrent test probes that port.
fn listen(port: u16) -> TcpListener {
    let deadline = Instant::now() + SLACK;
    loop {
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < deadline, "{port}: {error}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn two_jobs_on_one_machine_have_two_ports() {
    let ports: Vec<_> = (0..2)
        .map(|_| {
            let listener = std::cell::OnceCell::new();
            Launch::new(&alone(), 1)
                .unwrap()
                .run(|worker| {
                    // Rank 0 of the first job listens while the second job starts.
                    let port = worker.master_port().get();
                    listener.get_or_init(|| listen(port));
                    Command::new("true")
                })
                .unwrap();
            listener.into_inner().unwrap()
        })
        .collect();
    assert_ne!(ports[0].local_addr().unwrap(), ports[1].local_addr().unwrap());
}

#[test]
fn a_program_that_is_not_there_is_an_error_with_the_rank() {
    let error =
        Launch::new(&alone(), 2).unwrap().run(|_| Command::new("no-such-program")).unwrap_err();
    assert!(error.to_string().starts_with("cannot start rank 0: "), "{error}");
}

#[test]
fn the_report_has_the_first_failures_last_lines_if_output_is_captured() {
    let folder = tempfile::tempdir().unwrap();
    for output in [Output::Prefixed, Output::LogDir(folder.path().to_owned())] {
        let error = Launch::new(&alone(), 1).unwrap().output(output).run(|_| {
            let mut command = Command::new("sh");
            command.args(["-c", "printf 'a\\n\\n\\033[1mb\\n10%%\\r20%%' >&2; exit 1"]);
            command
        });
        let LaunchError::Failed { stderr: Some(stderr), .. } = error.unwrap_err() else {
            panic!("no tail")
        };
        assert!(stderr.starts_with("a | [1mb | 20%"), "{stderr}");
    }
}

#[cfg(all(feature = "launch", unix))]
#[test]
fn after_a_launch_signals_do_again_what_they_did() {
    // In a separate process, because this one must survive.
    let test = std::env::current_exe().unwrap();
    let mut command = Command::new(test);
    command.args(["--exact", "launch::launches_and_then_signals_itself"]).env("SIGNAL_MYSELF", "1");
    let status = command.output().unwrap().status;
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15), "{status}");
}

#[cfg(all(feature = "launch", unix))]
#[test]
fn launches_and_then_signals_itself() {
    run(1, 0, "exit 0").unwrap();
    run(1, 0, "exit 0").unwrap();
    #[expect(clippy::disallowed_methods, reason = "the test above asks its own copy")]
    let is_asked = std::env::var_os("SIGNAL_MYSELF").is_some();
    if is_asked {
        Command::new("kill").arg(std::process::id().to_string()).status().unwrap();
        std::thread::sleep(Duration::from_secs(5));
    }
}
