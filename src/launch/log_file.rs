//! The files of the workers' output, below a folder that the user has named.
//!
//! The folder itself may be a symbolic link. Below it, no link is followed: in a shared folder,
//! another user could have made one, and the output would overwrite the file to which it leads.

mod open;

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::launch::error::LaunchError;

use self::open::Open;

/// What is written to find out whether a disk has room. Less than a page may fit even if nothing
/// else does.
const PROBE: [u8; 4096] = [0; 4096];

/// A folder at or below the one that the user has named.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    named: PathBuf,
    below: Vec<String>,
}

impl Folder {
    pub(super) fn new(named: &Path) -> Folder {
        Folder { named: named.to_owned(), below: Vec::new() }
    }

    pub(super) fn join(mut self, name: String) -> Folder {
        self.below.push(name);
        self
    }

    pub(super) fn path(&self) -> PathBuf {
        self.below.iter().fold(self.named.clone(), |path, name| path.join(name))
    }

    /// Creates a file, and its folders if needed. An existing regular file is truncated; anything
    /// else is left alone.
    pub(super) fn create(&self, name: &str) -> Result<File, LaunchError> {
        self.open()?.write(name).map_err(failed(self.path().join(name)))
    }

    /// Opens a file to read it.
    pub(super) fn read(&self, name: &str) -> Result<File, LaunchError> {
        self.open()?.read(name).map_err(failed(self.path().join(name)))
    }

    /// Writes a file to the folder and removes it. Creates the folder if needed.
    pub(super) fn try_room(&self) -> Result<(), LaunchError> {
        let folder = self.open()?;
        // Other nodes share the folder, and containers have the same process numbers.
        let name = format!(".mpienv-{:016x}", RandomState::new().build_hasher().finish());
        let written = folder.new_file(&name).and_then(|mut file| {
            file.write_all(&PROBE)?;
            // Some systems report only at this point that the disk is full.
            file.sync_data()
        });
        folder.remove(&name);
        written.map_err(failed(self.path()))
    }

    /// Opens the folder, and creates it and those above it if needed.
    fn open(&self) -> Result<Open, LaunchError> {
        let named = fs::create_dir_all(&self.named).and_then(|()| Open::named(&self.named));
        let mut folder = named.map_err(failed(self.named.clone()))?;
        let mut path = self.named.clone();
        for name in &self.below {
            path.push(name);
            folder = folder.folder(name).map_err(failed(path.clone()))?;
        }
        Ok(folder)
    }
}

fn failed(path: PathBuf) -> impl FnOnce(io::Error) -> LaunchError {
    |error| LaunchError::LogDir { path, error }
}

fn refused(is_link: bool) -> io::Error {
    let reason = match is_link {
        true => "it is a symbolic link, which mpienv does not follow here",
        false => "it exists and is not a regular file",
    };
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_with_the_same_number_on_different_nodes_do_not_disturb_each_other() {
        let named = tempfile::tempdir().unwrap();
        let folder = Folder::new(named.path());
        // The threads stand in for containers, in each of which mpienv is process 1.
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..50).for_each(|_| folder.try_room().unwrap()));
            }
        });
        assert_eq!(fs::read_dir(named.path()).unwrap().count(), 0);
    }
}
