//! A program that mpienv asks something. It may hang, or leave others behind that keep its pipes
//! open, as a script does: at the deadline all of them are killed, and nothing waits for them.

use std::io::{self, PipeReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process_group};

/// How often to look whether a program has finished.
const PAUSE: Duration = Duration::from_millis(2);
/// How long a program that was killed may take to end. One that waits for a disk takes longer, and
/// is left.
const FAREWELL: Duration = Duration::from_millis(200);
/// How much of what a program prints is kept of each stream, in bytes.
const MOST: usize = 1 << 20;

/// What a program printed, and how it ended.
#[derive(Debug)]
pub struct Printed {
    /// `None` if it was still running at the deadline.
    pub status: Option<ExitStatus>,
    /// What it had printed on stdout.
    pub stdout: Vec<u8>,
    /// What it had printed on stderr.
    pub stderr: Vec<u8>,
}

/// A program that is running, in a process group of its own.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    stdout: PipeReader,
    stderr: PipeReader,
    printed: Printed,
}

impl Helper {
    /// Starts a program that gets this input, of at most a page, because pipes take so much before
    /// anything reads them.
    ///
    /// # Errors
    /// The program is missing, or the system starts no more processes.
    pub fn start(command: &mut Command, input: &[u8]) -> io::Result<Helper> {
        let [(stdout, to_stdout), (stderr, to_stderr)] = [io::pipe()?, io::pipe()?];
        ioctl_fionbio(&stdout, true)?;
        ioctl_fionbio(&stderr, true)?;
        command.stdin(Stdio::piped()).stdout(to_stdout).stderr(to_stderr);
        let mut child = command.process_group(0).spawn()?;
        // Closes the write ends here, which the command would keep.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(mut stdin) = child.stdin.take() {
            // If it exits early, its own message says why.
            let _ = stdin.write_all(input);
        }
        let printed = Printed { status: None, stdout: Vec::new(), stderr: Vec::new() };
        Ok(Helper { child, stdout, stderr, printed })
    }

    /// Waits until the program has exited, and kills it and what it has started at the deadline.
    pub fn finish(mut self, deadline: Instant) -> Printed {
        loop {
            // Before what it printed last is read.
            let ended = self.child.try_wait();
            read(&mut self.stdout, &mut self.printed.stdout);
            read(&mut self.stderr, &mut self.printed.stderr);
            match ended {
                Ok(None) if Instant::now() < deadline => thread::sleep(PAUSE),
                Ok(None) => {
                    self.kill();
                    return self.printed;
                }
                // If this process ignores SIGCHLD, an error: its ID may be a stranger's by now.
                ended => return Printed { status: ended.ok().flatten(), ..self.printed },
            }
        }
    }

    /// Kills the program, which was not waited for, so that its group is still its own.
    fn kill(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let until = Instant::now() + FAREWELL;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(PAUSE);
        }
    }
}

/// Reads until nothing is left for now.
fn read(pipe: &mut impl Read, kept: &mut Vec<u8>) {
    let mut buffer = [0; 4096];
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                let room = MOST.saturating_sub(kept.len());
                kept.extend(&buffer[..length.min(room)]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, input: &[u8], within: Duration) -> Printed {
        let mut shell = Command::new("sh");
        let helper = Helper::start(shell.args(["-c", script]), input).unwrap();
        helper.finish(Instant::now() + within)
    }

    #[test]
    fn a_program_gets_its_input_and_more_than_a_pipe_holds_comes_back() {
        let script = "cat; head -c 200000 /dev/zero; echo why >&2; exit 3";
        let answer = shell(script, b"hello", Duration::from_secs(600));
        assert_eq!(answer.status.and_then(|status| status.code()), Some(3));
        assert!(answer.stdout.starts_with(b"hello") && answer.stdout.len() == 200_005);
        assert_eq!(answer.stderr, b"why\n");
    }

    #[test]
    fn what_a_script_leaves_behind_does_not_keep_its_answer_back() {
        let answer = shell("sleep 3000 & echo $!", b"", Duration::from_secs(600));
        assert!(answer.status.is_some_and(|status| status.success()));
        let left = String::from_utf8(answer.stdout).unwrap();
        Command::new("kill").arg(left.trim()).status().unwrap();
    }

    #[test]
    fn at_the_deadline_a_script_and_what_it_has_started_are_killed() {
        let begun = Instant::now();
        let answer = shell("sleep 3000 & echo $!; wait", b"", Duration::from_millis(500));
        assert!(answer.status.is_none() && begun.elapsed() < Duration::from_secs(600));
        let left = String::from_utf8(answer.stdout).unwrap();
        // Whatever is the parent of orphans here may not have waited for it yet.
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", left.trim()));
        while state().is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(begun.elapsed() < Duration::from_secs(600), "{left} lives");
            thread::sleep(PAUSE);
        }
    }
}
