//! Ends the workers when their launcher is killed and cannot.
//!
//! A shell reads the workers' process groups from a pipe whose other end only the launcher has.
//! The system closes that end however the launcher ends, and the shell kills the groups that are
//! left, and on Linux whatever else descends from the workers. Linux's parent-death signal would not
//! reach a worker's children, and has to be set by the worker itself: see `end_with_parent`.
//!
//! Where there is no `sh` there is no guard: such containers end with their first process. Where
//! there is no `grep` or `tr` it ends the groups and who still has a parent among them.

use std::fmt::Display;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::Pid;

const SCRIPT: &str = include_str!("guard.sh");

/// The shell, and the launcher's end of the pipe.
#[derive(Debug)]
pub(super) struct Guard {
    shell: Option<(Child, ChildStdin)>,
}

impl Guard {
    /// A guard of all that inherits the variable `mark` and whose orphans come to one of `above`.
    pub(super) fn new(mark: &str, above: &[Pid]) -> Guard {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT]).current_dir("/").env_clear().process_group(0);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let shell = child.ok().and_then(|mut child| child.stdin.take().map(|stdin| (child, stdin)));
        let mut guard = Guard { shell };
        guard.say("mark", mark);
        guard.say("above", above.iter().map(Pid::to_string).collect::<Vec<_>>().join(" "));
        guard
    }

    /// The shell's process.
    pub(super) fn process(&self) -> Option<Pid> {
        self.shell.as_ref().map(|(shell, _)| Pid::from_child(shell))
    }

    /// From now on this group does not outlive the launcher.
    pub(super) fn watch(&mut self, group: Pid) {
        self.say("+", group);
    }

    /// The group is no more: its number may become another's.
    pub(super) fn forget(&mut self, group: Pid) {
        self.say("-", group);
    }

    fn say(&mut self, sign: &str, what: impl Display) {
        if let Some((_, stdin)) = &mut self.shell {
            // A guard that somebody killed guards nothing more; the job goes on.
            let _ = stdin.write_all(format!("{sign} {what}\n").as_bytes());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The workers and all that is theirs have been ended.
        self.say(".", "");
        if let Some((mut shell, stdin)) = self.shell.take() {
            drop(stdin);
            let _ = shell.wait();
        }
    }
}
