//! The identity of a job, which all its ranks know.

use std::process;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::value::port::{Port, PortRange};

/// A job, one of its steps, and how often it was restarted, as a scheduler names them. The same on
/// all ranks.
///
/// The master port is derived from it, so that two jobs, or two steps of one job, on one node do
/// not usually meet at the same port: `FIRST + (FNV-1a-64("JOB/RESTARTS") + 127 * STEP) mod SIZE`,
/// where `STEP` is the step's number, or FNV-1a-64 of its text if it is not a number, and the range
/// has SIZE ports from FIRST on. If SIZE is a multiple of 127, steps are 1 apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub id: String,
    pub step: String,
    pub restarts: u32,
}

/// How many ports are between those of two steps that follow each other: TensorFlow and others take
/// a port for each rank, from the master's on. A prime number uses all ports of a range.
const APART: u64 = 127;

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
        let apart = if range.size().is_multiple_of(APART) { 1 } else { APART };
        range.port(job.wrapping_add(step.wrapping_mul(apart)))
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
        assert_eq!(ports, [25787, 25914, 27576, 25769, 25337, 28010]);
    }

    #[test]
    fn steps_of_a_job_leave_ports_for_their_ranks_and_share_none_in_a_small_range() {
        for step in 0..78 {
            let next = u16::abs_diff(
                port("1", &step.to_string(), 0),
                port("1", &(step + 1).to_string(), 0),
            );
            assert!([127, 9873].contains(&next), "{step}: {next}");
        }
        for size in [2, 10, 127, 254, 1000] {
            let range: PortRange = format!("2001-{}", 2000 + size).parse().unwrap();
            let of_step =
                |step: u32| Job { id: "1".into(), step: step.to_string(), restarts: 0 }.port(range);
            let ports: std::collections::HashSet<_> = (0..size).map(of_step).collect();
            assert_eq!(ports.len() as u32, size);
        }
    }
}
