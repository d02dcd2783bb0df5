//! Files that are there whole or not at all, whenever the process or the machine ends.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What a file's name ends with while it is being written.
pub const UNFINISHED: &str = ".tmp";

/// Writes a file under a temporary name beside it, then puts it in place of what was there. On disk when it returns.
///
/// # Errors
/// As the system says; what was there is then as before.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = beside(path, UNFINISHED);
    let written = File::create(&unfinished).and_then(|mut file| {
        file.write_all(bytes)?;
        finish(&file, &unfinished, path)
    });
    if let Err(error) = written {
        // What is half written is of no use; if it cannot be removed, the first error tells more.
        let _ = fs::remove_file(&unfinished);
        return Err(error);
    }
    Ok(())
}

/// Gives the file that was written under the name `unfinished` the name `path`, when its bytes are on the disk.
///
/// # Errors
/// When it cannot; the file then still has the first name.
pub fn finish(file: &File, unfinished: &Path, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    fs::rename(unfinished, path)?;
    sync_folder(path)
}

/// The path with something after its last name.
#[must_use]
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// A new name is on disk only once its folder is.
#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Elsewhere a folder cannot be opened, and the system keeps names itself.
#[cfg(not(unix))]
fn sync_folder(_path: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write(&path, b"long before").unwrap();
        write(&path, b"now").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"now");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_put_in_place_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::create_dir(&path).unwrap();
        assert!(write(&path, b"now").is_err());
        assert!(path.is_dir());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
