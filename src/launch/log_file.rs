//! The file of a worker's output.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Begins a file, and its folder if there is none; one of that name is emptied, what is not a regular file is left alone.
pub(super) fn create(path: &Path) -> io::Result<File> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    match fs::metadata(path) {
        // A pipe would wait for its reader, and a device cannot hold a log.
        Ok(there) if !there.is_file() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it exists and is not a regular file"))
        }
        _ => File::create(path),
    }
}
