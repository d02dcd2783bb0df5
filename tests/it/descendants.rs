//! `mpienv launch` and `Launch`: all descendants of a worker are stopped with the job, and no other
//! processes are.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::clock::SLACK;
use crate::support::processes::{all, command_line, state, until};
use crate::support::tool::{clean, is_there};
use mpienv::{ClusterInfo, Launch};

/// Ways in which a worker leaves its process group; `SLEEP` stands for a long-running command.
const WAYS: [(&str, &str); 6] = [
    ("a session of its own", "setsid SLEEP &"),
    ("a group of its own", "setsid sh -c 'SLEEP; true' &"),
    ("a shell with job control", "bash -c 'set -m; SLEEP & exit 0' &"),
    ("a helper that makes a group", "timeout 3000 SLEEP &"),
    ("a daemon", "(setsid sh -c 'setsid SLEEP & exit 0' &) &"),
    ("a daemon of a daemon", "setsid -f setsid -f SLEEP"),
];

/// A command whose sleep time is unique: no other test uses it, nor does the same test of another
/// checkout on this machine.
fn sleep(test: u32, way: usize) -> String {
    format!("sleep {}.{way}{test}", 1000 + std::process::id())
}

fn launch(workers: u32, options: &[&str], script: &str) -> Command {
    let mut command = clean("mpienv");
    command
        .args(["launch", "--nproc-per-node", &workers.to_string()])
        .args(options)
        .args(["--", "sh", "-c", script]);
    command
}

/// Whether the programs for these ways exist here.
fn has_ways() -> bool {
    ["setsid", "timeout", "bash"].into_iter().all(is_there)
}

/// The number of running processes with this command.
fn count(command: &str) -> usize {
    all().iter().filter(|folder| command_line(folder).trim_end() == command).count()
}

/// Killed when dropped, even if the test fails.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .args(["-s", "KILL", "--", &format!("-{}", self.0.id())])
            .stderr(Stdio::null())
            .status();
        let _ = self.0.wait();
    }
}

/// A shell in a separate process group that is not a worker.
fn other(script: &str) -> Ended {
    let mut command = Command::new("sh");
    Ended(command.args(["-c", script]).process_group(0).stdout(Stdio::null()).spawn().unwrap())
}

#[test]
fn what_left_its_group_ends_with_the_worker_that_fails_or_ends_well() {
    if !has_ways() {
        return;
    }
    for (number, (name, way)) in WAYS.into_iter().enumerate() {
        for code in [0, 3] {
            let sleep = sleep(1, number);
            let script = format!("{}\nsleep 0.3; exit {code}", way.replace("SLEEP", &sleep));
            let start = Instant::now();
            let output = launch(2, &[], &script).output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{name}: {output:?}");
            assert!(start.elapsed() < SLACK, "{name}: {:?}", start.elapsed());
            assert_eq!(count(&sleep), 0, "{name}");
        }
    }
}

#[test]
fn what_left_its_group_ends_when_another_rank_fails() {
    if !has_ways() {
        return;
    }
    for (number, (name, way)) in WAYS.into_iter().enumerate() {
        let sleep = sleep(2, number);
        let script = format!(
            "test $RANK = 1 && {{ sleep 0.4; exit 4; }}; {}\nwait; sleep 3000",
            way.replace("SLEEP", &sleep)
        );
        assert_eq!(launch(2, &[], &script).output().unwrap().status.code(), Some(4), "{name}");
        assert_eq!(count(&sleep), 0, "{name}");
    }
}

#[test]
fn what_left_its_group_ends_with_a_launch_that_is_killed() {
    if !has_ways() {
        return;
    }
    for (number, (name, way)) in WAYS.into_iter().enumerate() {
        let sleep = sleep(3, number);
        let script = format!("{}\nwait; sleep 3000", way.replace("SLEEP", &sleep));
        let mut child = launch(2, &[], &script).stdout(Stdio::null()).spawn().unwrap();
        until(name, || count(&sleep) == 2);
        child.kill().unwrap();
        child.wait().unwrap();
        until(name, || count(&sleep) == 0);
    }
}

#[test]
fn what_dropped_its_environment_ends_too() {
    if !has_ways() {
        return;
    }
    let sleep = sleep(4, 0);
    let script = format!("env -i setsid -f env -i {sleep}; sleep 0.3; exit 3");
    assert_eq!(launch(2, &[], &script).output().unwrap().status.code(), Some(3));
    assert_eq!(count(&sleep), 0);
    // The worker itself left, and has a child when the launch is killed.
    let script = format!("exec env -i sh -c 'timeout 3000 env -i {sleep}; true'");
    let output = launch(2, &[], &format!("test $RANK = 0 && {{ sleep 0.4; exit 5; }}; {script}"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(count(&sleep), 0);
}

#[test]
fn what_left_its_group_is_asked_before_it_is_killed() {
    let sleep = sleep(5, 0);
    let folder = tempfile::tempdir().unwrap();
    let [file, up] = ["asked", "up"].map(|name| folder.path().join(name));
    let trap = format!("trap 'echo asked > {}; exit 0' TERM; : > {}", file.display(), up.display());
    let script = format!("{trap}; while :; do {sleep} & wait; done");
    let script = format!(
        "setsid -f sh -c \"{script}\"; until test -e {}; do sleep 0.01; done; exit 3",
        up.display()
    );
    assert_eq!(launch(1, &["--grace", "3000"], &script).output().unwrap().status.code(), Some(3));
    assert_eq!(fs::read_to_string(&file).unwrap(), "asked\n");
    // A process that ignores SIGTERM gets the grace period.
    fs::remove_file(&up).unwrap();
    let script = format!(
        "setsid -f sh -c \"trap '' TERM; : > {0}; {sleep}; true\"; until test -e {0}; do sleep 0.01; done; exit 3",
        up.display()
    );
    let start = Instant::now();
    assert_eq!(launch(1, &["--grace", "0.5"], &script).output().unwrap().status.code(), Some(3));
    assert!(start.elapsed() >= Duration::from_millis(500) && start.elapsed() < SLACK);
    assert_eq!(count(&sleep), 0);
}

#[test]
fn what_the_worker_left_and_ended_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("left");
    let script = format!(
        "for i in 1 2 3 4 5; do setsid -f sh -c 'echo $$ >> {}'; done; sleep 3000",
        file.display()
    );
    let child = Ended(launch(1, &[], &script).process_group(0).spawn().unwrap());
    let left = || {
        fs::read_to_string(&file).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    until("all have run", || left().len() == 5);
    // A process that no other waits for stays in the list.
    until("all were waited for", || {
        left().iter().all(|id| state(&Path::new("/proc").join(id)).is_none())
    });
    drop(child);
}

#[test]
fn a_process_that_another_gave_a_workers_environment_is_not_the_workers() {
    let sleep = sleep(6, 0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("variables").display().to_string();
    // A job that a scheduler starts after a worker has submitted it.
    let job = format!(
        "until test -e {file}.all; do sleep 0.01; done; \
                       env $(cat {file}) sh -c ': > {file}.runs; exec {sleep}'; true"
    );
    let scheduler = other(&job);
    let script = format!(
        "env | grep ^MPIENV_LAUNCH_ > {file} && : > {file}.all; \
                          until test -e {file}.runs; do sleep 0.01; done; setsid -f {sleep}"
    );
    assert_eq!(launch(1, &[], &script).output().unwrap().status.code(), Some(0));
    assert_eq!(count(&sleep), 1);
    // The same job, when the launch is killed.
    for name in ["", ".all", ".runs"] {
        fs::remove_file(format!("{file}{name}")).unwrap();
    }
    drop(scheduler);
    let _scheduler = other(&job);
    let mut child = launch(1, &[], &(script + "; sleep 3000")).spawn().unwrap();
    until("both run", || count(&sleep) == 2);
    child.kill().unwrap();
    child.wait().unwrap();
    until("one is ended", || count(&sleep) == 1);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(count(&sleep), 1);
}

#[test]
fn a_programs_other_children_are_its_own() {
    for adopts in [false, true] {
        let sleep = [0, 1, 2].map(|way| sleep(7 + u32::from(adopts), way));
        // One child, and one process that a child has left behind.
        let mut before = other(&format!("setsid -f {}; exec {}", sleep[0], sleep[1]));
        until("both run", || count(&sleep[0]) + count(&sleep[1]) == 2);
        let info = ClusterInfo::from_vars([("PATH", "/bin")]).unwrap();
        let launch = Launch::new(&info, 2).unwrap();
        let launch = launch.subreaper(adopts);
        let during = std::cell::OnceCell::new();
        launch
            .run(|_| {
                during.get_or_init(|| other("sleep 0.2; exit 6"));
                let mut command = Command::new("sh");
                command.args(["-c", &format!("setsid -f {}; sleep 0.5", sleep[2])]);
                command
            })
            .unwrap();
        assert_eq!(sleep.each_ref().map(|sleep| count(sleep)), [1, 1, 0]);
        assert!(before.0.try_wait().unwrap().is_none());
        assert_eq!(during.into_inner().unwrap().0.wait().unwrap().code(), Some(6));
        let left =
            all().into_iter().find(|folder| command_line(folder).trim_end() == sleep[0]).unwrap();
        let number = left.file_name().unwrap().to_owned();
        assert!(Command::new("kill").arg(number).status().unwrap().success());
    }
}

#[test]
fn a_launch_in_a_launch_leaves_nothing_behind_when_the_outer_is_killed() {
    if !has_ways() {
        return;
    }
    let sleep = sleep(9, 0);
    let inner = format!(
        "exec mpienv launch --nproc-per-node 2 -- sh -c 'setsid -f {sleep}; timeout 3000 {sleep}; true'"
    );
    let mut child = launch(1, &[], &inner).stdout(Stdio::null()).spawn().unwrap();
    until("all run", || count(&sleep) == 4);
    child.kill().unwrap();
    child.wait().unwrap();
    until("all are gone", || count(&sleep) == 0);
}

#[test]
fn a_rank_of_a_launch_within_a_launch_is_asked_to_end_once() {
    // It records each signal and continues for a while: a second signal would kill a trainer before
    // it writes its checkpoint.
    const RANK: &str = r#"trap 'echo TERM >>"$NOTED"' TERM; : >"$NOTED"; n=0
        while [ $n -lt 60000 ] && ! [ -s "$NOTED" ]; do sleep 0.05; n=$((n + 1)); done; sleep 1; sleep 1; exit 3"#;
    const LAUNCH: [&str; 6] = ["launch", "--nproc-per-node", "1", "--grace", "3000", "--"];
    let folder = tempfile::tempdir().unwrap();
    for within in [&[][..], &[&["mpienv"][..], &LAUNCH].concat()] {
        let noted = folder.path().join(within.len().to_string());
        let mut command = clean("mpienv");
        command.args([&LAUNCH[..], within, &["sh", "-c", RANK]].concat());
        command.env("NOTED", &noted).stderr(Stdio::null()).process_group(0);
        let mut launch = Ended(command.spawn().unwrap());
        until("the rank runs", || noted.exists());
        let asked =
            Command::new("kill").args(["-s", "TERM", &launch.0.id().to_string()]).status().unwrap();
        assert!(asked.success());
        assert_eq!(launch.0.wait().unwrap().code(), Some(3));
        assert_eq!(fs::read_to_string(&noted).unwrap(), "TERM\n", "{within:?}");
    }
}
