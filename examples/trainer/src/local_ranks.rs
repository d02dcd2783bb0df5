//! Starts ranks of a program on this machine, and ends all when one fails.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

/// How often to look whether a rank has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Variables to set, with their values.
pub type Variables = Vec<(OsString, OsString)>;

/// Runs `program` with `arguments` once with each of `ranks`' variables; returns the exit code of the first that
/// fails, or 0.
///
/// When one fails all others are killed. None outlives the call.
///
/// # Errors
/// When a rank cannot be started; those started before are killed.
pub fn run(program: &OsStr, arguments: &[OsString], ranks: Vec<Variables>) -> io::Result<u8> {
    let mut running = Running(Vec::with_capacity(ranks.len()));
    for variables in ranks {
        let mut command = Command::new(program);
        command.args(arguments).envs(variables).stdin(Stdio::null());
        running.0.push(command.spawn()?);
    }
    while !running.0.is_empty() {
        let mut index = 0;
        while let Some(child) = running.0.get_mut(index) {
            match child.try_wait()? {
                Some(status) if status.success() => drop(running.0.swap_remove(index)),
                Some(status) => return Ok(code(status)),
                None => index += 1,
            }
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(0)
}

/// Processes that are killed when they are dropped.
struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may just have ended by itself, which is as well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The exit code of a rank that failed; for one killed by a signal, as shells have it.
fn code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return u8::try_from(128 + signal).unwrap_or(1);
    }
    status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Instant;

    /// Runs a line of shell on ranks that have RANK and FOLDER set.
    fn sh(line: &str, ranks: u32, folder: &std::path::Path) -> io::Result<u8> {
        let variables = |rank: u32| {
            vec![
                ("RANK".into(), rank.to_string().into()),
                ("FOLDER".into(), folder.as_os_str().to_owned()),
            ]
        };
        run(
            OsStr::new("sh"),
            &["-c".into(), line.into()],
            (0..ranks).map(variables).collect(),
        )
    }

    #[test]
    fn every_rank_runs_with_its_variables() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            sh("echo $RANK > $FOLDER/$RANK", 3, folder.path()).unwrap(),
            0
        );
        for rank in 0..3 {
            assert_eq!(
                fs::read_to_string(folder.path().join(rank.to_string())).unwrap(),
                format!("{rank}\n")
            );
        }
    }

    #[test]
    fn one_that_fails_ends_all_and_gives_its_code() {
        let folder = tempfile::tempdir().unwrap();
        let start = Instant::now();
        assert_eq!(
            sh("[ $RANK != 1 ] || exit 7; exec sleep 30", 3, folder.path()).unwrap(),
            7
        );
        assert_eq!(
            sh(
                "[ $RANK != 1 ] || kill -9 $$; exec sleep 30",
                3,
                folder.path()
            )
            .unwrap(),
            137
        );
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        assert!(run(OsStr::new("/no/such/program"), &[], vec![Vec::new()]).is_err());
    }
}
