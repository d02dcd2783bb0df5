//! Programs in places where other users can run them.

use std::fs;
use std::path::{Path, PathBuf};

use super::tool::clean;

/// A copy of a program that every user can run.
pub fn copy_for_all_users(program: &str, folder: &Path) -> PathBuf {
    let copy = folder.join(Path::new(program).file_name().unwrap());
    // Another process writes it: a file that this process writes stays open in processes that other
    // tests start at the same time, and no process can run a file that is open for writing.
    assert!(clean("cp").arg(program).arg(&copy).status().unwrap().success());
    for path in [folder, &copy] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    copy
}
