//! Programs where other users can run them.

use std::fs;
use std::path::{Path, PathBuf};

use super::tool::clean;

/// A copy of a program that every user can run.
pub fn copy_for_all_users(program: &str, folder: &Path) -> PathBuf {
    let copy = folder.join(Path::new(program).file_name().unwrap());
    // Another process writes it: what this one writes stays open in the processes that other tests start meanwhile, and
    // no process can run a file that is open for writing.
    assert!(clean("cp").arg(program).arg(&copy).status().unwrap().success());
    for path in [folder, &copy] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    copy
}
