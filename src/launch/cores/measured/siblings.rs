//! The cores to which hardware threads belong.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::launch::topology::Cpus;

/// Returns the number of cores that these processors belong to. A processor whose core is not known
/// counts as one.
///
/// A core is known by the first of its hardware threads, which it has even if the process may use
/// only another one.
pub(super) fn cores(cpus: &Cpus, sys: &Path) -> u32 {
    let folder = sys.join("devices/system/cpu");
    // On a large host, this saves hundreds of files.
    let is_off = fs::read_to_string(folder.join("smt/active")).is_ok_and(|text| text.trim() == "0");
    let core = |cpu: u32| {
        let list = folder.join(format!("cpu{cpu}/topology/thread_siblings_list"));
        let siblings = fs::read_to_string(list).ok().and_then(|list| list.trim().parse().ok());
        siblings.and_then(|siblings: Cpus| siblings.first()).unwrap_or(cpu)
    };
    let count = match is_off {
        true => cpus.len(),
        false => cpus.iter().map(core).collect::<BTreeSet<_>>().len(),
    };
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that describes hardware threads by their lists of siblings.
    fn host(siblings: &[&str], smt: Option<&str>) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let folder = sys.path().join("devices/system/cpu");
        for (cpu, list) in siblings.iter().enumerate() {
            let topology = folder.join(format!("cpu{cpu}/topology"));
            fs::create_dir_all(&topology).unwrap();
            fs::write(topology.join("thread_siblings_list"), format!("{list}\n")).unwrap();
        }
        if let Some(active) = smt {
            fs::create_dir_all(folder.join("smt")).unwrap();
            fs::write(folder.join("smt/active"), format!("{active}\n")).unwrap();
        }
        sys
    }

    #[test]
    fn hardware_threads_of_one_core_count_once() {
        let far = ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"];
        let near = ["0-1", "0-1", "2-3", "2-3"];
        let single = ["0", "1", "2", "3"];
        for (siblings, smt, cpus, expected) in [
            (&far[..], Some("1"), &[0, 1, 2, 3, 4, 5, 6, 7][..], 4),
            (&far, None, &[0, 4], 1),
            (&far, None, &[4, 5], 2),
            (&near, Some("1"), &[0, 1, 2], 2),
            (&near, Some("1"), &[1, 3], 2),
            (&single, None, &[0, 1, 2, 3], 4),
            (&single, Some("0"), &[0, 2], 2),
            // Nothing is known.
            (&[], None, &[0, 1, 2], 3),
            (&["?", ""], None, &[0, 1], 2),
        ] {
            let sys = host(siblings, smt);
            assert_eq!(
                cores(&cpus.iter().copied().collect(), sys.path()),
                expected,
                "{siblings:?} {smt:?} {cpus:?}"
            );
        }
    }
}
