//! A file that a variable names.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};

use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::launcher::spec::Marker;
use crate::value::json::{Json, MOST_BYTES};

/// Reads the first `most` bytes of a file.
pub(super) fn text(path: &OsStr, most: u64) -> io::Result<String> {
    // Opening a named pipe would block until it has a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let mut text = String::new();
    File::open(path)?.take(most).read_to_string(&mut text)?;
    Ok(text)
}

/// Reads JSON from the file that a variable names.
pub(super) fn json(
    environment: &Environment,
    marker: Marker,
    variable: &str,
) -> Result<Json, Error> {
    let path = environment.text(variable).unwrap_or_default();
    let malformed = |why: String| marker.launcher.refuse(Reason::Malformed(why), variable, path);
    // One byte more shows that the file is too long.
    let text = text(path.as_ref(), MOST_BYTES as u64 + 1);
    let text = text.map_err(|error| malformed(format!("the file cannot be read: {error}")))?;
    Json::parse(&text).map_err(|error| malformed(format!("the file is {error}")))
}
