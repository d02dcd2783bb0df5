//! The watchdog of `mpienv launch`, which is killed or stopped itself.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::support::launched::{launch, living, piped, signal};
use crate::support::processes::{all, command_line, state, until};
use crate::support::tool::is_there;

/// Workers that no signal ends, with a process that has left their group.
const IGNORES: &str =
    "trap '' INT TERM HUP; (setsid sleep 600 &); echo up; while :; do sleep 600; done";

/// Starts a launch, and waits until its worker is running.
fn started(mark: &str) -> Child {
    let mut child = piped(&mut launch(mark, 1, &["--max-restarts", "0"], IGNORES));
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "[0] up\n");
    child
}

/// The fields of all children of a launch, with their state first.
fn children(launch: &Child) -> Vec<(PathBuf, String)> {
    let folders = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let fields = folders.filter_map(|folder| state(&folder).map(|fields| (folder, fields)));
    let own = launch.id().to_string();
    fields.filter(|(_, fields)| fields.split(' ').nth(1) == Some(&own)).collect()
}

/// The watchdog of a launch, once it is running.
fn watchdog(launch: &Child) -> Option<PathBuf> {
    let own = launch.id().to_string();
    let is_its = |folder: &PathBuf| {
        let parent = state(folder).and_then(|fields| fields.split(' ').nth(1).map(str::to_owned));
        parent.as_ref() == Some(&own) && command_line(folder).starts_with("mpienv-watchdog ")
    };
    all().into_iter().find(is_its)
}

fn send(name: &str, process: &Path) {
    let id = process.file_name().unwrap();
    assert!(Command::new("kill").args(["-s", name]).arg(id).status().unwrap().success());
}

/// Waits for another watchdog than this one, which has received everything from the launch.
#[track_caller]
fn until_another(launch: &Child, before: &Path) -> PathBuf {
    until("there is another watchdog", || watchdog(launch).is_some_and(|now| now != *before));
    let own = PathBuf::from(format!("/proc/{}", launch.id()));
    until("the launch waits", || state(&own).is_some_and(|fields| fields.starts_with('S')));
    assert!(
        children(launch).iter().all(|(_, fields)| !fields.starts_with('Z')),
        "{:?}",
        children(launch)
    );
    watchdog(launch).unwrap()
}

#[test]
fn a_watchdog_that_is_killed_is_replaced_each_time_and_the_last_one_does_its_duty() {
    let mut child = started("renewed");
    let mut now = watchdog(&child).unwrap();
    for _ in 0..3 {
        send("KILL", &now);
        now = until_another(&child, &now);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    until("nothing is left", || living("renewed").is_empty());
    until("the watchdog has exited", || !now.exists());
}

#[test]
fn top_and_pgrep_show_the_watchdog_by_its_name() {
    let mut child = started("named-dog");
    let now = watchdog(&child).unwrap();
    let name = || std::fs::read_to_string(now.join("comm")).unwrap_or_default();
    until("it has its name", || name() == "mpienv-watchdog\n");
    child.kill().unwrap();
    child.wait().unwrap();
    until("nothing is left", || living("named-dog").is_empty());
}

#[test]
fn a_watchdog_that_is_stopped_goes_on() {
    let mut child = started("stopped-dog");
    let now = watchdog(&child).unwrap();
    send("STOP", &now);
    until("it goes on", || state(&now).is_some_and(|fields| fields.starts_with('S')));
    child.kill().unwrap();
    child.wait().unwrap();
    until("nothing is left", || living("stopped-dog").is_empty());
}

#[test]
fn a_watchdog_that_cannot_be_replaced_is_reported_once_and_replaced_later() {
    if !is_there("prlimit") {
        return;
    }
    let mut child = started("no-dog");
    let id = child.id();
    let limit = |files: &str| {
        let (process, files) = (format!("--pid={id}"), format!("--nofile={files}:4096"));
        assert!(Command::new("prlimit").args([process, files]).status().unwrap().success());
    };
    limit("3");
    let before = watchdog(&child).unwrap();
    send("KILL", &before);
    let mut said = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    stderr.read_line(&mut said).unwrap();
    assert!(
        said.starts_with("mpienv: cannot start the watchdog: ") && said.contains("(os error 24)"),
        "{said}"
    );
    // Long enough for another try.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    limit("1024");
    until_another(&child, &before);
    signal("KILL", &child);
    child.wait().unwrap();
    let mut rest = String::new();
    stderr.read_line(&mut rest).unwrap();
    assert_eq!(rest, "");
    until("nothing is left", || living("no-dog").is_empty());
}
