//! Files that are there whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes a file under a temporary name beside `path`, then gives it its name: who opens it sees the one before or
/// all of the new one, whenever the program or the machine stops.
///
/// # Errors
/// When it cannot be written; a file of that name is then as before.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = beside(path, &format!(".{}.part", std::process::id()));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        finish(&file, &temporary, path)
    });
    if written.is_err() {
        // Of two faults the first is told.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Gives the file that was written under the name `temporary` the name `path`, when its bytes are on the disk.
///
/// # Errors
/// When it cannot; the file then still has the temporary name.
pub fn finish(file: &File, temporary: &Path, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    fs::rename(temporary, path)?;
    // The name is on the disk when its folder is.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// The path with something after its last name.
#[must_use]
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.svg");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.svg");
        // A folder of that name with something in it cannot be replaced.
        fs::create_dir_all(path.join("b")).unwrap();
        assert!(write(&path, b"one").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write(&folder.path().join("none/a.svg"), b"one").is_err());
    }
}
