//! The files of the workers' output, below a folder that the user has named.
//!
//! The folder itself may be a symbolic link. Below it, no link is followed: in a shared folder,
//! another user could have made one, and the output would overwrite the file to which it leads. Each
//! step starts from an open folder, so that no one can exchange a folder in between. A file of
//! another user is refused too.
//!
//! Two launches that wrote to one file would destroy each other's lines. Each therefore locks the
//! files of its own workers: the nodes of a job may share a folder. The system removes the locks
//! however the launch ends.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, fcntl_setfl, fstat, mkdirat, open, openat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error::LaunchError;
use crate::process::random;

/// What is written to find out whether a disk has room. Less than a page may fit even if nothing
/// else does.
const PROBE: [u8; 4096] = [0; 4096];

/// A folder at or below the one that the user has named.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    named: PathBuf,
    below: Vec<String>,
    /// The locks on the files of workers. The clones of a folder, and what is below them, share
    /// them.
    locks: Arc<Mutex<Vec<File>>>,
}

impl Folder {
    pub(super) fn new(named: &Path) -> Folder {
        Folder { named: named.to_owned(), below: Vec::new(), locks: Arc::default() }
    }

    pub(super) fn join(mut self, name: String) -> Folder {
        self.below.push(name);
        self
    }

    pub(super) fn path(&self) -> PathBuf {
        self.below.iter().fold(self.named.clone(), |path, name| path.join(name))
    }

    /// Locks a file of this folder, which is created if needed, until the last clone is dropped.
    ///
    /// # Errors
    /// Another launch has locked it.
    pub(super) fn lock(&self, name: &str) -> Result<(), LaunchError> {
        // A lock belongs to what was opened. Workers do not inherit this one, so that what a worker
        // leaves behind does not keep it.
        let file = self.open()?.regular(name, OFlags::WRONLY | OFlags::CREATE);
        let file = file.map_err(failed(self.path().join(name)))?;
        // Other errors count for nothing: some file systems have no locks.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            let busy = io::Error::new(io::ErrorKind::ResourceBusy, "another launch writes there");
            return Err(failed(self.path())(busy));
        }
        self.locks.lock().unwrap_or_else(PoisonError::into_inner).push(file);
        Ok(())
    }

    /// Creates a file, and its folders if needed. An existing regular file is truncated; anything
    /// else is left alone.
    ///
    /// Each write appends: after another process has truncated the file, no gap remains.
    pub(super) fn create(&self, name: &str) -> Result<File, LaunchError> {
        let file = self.open()?.regular(name, OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND);
        let file = file.and_then(|file| file.set_len(0).map(|()| file));
        file.map_err(failed(self.path().join(name)))
    }

    /// Opens a file to read it.
    pub(super) fn read(&self, name: &str) -> Result<File, LaunchError> {
        self.open()?.regular(name, OFlags::RDONLY).map_err(failed(self.path().join(name)))
    }

    /// Writes a file to the folder and removes it. Creates the folder if needed.
    pub(super) fn try_room(&self) -> Result<(), LaunchError> {
        let folder = self.open()?;
        let name = probe_name();
        let file = folder.regular(&name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL);
        let written = file.and_then(|mut file| {
            file.write_all(&PROBE)?;
            // Some systems report only at this point that the disk is full.
            file.sync_data()
        });
        // A file that does not exist need not be removed.
        let _ = unlinkat(&folder.0, &*name, AtFlags::empty());
        written.map_err(failed(self.path()))
    }

    /// Opens the folder, and creates it and those above it if needed.
    fn open(&self) -> Result<Open, LaunchError> {
        let named = fs::create_dir_all(&self.named)
            .and_then(|()| Ok(Open(open(&self.named, FOLDER, Mode::empty())?)));
        let mut folder = named.map_err(failed(self.named.clone()))?;
        let mut path = self.named.clone();
        for name in &self.below {
            path.push(name);
            folder = folder.folder(name).map_err(failed(path.clone()))?;
        }
        Ok(folder)
    }
}

/// The name of a file that is removed at once. Other nodes share the folder, and containers have the
/// same process numbers.
fn probe_name() -> String {
    format!(".mpienv-{:016x}", random())
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

/// A folder whose files may be written need not be readable.
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Does not wait for the other end of a pipe, which is refused afterwards.
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// An open folder.
struct Open(OwnedFd);

impl Open {
    /// Opens a folder in this one, and creates it if needed.
    fn folder(&self, name: &str) -> io::Result<Open> {
        let made = mkdirat(&self.0, name, Mode::from_raw_mode(0o777));
        match made {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let opened = openat(&self.0, name, FOLDER | OFlags::NOFOLLOW, Mode::empty());
        let opened = opened.map_err(|error| match self.kind(name) {
            Some(FileType::Symlink) => refused(true),
            _ => error.into(),
        })?;
        let owner = fstat(&opened)?.st_uid;
        let folder = Open(opened);
        if made.is_err() {
            folder.check_owner(owner)?;
        }
        Ok(folder)
    }

    /// Opens a regular file in this folder.
    fn regular(&self, name: &str, how: OFlags) -> io::Result<File> {
        let kind = self.kind(name);
        match kind {
            Some(FileType::RegularFile) | None => {}
            // Opening a device can have effects.
            Some(kind) => return Err(refused(kind == FileType::Symlink)),
        }
        let file = match openat(&self.0, name, FILE | how, Mode::from_raw_mode(0o666)) {
            // It has become a link since the check.
            Err(Errno::LOOP) => return Err(refused(true)),
            opened => opened?,
        };
        let opened = fstat(&file)?;
        if FileType::from_raw_mode(opened.st_mode) != FileType::RegularFile {
            return Err(refused(false));
        }
        if kind.is_some() {
            self.check_owner(opened.st_uid)?;
        }
        if how.contains(OFlags::CREATE) && opened.st_nlink > 1 {
            let reason = "it has another name (a hard link), whose content would be replaced too";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        // The workers inherit the flags.
        fcntl_setfl(&file, how & OFlags::APPEND)?;
        Ok(file.into())
    }

    /// Refuses a file in this folder, or the folder itself, that was there before and has another
    /// owner than a new file gets here. On a network's disk, that may be another one than the
    /// process has.
    fn check_owner(&self, owner: u32) -> io::Result<()> {
        let is_own = || -> io::Result<bool> {
            let (name, how) = (probe_name(), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL);
            let probe = self.regular(&name, how)?;
            unlinkat(&self.0, &*name, AtFlags::empty())?;
            Ok(fstat(&probe)?.st_uid == owner)
        };
        if owner == geteuid().as_raw() || is_own().unwrap_or(false) {
            return Ok(());
        }
        let reason = "it belongs to another user, who could read or change the output";
        Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
    }

    fn kind(&self, name: &str) -> Option<FileType> {
        let there = statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FileType::from_raw_mode(there.st_mode))
    }
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

    #[test]
    fn a_lock_is_gone_once_the_last_clone_of_its_folder_is() {
        let named = tempfile::tempdir().unwrap();
        let of_rank = |rank: u32| Folder::new(named.path()).join(format!("rank.{rank}"));
        let first = of_rank(0);
        first.lock("stdout").unwrap();
        let clone = first.clone();
        drop(first);
        let error = of_rank(0).lock("stdout").unwrap_err().to_string();
        assert!(error.contains("rank.0\": another launch writes there; wait"), "{error}");
        // Another node of the job.
        of_rank(1).lock("stdout").unwrap();
        drop(clone);
        of_rank(0).lock("stdout").unwrap();
    }

    #[test]
    fn a_file_that_is_truncated_while_it_is_written_gets_no_gap() {
        let named = tempfile::tempdir().unwrap();
        let folder = Folder::new(named.path());
        let mut first = folder.create("stdout").unwrap();
        first.write_all(b"first\n").unwrap();
        drop(folder.create("stdout").unwrap());
        first.write_all(b"second\n").unwrap();
        assert_eq!(fs::read(named.path().join("stdout")).unwrap(), b"second\n");
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let named = tempfile::tempdir().unwrap();
        let folder = Folder::new(named.path());
        drop(folder.create("stdout").unwrap());
        drop(folder.create("stdout").unwrap());
        // Only root can give a file away.
        if std::os::unix::fs::chown(named.path().join("stdout"), Some(65534), None).is_ok() {
            let error = folder.create("stdout").unwrap_err().to_string();
            assert!(error.contains("it belongs to another user, who could read"), "{error}");
        }
    }
}
