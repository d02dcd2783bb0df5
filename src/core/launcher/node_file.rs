//! The file in which a batch system lists the hosts of a job, one line for each of its slots.

use std::collections::BTreeSet;

use crate::environment::Environment;
use crate::launcher::{display_variable, named_file};
use crate::value::counted::counted;

/// How much of the file is read: enough to see that there are several lines.
const MOST: u64 = 1 << 20;

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
        let text = named_file::text(path, MOST).ok()?;
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let hosts = lines.iter().collect::<BTreeSet<_>>().len();
        Some(NodeFile { lines: lines.len(), hosts })
    }

    /// Returns the variable with what its file contains.
    pub(super) fn shown(&self, environment: &Environment, name: &str) -> String {
        let (lines, hosts) = (counted(self.lines, "line"), counted(self.hosts, "host"));
        format!("{} with {lines} for {hosts}", display_variable(environment, name))
    }
}
