//! Without the feature `launch`, and on other systems: checks each path before it is used.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::refused;

pub(super) struct Open(PathBuf);

impl Open {
    pub(super) fn named(path: &Path) -> io::Result<Open> {
        Ok(Open(path.to_owned()))
    }

    /// Opens a folder in this one, and creates it if needed.
    pub(super) fn folder(&self, name: &str) -> io::Result<Open> {
        let path = self.0.join(name);
        match fs::symlink_metadata(&path) {
            Ok(there) if there.is_symlink() => Err(refused(true)),
            _ => fs::create_dir_all(&path).map(|()| Open(path)),
        }
    }

    pub(super) fn write(&self, name: &str) -> io::Result<File> {
        self.checked(name).and_then(File::create)
    }

    pub(super) fn read(&self, name: &str) -> io::Result<File> {
        self.checked(name).and_then(File::open)
    }

    pub(super) fn new_file(&self, name: &str) -> io::Result<File> {
        File::create_new(self.0.join(name))
    }

    pub(super) fn remove(&self, name: &str) {
        // A file that does not exist need not be removed.
        let _ = fs::remove_file(self.0.join(name));
    }

    fn checked(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        match fs::symlink_metadata(&path) {
            // Opening a pipe would block until it has a reader, and a device cannot hold a log.
            Ok(there) if !there.is_file() => Err(refused(there.is_symlink())),
            _ => Ok(path),
        }
    }
}
