//! Each step starts from an open folder, so that no one can exchange a folder in between.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, fcntl_setfl, fstat, ftruncate, mkdirat, open, openat, statat,
    unlinkat,
};
use rustix::io::Errno;

use super::refused;

/// A folder whose files may be written need not be readable.
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Does not wait for the other end of a pipe, which is refused afterwards.
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

pub(super) struct Open(OwnedFd);

impl Open {
    pub(super) fn named(path: &Path) -> io::Result<Open> {
        Ok(Open(open(path, FOLDER, Mode::empty())?))
    }

    /// Opens a folder in this one, and creates it if needed.
    pub(super) fn folder(&self, name: &str) -> io::Result<Open> {
        match mkdirat(&self.0, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let opened = openat(&self.0, name, FOLDER | OFlags::NOFOLLOW, Mode::empty());
        opened.map(Open).map_err(|error| match self.kind(name) {
            Some(FileType::Symlink) => refused(true),
            _ => error.into(),
        })
    }

    pub(super) fn write(&self, name: &str) -> io::Result<File> {
        let file = self.regular(name, OFlags::WRONLY | OFlags::CREATE)?;
        ftruncate(&file, 0)?;
        Ok(file.into())
    }

    pub(super) fn read(&self, name: &str) -> io::Result<File> {
        self.regular(name, OFlags::RDONLY).map(File::from)
    }

    pub(super) fn new_file(&self, name: &str) -> io::Result<File> {
        self.regular(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL).map(File::from)
    }

    pub(super) fn remove(&self, name: &str) {
        // A file that does not exist need not be removed.
        let _ = unlinkat(&self.0, name, AtFlags::empty());
    }

    fn regular(&self, name: &str, how: OFlags) -> io::Result<OwnedFd> {
        match self.kind(name) {
            Some(FileType::RegularFile) | None => {}
            // Opening a device can have effects.
            Some(kind) => return Err(refused(kind == FileType::Symlink)),
        }
        let file = match openat(&self.0, name, FILE | how, Mode::from_raw_mode(0o666)) {
            // It has become a link since the check.
            Err(Errno::LOOP) => return Err(refused(true)),
            opened => opened?,
        };
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(refused(false));
        }
        // The workers inherit the flags.
        fcntl_setfl(&file, OFlags::empty())?;
        Ok(file)
    }

    fn kind(&self, name: &str) -> Option<FileType> {
        let there = statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FileType::from_raw_mode(there.st_mode))
    }
}
