//! Who lives, as Linux lists it.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::clock::SLACK;

/// The folders of all processes that live.
#[must_use]
pub fn all() -> Vec<PathBuf> {
    let folders = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    folders.filter(|folder| state(folder).is_some_and(|state| !state.starts_with(['Z', 'X']))).collect()
}

/// What `/proc/PID/stat` says after the name: state, parent, group, ...
#[must_use]
pub fn state(folder: &Path) -> Option<String> {
    let stat = fs::read(folder.join("stat")).ok()?;
    String::from_utf8_lossy(&stat).rsplit_once(") ").map(|(_, fields)| fields.to_owned())
}

/// The words of a process, a blank after each.
#[must_use]
pub fn command_line(folder: &Path) -> String {
    fs::read_to_string(folder.join("cmdline")).unwrap_or_default().replace('\0', " ")
}

/// Waits until something is so, or fails with what it is.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + 3 * SLACK;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
