//! Running processes, as Linux lists them.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::clock::SLACK;

/// The `/proc` folders of all running processes.
#[must_use]
pub fn all() -> Vec<PathBuf> {
    let folders = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    folders
        .filter(|folder| state(folder).is_some_and(|state| !state.starts_with(['Z', 'X'])))
        .collect()
}

/// The fields of `/proc/PID/stat` after the name: state, parent, group, ...
#[must_use]
pub fn state(folder: &Path) -> Option<String> {
    let stat = fs::read(folder.join("stat")).ok()?;
    String::from_utf8_lossy(&stat).rsplit_once(") ").map(|(_, fields)| fields.to_owned())
}

/// The command line of a process, with a space after each word.
#[must_use]
pub fn command_line(folder: &Path) -> String {
    fs::read_to_string(folder.join("cmdline")).unwrap_or_default().replace('\0', " ")
}

/// Waits until a condition is true; if it never is, fails with its description.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SLACK;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
