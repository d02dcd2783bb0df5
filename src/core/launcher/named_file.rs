//! Files that variables name: JSON, and the hosts of a batch job, one line for each of its slots.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::{fs, io};

use crate::environment::Environment;
use crate::error::Error;
use crate::launcher::spec::Marker;
use crate::value::json::{Json, MOST_BYTES};
use crate::value::printable::counted;

/// Opens the first `most` bytes of a file.
pub(crate) fn open(path: impl AsRef<Path>, most: u64) -> io::Result<io::Take<File>> {
    // Opening a named pipe would block until it has a writer, and a device may never end.
    if !fs::metadata(&path)?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    Ok(File::open(path)?.take(most))
}

fn text(path: &OsStr, most: u64) -> io::Result<String> {
    let mut text = String::new();
    open(path, most)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Reads JSON from the file that a variable names.
pub(super) fn json(marker: Marker<'_>, variable: &str) -> Result<Json, Error> {
    let path = marker.environment.text(variable).unwrap_or_default();
    parsed(path.as_ref()).map_err(|why| marker.refuse(format!("the file {why}"), variable, path))
}

/// Reads JSON from a file, or returns why that fails: "is not JSON", for example.
pub(super) fn parsed(path: &Path) -> Result<Json, String> {
    // One byte more shows that the file is too long.
    let text = text(path.as_os_str(), MOST_BYTES as u64 + 1);
    let text = text.map_err(|error| format!("cannot be read: {error}"))?;
    Json::parse(&text).map_err(|error| format!("is {error}"))
}

/// How much of a file is read that has lines: enough to see that there are several.
pub(crate) const MOST: u64 = 1 << 20;

/// How many lines the file has, and how many different ones.
pub(super) struct NodeFile {
    pub lines: usize,
    pub hosts: usize,
}

impl NodeFile {
    /// Reads the file that a variable names, or returns `None` if it cannot be read. The file belongs
    /// to the host on which this process runs, so the environment must be this process's.
    pub(super) fn read(environment: &Environment, name: &str) -> Option<NodeFile> {
        let path = environment.get(name).filter(|_| environment.is_current())?;
        let text = text(path, MOST).ok()?;
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let hosts = lines.iter().collect::<BTreeSet<_>>().len();
        Some(NodeFile { lines: lines.len(), hosts })
    }

    /// Returns the variable with what its file contains.
    pub(super) fn shown(&self, environment: &Environment, name: &str) -> String {
        let (lines, hosts) = (counted(self.lines, "line"), counted(self.hosts, "host"));
        format!("{} with {lines} for {hosts}", environment.shown(name))
    }
}
