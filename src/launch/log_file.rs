//! The file of a worker's output.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Creates a file, and its folder if needed. An existing regular file is truncated; anything else is left alone.
pub(super) fn create(path: &Path) -> io::Result<File> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    match fs::metadata(path) {
        // Opening a pipe would block until it has a reader, and a device cannot hold a log.
        Ok(there) if !there.is_file() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it exists and is not a regular file"))
        }
        _ => File::create(path),
    }
}
