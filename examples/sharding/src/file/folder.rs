//! Folders of checkpoints, each locked for one running job.
//!
//! The operating system releases the lock when the process exits for any reason.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::error::Error;
use crate::file::naming;

/// The locked file, which names its owner. A run removes the file at its end unless it is killed.
const NAME: &str = ".lock";

/// The number of checkpoints that a run keeps.
pub const KEPT: usize = 5;

/// The longest owner text shown in an error, in bytes.
const LONGEST_OWNER: u64 = 200;

/// Keeps other jobs out of a folder until it is dropped.
#[derive(Debug)]
pub struct FolderLock {
    path: PathBuf,
    /// `None` if the file system does not support locks.
    file: Option<File>,
}

impl FolderLock {
    /// Locks a folder, creating it if it is missing. If the file system does not support locks, a
    /// warning is passed to `remark` and the folder is used unlocked.
    ///
    /// # Errors
    /// If another run uses the folder: `option` names it, and can name another one. What `unusable`
    /// makes of it, if the folder cannot be created or locked.
    pub fn take(
        folder: &Path,
        option: &str,
        unusable: impl Fn(io::Error) -> Error,
        remark: &mut dyn FnMut(&str),
    ) -> Result<FolderLock, Error> {
        fs::create_dir_all(folder).map_err(|error| unusable(naming(folder)(error)))?;
        let path = folder.join(NAME);
        let wrong = |error| unusable(naming(&path)(error));
        loop {
            let mut file = open(&path).map_err(wrong)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let (folder, owner) = (folder.display(), owner(&mut file));
                    let text = format!("{folder} is in use by another run ({owner})");
                    let text = format!("{text}: wait until it finishes, or name another {option}");
                    return Err(Error::input(text));
                }
                Err(TryLockError::Error(error)) if has_no_locks(&error) => {
                    let folder = folder.display();
                    remark(&format!(
                        "{folder} cannot be locked ({error}): see that no other run uses it"
                    ));
                    return Ok(FolderLock { path, file: None });
                }
                Err(TryLockError::Error(error)) => return Err(wrong(error)),
            }
            // The previous run may have removed the file after it was opened here, so the locked
            // file may be unlinked.
            if !is_at(&file, &path).map_err(wrong)? {
                continue;
            }
            let host = mpienv::host_name().unwrap_or_else(|| "this host".to_owned());
            let text = format!("process {} on {host}\n", std::process::id());
            file.set_len(0).and_then(|()| file.write_all(text.as_bytes())).map_err(wrong)?;
            return Ok(FolderLock { path, file: Some(file) });
        }
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // While the lock is held, no other run uses the file. A leftover file does no harm.
        if self.file.is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Lists the files in whose names `parse` finds something, in its order.
pub fn files<M: Ord>(
    folder: &Path,
    parse: impl Fn(&str) -> Option<M>,
) -> io::Result<Vec<(M, PathBuf)>> {
    let file = |entry: fs::DirEntry| Some((parse(entry.file_name().to_str()?)?, entry.path()));
    let all: io::Result<Vec<fs::DirEntry>> = fs::read_dir(folder).and_then(Iterator::collect);
    let mut files: Vec<_> = all.map_err(naming(folder))?.into_iter().filter_map(file).collect();
    files.sort();
    Ok(files)
}

/// Removes files. Another process may have removed them already.
pub fn remove(paths: impl IntoIterator<Item = PathBuf>) -> io::Result<()> {
    paths.into_iter().try_for_each(|path| match fs::remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(naming(&path)),
    })
}

/// Returns the owner named in the file, made safe to print on a terminal.
fn owner(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // A process that has just taken the lock may not have written its name yet.
    let _ = file.take(LONGEST_OWNER).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let line: String =
        text.lines().next().unwrap_or_default().chars().filter(|char| !char.is_control()).collect();
    if line.is_empty() { "a process that has just started".to_owned() } else { line }
}

fn open(path: &Path) -> io::Result<File> {
    // Do not follow a symbolic link, and do not block on a FIFO without a reader.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    File::options().read(true).write(true).create(true).custom_flags(flags).open(path)
}

/// Returns whether the file system has no locks, as some network file systems do.
fn has_no_locks(error: &io::Error) -> bool {
    let known = [Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOLCK].map(Errno::raw_os_error);
    error.kind() == io::ErrorKind::Unsupported
        || error.raw_os_error().is_some_and(|errno| known.contains(&errno))
}

/// Returns whether `path` still names the open file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((own.dev(), own.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(folder: &Path) -> Result<FolderLock, String> {
        FolderLock::take(folder, "folder", Error::input, &mut |text| panic!("{text}"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_folder_is_had_once_and_again_after_that() {
        let folder = tempfile::tempdir().unwrap();
        let lock = take(folder.path()).unwrap();
        let error = take(folder.path()).unwrap_err();
        let owner = format!(
            "{} is in use by another run (process {} on ",
            folder.path().display(),
            std::process::id()
        );
        assert!(error.starts_with(&owner), "{error}");
        drop(lock);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        drop(take(folder.path()).unwrap());
    }

    #[test]
    fn what_a_killed_run_left_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(NAME), "process 4711 on a host with a long name\n").unwrap();
        let _lock = take(folder.path()).unwrap();
        let text = fs::read_to_string(folder.path().join(NAME)).unwrap();
        assert!(text.starts_with(&format!("process {} on ", std::process::id())), "{text}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn many_that_come_and_go_never_have_it_at_the_same_time() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let (folder, inside, had) =
            (tempfile::tempdir().unwrap(), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while had.load(Ordering::SeqCst) < 500 {
                        if let Ok(_lock) =
                            FolderLock::take(folder.path(), "folder", Error::input, &mut |_| ())
                        {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            had.fetch_add(1, Ordering::SeqCst);
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_link_under_the_locks_name_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("precious");
        fs::write(&elsewhere, "kept").unwrap();
        std::os::unix::fs::symlink(&elsewhere, folder.path().join(NAME)).unwrap();
        assert!(
            take(folder.path())
                .unwrap_err()
                .starts_with(&folder.path().join(NAME).display().to_string())
        );
        assert_eq!(fs::read_to_string(elsewhere).unwrap(), "kept");
    }
}
