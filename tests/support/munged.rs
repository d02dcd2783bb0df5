//! A munged of a test's own, and ranks that authenticate with it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::clock::SLACK;
use super::copy::copy_for_all_users;
use super::root::is_root;
use super::timeout::PATIENT;
use super::tool::{clean, is_there};

/// How many seconds ranks wait that do not meet: long enough for each to reach the other on a busy
/// machine.
pub const WAIT: &str = "8";

/// A munged of this test, which is stopped when dropped.
pub struct Munged {
    pub folder: TempDir,
    pub daemon: Child,
}

impl Munged {
    /// Starts it; `None` if it is missing.
    pub fn up() -> Option<Munged> {
        Munged::with_key(7)
    }

    /// Starts one whose key consists of this byte.
    pub fn with_key(byte: u8) -> Option<Munged> {
        if !["munged", "munge", "unmunge", "setpriv"].iter().all(|program| is_there(program))
            || !is_root()
        {
            return None;
        }
        let folder = tempfile::Builder::new().prefix("munge").tempdir_in("/tmp").unwrap();
        fs::write(folder.path().join("key"), [byte; 128]).unwrap();
        fs::set_permissions(folder.path().join("key"), fs::Permissions::from_mode(0o600)).unwrap();
        // Other users may not be able to enter the folder with the command.
        copy_for_all_users(env!("CARGO_BIN_EXE_mpienv"), folder.path());
        let daemon = Munged::start(folder.path());
        Some(Munged { folder, daemon })
    }

    pub fn start(folder: &Path) -> Child {
        let file = |option: &str, name: &str| format!("--{option}={}", folder.join(name).display());
        let mut command = clean("munged");
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").args(["--foreground", "--force"]);
        command.args([file("key-file", "key"), file("socket", "socket"), file("pid-file", "pid")]);
        command.args([file("seed-file", "seed"), file("log-file", "log")]);
        let mut daemon = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        while !folder.join("pid").exists() || UnixStream::connect(folder.join("socket")).is_err() {
            if begun.elapsed() > SLACK {
                daemon.kill().unwrap();
                daemon.wait().unwrap();
                panic!("munged does not start: {:?}", fs::read_to_string(folder.join("log")));
            }
            thread::sleep(Duration::from_millis(5));
        }
        daemon
    }

    pub fn auth(&self) -> String {
        format!("munge:{}", self.socket().display())
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// `mpienv check` as a rank of two, run by a user.
    pub fn rank_as(&self, user: &str, index: u32, port: u16, timeout: &str) -> Command {
        let mut command = clean("setpriv");
        command
            .args([&format!("--reuid={user}"), "--clear-groups"])
            .arg(self.folder.path().join("mpienv"));
        command.args(["check", "--timeout", timeout]).env("MPIENV_AUTH", self.auth());
        command
            .env("RANK", index.to_string())
            .env("WORLD_SIZE", "2")
            .env("MASTER_PORT", port.to_string());
        command.env("LOCAL_RANK", index.to_string()).env("LOCAL_WORLD_SIZE", "2");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A rank that meets the other, or gets an error at once.
    pub fn rank(&self, index: u32, port: u16) -> Command {
        self.rank_as("0", index, port, PATIENT)
    }

    /// A rank that waits until its deadline.
    pub fn waiting_rank(&self, index: u32, port: u16) -> Command {
        self.rank_as("0", index, port, WAIT)
    }

    /// A credential made by `munge` itself.
    pub fn credential(&self, words: &[&str], payload: &str) -> Vec<u8> {
        let mut command = clean("munge");
        command
            .arg(format!("--socket={}", self.socket().display()))
            .args(words)
            .args(["--string", payload]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout.trim_ascii().to_vec()
    }
}

impl Drop for Munged {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}
