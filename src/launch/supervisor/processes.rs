//! The processes of this machine, as Linux lists them.

use std::fs;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal,
};

use crate::process::stat_fields;

/// Linux's list of processes, if its IDs mean the same as in this process's system calls.
///
/// Not available if /proc is empty or shows another PID namespace, whose IDs may belong to
/// unrelated processes here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listing(());

impl Listing {
    pub(super) fn open() -> Option<Listing> {
        let own = getpid().to_string();
        if fs::read_link("/proc/self").ok()?.to_str() != Some(own.as_str()) {
            return None;
        }
        // One ID for each namespace from that of /proc down to this process's own. Old kernels do
        // not have the line.
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers
            .is_none_or(|numbers| numbers.split_whitespace().eq([own.as_str()]))
            .then_some(Listing(()))
    }

    /// Returns all processes that this process may see.
    pub(super) fn all(self) -> Vec<Process> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let names = entries.flatten().map(|entry| entry.file_name());
        let ids = names.filter_map(|name| name.to_str()?.parse().ok()).filter_map(Pid::from_raw);
        ids.filter_map(|id| self.one(id)).collect()
    }

    /// Returns the process that has this ID now, unless this process may not see it.
    pub(super) fn one(self, id: Pid) -> Option<Process> {
        let stat = fs::read(format!("/proc/{id}/stat")).ok()?;
        read(id, &String::from_utf8_lossy(&stat))
    }

    /// Returns whether a process inherited a variable. The environment of another user's process
    /// cannot be read.
    pub(super) fn has_variable(self, id: Pid, name: &str) -> bool {
        let variables = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        let mut names = variables
            .split(|byte| *byte == 0)
            .filter_map(|var| var.split(|byte| *byte == b'=').next());
        names.any(|found| found == name.as_bytes())
    }

    /// Returns whether a process ignores a signal.
    pub(super) fn ignores(self, id: Pid, signal: Signal) -> bool {
        Masks::of(&id.to_string()).ignores(signal)
    }

    /// Returns whether a process is dying: its exit has begun, or SIGKILL waits for it to run.
    pub(super) fn is_dying(self, id: Pid) -> bool {
        // Pending for its main thread, or for the process. SIGKILL is so for each thread.
        Masks::of(&id.to_string()).has(&["SigPnd", "ShdPnd"], Signal::KILL)
            || self.one(id).is_some_and(|process| process.exits || !process.lives)
    }

    /// Sends a signal to a process that was seen, but not to another one that has its ID by now.
    /// Returns false if this process may not send it.
    pub(super) fn send(self, signal: Signal, to: &Process) -> bool {
        let is_the_same = || self.one(to.id).is_some_and(|now| now.start == to.start);
        let sent = match pidfd_open(to.id, PidfdFlags::empty()) {
            // The handle refers to one process, so the check stays valid even if the process exits
            // and another one gets its ID.
            Ok(held) if is_the_same() => pidfd_send_signal(&held, signal),
            Err(Errno::SRCH) => Ok(()),
            // The kernel is older than 5.3, a sandbox forbids it, or too many files are open.
            Err(_) if is_the_same() => kill_process(to.id, signal),
            _ => Ok(()),
        };
        sent != Err(Errno::PERM)
    }
}

/// How a process handles signals, as Linux lists it. Empty on other systems.
#[derive(Debug)]
pub(super) struct Masks(String);

impl Masks {
    /// `process`: a number, or `self`.
    pub(super) fn of(process: &str) -> Masks {
        Masks(fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default())
    }

    /// Returns whether a signal is in one of the masks with these names, which have one bit for
    /// each signal.
    fn has(&self, names: &[&str], signal: Signal) -> bool {
        let mut masks = self.0.lines().filter_map(|line| line.split_once(':'));
        masks.any(|(name, mask)| {
            let mask = u64::from_str_radix(mask.trim(), 16).unwrap_or(0);
            names.contains(&name) && mask >> (signal.as_raw() - 1) & 1 == 1
        })
    }

    pub(super) fn ignores(&self, signal: Signal) -> bool {
        self.has(&["SigIgn"], signal)
    }

    /// Returns whether the process, by its first thread, does not receive a signal.
    pub(super) fn blocks(&self, signal: Signal) -> bool {
        self.has(&["SigBlk"], signal)
    }

    /// Returns whether the signal has its default effect.
    pub(super) fn leaves(&self, signal: Signal) -> bool {
        !self.has(&["SigIgn", "SigCgt"], signal)
    }
}

/// A process as it was when it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub id: Pid,
    /// `None` if the parent is in another PID namespace.
    pub parent: Option<Pid>,
    pub group: Option<Pid>,
    /// When it started, in the system's clock ticks. Together with the ID, this identifies a
    /// process forever.
    pub start: u64,
    /// Whether it has not exited. A process that has exited and has not been reaped is still
    /// listed.
    pub lives: bool,
    /// Whether its exit has begun, in which it closes its files long before it can be reaped.
    pub exits: bool,
}

/// The kernel's flag of a process whose exit has begun (`PF_EXITING`).
const EXITING: u32 = 4;

/// Parses `number (name) state parent group ... start ...`.
fn read(id: Pid, stat: &str) -> Option<Process> {
    let (_, fields) = stat_fields(stat)?;
    // For a process that is exiting, the system reports -1.
    let process = |index: usize| {
        fields.get(index)?.parse().ok().filter(|&number| number > 0).and_then(Pid::from_raw)
    };
    Some(Process {
        id,
        parent: process(1),
        group: process(2),
        start: fields.get(19)?.parse().ok()?,
        lives: !matches!(fields[0], "Z" | "X"),
        exits: fields.get(6)?.parse::<u32>().ok()? & EXITING != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_the_fields_that_follow() {
        let id = Pid::from_raw(7).unwrap();
        let stat =
            "7 (a) Z 1 (\u{fffd} b) S 5 6 6 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n";
        let process = read(id, stat).unwrap();
        assert_eq!((process.parent, process.group), (Pid::from_raw(5), Pid::from_raw(6)));
        assert_eq!((process.start, process.lives, process.exits), (4711, true, false));
    }

    #[test]
    fn a_process_that_is_just_ending_has_no_group() {
        let id = Pid::from_raw(7).unwrap();
        let process =
            read(id, "7 (a) X 0 -1 -1 0 -1 4194308 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n").unwrap();
        assert_eq!((process.parent, process.group), (None, None));
        assert!(process.exits && !process.lives);
    }

    #[test]
    fn a_killed_process_is_dying_until_it_is_reaped() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let (listing, id) = (Listing::open().unwrap(), Pid::from_child(&child));
        assert!(!listing.is_dying(id));
        child.kill().unwrap();
        // The signal may have been taken, and the exit not have begun.
        while !listing.is_dying(id) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!listing.is_dying(id));
    }

    #[test]
    fn a_number_that_another_process_has_by_now_gets_no_signal() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let listing = Listing::open().unwrap();
        let seen = listing.one(Pid::from_child(&child)).unwrap();
        listing.send(Signal::KILL, &Process { start: seen.start - 1, ..seen });
        assert!(listing.one(seen.id).unwrap().lives);
        listing.send(Signal::KILL, &seen);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
        // The process has been reaped: its ID is free, or belongs to another process.
        listing.send(Signal::KILL, &seen);
    }
}
