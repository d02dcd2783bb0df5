//! The identity of a job, which all its ranks know.

use std::process;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::value::port::{Port, PortRange};

/// A job, one of its steps, and how often it was restarted, as a scheduler names them. The same on
/// all ranks.
///
/// The master port is derived from it, so that two jobs, or two steps of one job, on one node do
/// not usually meet at the same port: `FIRST + (FNV-1a-64("JOB/RESTARTS") + STEP) mod SIZE`, where
/// `STEP` is the step's number, or FNV-1a-64 of its text if it is not a number, and the range has
/// SIZE ports from FIRST on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub id: String,
    pub step: String,
    pub restarts: u32,
}

impl Job {
    pub(crate) fn new(id: String) -> Job {
        Job { id, step: String::new(), restarts: 0 }
    }

    /// Returns the port of the range that is derived from the identity.
    pub(crate) fn port(&self, range: PortRange) -> Port {
        let job = fnv_1a(format!("{}/{}", self.id, self.restarts).as_bytes());
        let step = match self.step.as_str() {
            "" => 0,
            step => step.parse().unwrap_or_else(|_| fnv_1a(step.as_bytes())),
        };
        range.port(job.wrapping_add(step))
    }
}

/// Returns a port for a process that is a whole job. It stays the same as long as the process
/// lives. Another such process on this machine gets it only once in 10,000 times with the default
/// range.
pub(crate) fn port_of_this_process(range: PortRange) -> Port {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    range.port(*NUMBER.get_or_init(|| {
        // Two containers may share a network, and each has a process with ID 1.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        fnv_1a(format!("{}/{}", process::id(), now.as_nanos()).as_bytes())
    }))
}

/// FNV-1a with 64 bits: short, published, and the same in every version of this crate.
pub(crate) fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(id: &str, step: &str, restarts: u32) -> u16 {
        Job { id: id.into(), step: step.into(), restarts }.port(PortRange::default()).get()
    }

    #[test]
    fn ports_never_change_from_version_to_version() {
        let vectors = [
            ("1", "0", 0),
            ("1", "1", 0),
            ("1", "0", 1),
            ("4711", "12", 0),
            ("ƒ2WdHmxq", "", 0),
            ("77", "batch", 3),
        ];
        let ports = vectors.map(|(id, step, restarts)| port(id, step, restarts));
        assert_eq!(ports, [25787, 25788, 27576, 24257, 25337, 24064]);
    }
}
