//! Programs that read and write regular files alone, and notice what has changed in them.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, mkfifoat};

use super::clock::SLACK;

/// The exit code and stderr of a command that must not hang.
#[track_caller]
pub fn ended(mut command: Command) -> (Option<i32>, String) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > SLACK {
            child.kill().unwrap();
            panic!("{command:?} hangs");
        }
        thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Makes each kind of file that is not regular under `name`, the file that `command` reads in a
/// folder. The program must refuse it at once and leave it as it is.
#[track_caller]
pub fn assert_reads_only_regular_files(name: &str, command: fn(&Path) -> Command) {
    type Make = fn(&Path);
    let kinds: [(&str, Make); 5] = [
        ("it is a pipe and not a regular file", |path| make_pipe(path)),
        ("it is a socket and not a regular file", |path| drop(UnixListener::bind(path).unwrap())),
        ("it is a folder and not a regular file", |path| fs::create_dir(path).unwrap()),
        ("it is a device and not a regular file", |path| symlink("/dev/zero", path).unwrap()),
        ("it is a symbolic link to nowhere, which does not exist", |path| {
            symlink("nowhere", path).unwrap()
        }),
    ];
    for (text, make) in kinds {
        let folder = tempfile::tempdir().unwrap();
        make(&folder.path().join(name));
        let (code, said) = ended(command(folder.path()));
        assert_eq!(code, Some(1), "{name}: {said}");
        assert!(said.contains(&format!("{name}: cannot be read: {text}")), "{name}: {said}");
        assert!(fs::symlink_metadata(folder.path().join(name)).is_ok(), "{name}");
    }
}

/// Changes some bytes, each time elsewhere.
struct Changes(u64);

impl Changes {
    /// The next number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    fn of(&mut self, bytes: &[u8], count: usize) -> Vec<u8> {
        let mut changed = bytes.to_vec();
        for _ in 0..count {
            let at = self.below(bytes.len());
            changed[at] ^= 1 + self.below(255) as u8;
        }
        changed
    }
}

/// Asserts that `read` refuses a file in which bytes were changed, in an error that names it, or
/// reads the same from it.
#[track_caller]
pub fn assert_noticed<T: PartialEq>(path: &Path, read: impl Fn(&Path) -> Result<T, String>) {
    let (whole, bytes) = (read(path).unwrap(), fs::read(path).unwrap());
    let mut changes = Changes(1);
    let mut refused = 0;
    for count in [1, 8] {
        for round in 0..200 {
            let changed = changes.of(&bytes, count);
            fs::write(path, &changed).unwrap();
            match read(path) {
                // Only what has no meaning may change, such as a blank.
                Ok(found) => {
                    assert!(found == whole, "{}: {count} bytes, round {round}", path.display())
                }
                Err(error) => {
                    assert!(error.starts_with(&path.display().to_string()), "{error}");
                    refused += 1;
                }
            }
        }
    }
    fs::write(path, bytes).unwrap();
    assert!(refused > 350, "{}: only {refused} of 400 changes were noticed", path.display());
}

pub fn make_pipe(path: &Path) {
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).unwrap();
}

/// Runs `program` with an option that names each kind of file that is not regular, and each kind of
/// link to one. The program must refuse it and leave everything unchanged.
pub fn assert_writes_only_regular_files(program: &dyn Fn(&Path) -> Command) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    make_pipe(&at("pipe.svg"));
    let _listener = UnixListener::bind(at("socket.svg")).unwrap();
    fs::create_dir(at("folder.svg")).unwrap();
    symlink("/dev/null", at("device.svg")).unwrap();
    symlink("pipe.svg", at("link.svg")).unwrap();
    for (name, kind) in [
        ("pipe.svg", "a pipe"),
        ("socket.svg", "a socket"),
        ("folder.svg", "a folder"),
        ("device.svg", "a device"),
        ("link.svg", "a pipe"),
    ] {
        let output = program(&at(name)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let text = format!(
            "{}: is {kind} and not a regular file; it is left as it is",
            at(name).display()
        );
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains(&text), "{name}: {said}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("epoch"), "{name}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 5);
    assert!(fs::metadata(at("pipe.svg")).unwrap().file_type().is_fifo());
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    assert!(fs::symlink_metadata(at("link.svg")).unwrap().is_symlink());
}
