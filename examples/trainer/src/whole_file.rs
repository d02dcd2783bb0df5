//! Files that are there whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes a file under a temporary name, makes sure that it is on the disk, and only then gives it its name.
///
/// Missing folders are made. A file of that name is replaced.
///
/// # Errors
/// When the system cannot; the error names the file, and nothing is left of it.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(named)?;
    let temporary = temporary(path);
    let written = put(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = written {
        // What is wrong has been found already.
        let _ = fs::remove_file(&temporary);
        return Err(named(error));
    }
    // The new name is on the disk once the folder is.
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(named)
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// A name that no other process uses, in the same folder: a file cannot be renamed from one disk to another.
fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.part", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/file");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named_and_not_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        fs::create_dir_all(path.join("inner")).unwrap();
        let error = write(&path, b"x").unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
