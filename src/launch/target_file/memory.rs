//! A file in memory, which is gone when its descriptor is closed.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

/// Scripts use lower numbers for files of their own.
const LOWEST: i32 = 100;

/// The descriptor.
#[derive(Debug)]
pub(super) struct Held(OwnedFd);

impl Held {
    /// Leaves the file to the program that replaces this process.
    pub(super) fn hand_over(&self) {
        // A descriptor that is not inherited leaves a path to nothing, and the program says so.
        let _ = fcntl_setfd(&self.0, FdFlags::empty());
    }
}

pub(super) fn write(text: &str) -> io::Result<(PathBuf, Held)> {
    let mut file = File::from(memfd_create("mpienv", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    let held = fcntl_dupfd_cloexec(&file, LOWEST)?;
    // Not /proc/self: the program's own children read it too, and need not inherit the descriptor.
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd()));
    let (own, seen) = (file.metadata()?, File::open(&path)?.metadata()?);
    // /proc may belong to another PID namespace.
    if (own.dev(), own.ino()) != (seen.dev(), seen.ino()) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok((path, Held(held)))
}
