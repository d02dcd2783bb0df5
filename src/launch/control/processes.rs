//! The processes of this machine, as Linux lists them; elsewhere nobody is asked.

use std::fs;
use std::io;

use rustix::process::Pid;

/// A process as it was when it was looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub id: Pid,
    /// None where another container has it.
    pub parent: Option<Pid>,
    pub group: Option<Pid>,
    /// When it started, in the system's own count; with the number it names one process for ever.
    pub start: u64,
    /// Whether it has not ended: who has, and was not waited for, is still listed.
    pub lives: bool,
}

/// All that this process may see.
pub(super) fn all() -> io::Result<Vec<Process>> {
    if cfg!(not(target_os = "linux")) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(id) = entry?.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        found.extend(one(id));
    }
    Ok(found)
}

/// The process of this number; none where there is none, or where this process may not see it.
pub(super) fn one(id: Pid) -> Option<Process> {
    let stat = fs::read(format!("/proc/{id}/stat")).ok()?;
    read(id, &String::from_utf8_lossy(&stat))
}

/// `number (name) state parent group ... start ...`; the name may hold anything.
fn read(id: Pid, stat: &str) -> Option<Process> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<_> = fields.split(' ').collect();
    // Of one that is just ending the system says -1.
    let process = |index: usize| fields.get(index)?.parse().ok().filter(|&number| number > 0).and_then(Pid::from_raw);
    Some(Process {
        id,
        parent: process(1),
        group: process(2),
        start: fields.get(19)?.parse().ok()?,
        lives: !matches!(fields[0], "Z" | "X"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_the_fields_that_follow() {
        let id = Pid::from_raw(7).unwrap();
        let stat = "7 (a) Z 1 (\u{fffd} b) S 5 6 6 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n";
        let process = read(id, stat).unwrap();
        assert_eq!((process.parent, process.group), (Pid::from_raw(5), Pid::from_raw(6)));
        assert_eq!((process.start, process.lives), (4711, true));
    }

    #[test]
    fn a_process_that_is_just_ending_has_no_group() {
        let id = Pid::from_raw(7).unwrap();
        let process = read(id, "7 (a) X 0 -1 -1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n").unwrap();
        assert_eq!((process.parent, process.group, process.lives), (None, None, false));
    }
}
