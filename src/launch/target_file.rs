//! A file that a program reads, such as MLX's host file, for as long as the program runs.
//!
//! The file is in memory. No folder contains it, only processes of the same user can open
//! it, and it is gone with the process that holds it, even if that process is killed.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

use crate::error::LaunchError;
use crate::process::random;
use mpienv_core::seam::TargetFile;

/// A file that exists until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldFile {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// The descriptor of the file in memory. `None` if it is in a folder, from which it must be
    /// removed.
    memory: Option<OwnedFd>,
}

impl HeldFile {
    /// Writes a file.
    pub(crate) fn write(file: TargetFile) -> Result<HeldFile, LaunchError> {
        let TargetFile { variable, text } = file;
        let held = in_memory(&text).map(|(path, held)| (path, Some(held)));
        let written = held.or_else(|_| Ok((in_folder(variable, &text)?, None)));
        let (path, memory) =
            written.map_err(|error| LaunchError::TargetFile { variable, error })?;
        Ok(HeldFile { path, text, memory })
    }

    /// Leaves the file to the program that is about to replace this process. Returns its path, and
    /// whether it stays when that program has exited.
    pub(crate) fn hand_over(self) -> (PathBuf, bool) {
        let (path, stays) = (self.path.clone(), self.memory.is_none());
        if let Some(held) = &self.memory {
            // A descriptor that is not inherited leaves a path to nothing, and the program says so.
            let _ = fcntl_setfd(held, FdFlags::empty());
        }
        std::mem::forget(self);
        (path, stays)
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        if self.memory.is_none() {
            // Someone else may have removed it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn in_folder(variable: &str, text: &str) -> io::Result<PathBuf> {
    let name = format!("mpienv-{}-{:x}-{variable}", std::process::id(), random());
    let path = std::env::temp_dir().join(name);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
    let written = file.write_all(text.as_bytes());
    // What is left of it would only take room.
    written.inspect_err(|_| drop(fs::remove_file(&path)))?;
    Ok(path)
}

/// Scripts use lower numbers for files of their own.
const LOWEST: i32 = 100;

fn in_memory(text: &str) -> io::Result<(PathBuf, OwnedFd)> {
    let mut file = File::from(memfd_create("mpienv", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    let held = fcntl_dupfd_cloexec(&file, LOWEST)?;
    // Not /proc/self: the program's own children read it too, and need not inherit the descriptor.
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd()));
    let (own, seen) = (file.metadata()?, File::open(&path)?.metadata()?);
    // /proc may belong to another PID namespace.
    if (own.dev(), own.ino()) != (seen.dev(), seen.ino()) || !is_in_memory(&path)? {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok((path, held))
}

/// Returns whether a path in /proc leads to a file that mpienv has made in memory.
pub(crate) fn is_in_memory(path: &Path) -> io::Result<bool> {
    Ok(fs::read_link(path)?.to_string_lossy().contains("memfd:mpienv"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_a_folder_is_private_and_goes_when_it_is_dropped() {
        let path = in_folder("MLX_HOSTFILE", "[]").unwrap();
        let held = HeldFile { path: path.clone(), text: "[]".to_owned(), memory: None };
        assert_eq!(fs::read_to_string(&path).unwrap(), "[]");
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions())
                & 0o777,
            0o600
        );
        // A second one does not replace it.
        let other = in_folder("MLX_HOSTFILE", "[1]").unwrap();
        assert_ne!(other, path);
        drop(HeldFile { path: other.clone(), text: "[1]".to_owned(), memory: None });
        assert!(path.exists() && !other.exists());
        drop(held);
        assert!(!path.exists());
    }
}
