//! Every file that the programs read: only regular files, and no change of a checkpoint goes
//! unnoticed.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use mpienv_trainer::data::idx;
use mpienv_trainer::sharding::checkpoint::Checkpoint;
use rustix::fs::{CWD, Mode, mkfifoat};

use crate::support::clock::SLACK;
use crate::support::mnist::mnist;

/// `quickstart` without variables, in a folder.
fn quickstart(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quickstart"));
    command.args(arguments).env_clear().current_dir(folder);
    command
}

/// The exit code and stderr of a command that must not hang.
#[track_caller]
fn ended(mut command: Command) -> (Option<i32>, String) {
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

/// A program that reads a file: the file's name in the run's folder, and the command.
type Reader = (&'static str, fn(&Path) -> Command);

const READERS: [Reader; 7] = [
    ("weights", |folder| {
        let mut command = mnist();
        command.args(["--epochs", "1", "--weights"]).arg(folder.join("weights"));
        command
    }),
    ("weights", |folder| {
        let mut command = mnist();
        command.args(["--epochs", "1", "--ranks", "2", "--weights"]).arg(folder.join("weights"));
        command
    }),
    ("train-images-idx3-ubyte", |folder| {
        let mut command = mnist();
        let one_label = [idx::LABELS_MAGIC, 1].map(u32::to_be_bytes).concat();
        fs::write(folder.join("train-labels-idx1-ubyte"), [&one_label[..], &[7]].concat()).unwrap();
        for name in ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"] {
            fs::write(folder.join(name), "").unwrap();
        }
        command.args(["--epochs", "1", "--data"]).arg(folder);
        command
    }),
    ("train-labels-idx1-ubyte.gz", |folder| {
        let mut command = mnist();
        for name in ["train-images-idx3-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
        {
            fs::write(folder.join(name), "").unwrap();
        }
        command.args(["--epochs", "1", "--data"]).arg(folder);
        command
    }),
    ("checkpoint-000000005.safetensors", |folder| {
        let mut command = mnist();
        command.args(["--epochs", "1", "--resume", "--checkpoint-dir"]).arg(folder);
        command
    }),
    ("merged.safetensors", |folder| {
        quickstart(folder, &["--threads", "2", "--resume-from", "merged.safetensors"])
    }),
    ("CKP-1_4.safetensors", |folder| {
        quickstart(folder, &["merge", "-o", "merged.safetensors", "."])
    }),
];

#[test]
fn what_is_not_a_regular_file_is_never_waited_for() {
    type Make = fn(&Path);
    let kinds: [(&str, Make); 5] = [
        ("it is a pipe and not a regular file", |path| {
            mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).unwrap()
        }),
        ("it is a socket and not a regular file", |path| drop(UnixListener::bind(path).unwrap())),
        ("it is a folder and not a regular file", |path| fs::create_dir(path).unwrap()),
        ("it is a device and not a regular file", |path| symlink("/dev/zero", path).unwrap()),
        ("it is a symbolic link to nowhere, which does not exist", |path| {
            symlink("nowhere", path).unwrap()
        }),
    ];
    for (name, command) in READERS {
        for (text, make) in kinds {
            let folder = tempfile::tempdir().unwrap();
            make(&folder.path().join(name));
            let (code, said) = ended(command(folder.path()));
            assert_eq!(code, Some(1), "{name}: {said}");
            assert!(said.contains(&format!("{name}: cannot be read: {text}")), "{name}: {said}");
            // It is left as it is.
            assert!(fs::symlink_metadata(folder.path().join(name)).is_ok(), "{name}");
        }
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
fn assert_noticed<T: PartialEq>(path: &Path, read: impl Fn(&Path) -> Result<T, String>) {
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

/// A folder with the checkpoints of two ranks, and their parts merged.
fn merged() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["--threads", "2", "--epochs", "1"][..], &["merge", "device/0", "device/1"]]
    {
        let (code, said) = ended(quickstart(folder.path(), arguments));
        assert_eq!(code, Some(0), "{said}");
    }
    let path = folder.path().join("merged.safetensors");
    (folder, path)
}

#[test]
fn any_changed_byte_of_a_part_or_of_merged_parts_is_noticed() {
    let (folder, merged) = merged();
    let read = |path: &Path| Checkpoint::read(path).map_err(|error| error.to_string());
    assert_noticed(&merged, read);
    assert_noticed(&folder.path().join("device/1/CKP-1_4.safetensors"), read);
}

#[test]
fn any_changed_byte_of_packed_data_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train-images-idx3-ubyte.gz");
    let numbers = [idx::IMAGES_MAGIC, 3, 28, 28].map(u32::to_be_bytes).concat();
    let pixels = (0..3 * 784_u32).map(|pixel| (pixel.wrapping_mul(2_654_435_761) >> 24) as u8);
    let mut encoder = GzEncoder::new(fs::File::create(&path).unwrap(), Compression::fast());
    std::io::Write::write_all(&mut encoder, &numbers.into_iter().chain(pixels).collect::<Vec<_>>())
        .unwrap();
    encoder.finish().unwrap();
    assert_noticed(&path, |path| {
        idx::open_images(path).and_then(idx::Images::read).map_err(|error| error.to_string())
    });
}

#[test]
fn a_run_does_not_resume_from_merged_parts_in_which_bytes_were_changed() {
    let (folder, merged) = merged();
    let resume = || {
        ended(quickstart(folder.path(), &["--threads", "4", "--resume-from", "merged.safetensors"]))
    };
    let bytes = fs::read(&merged).unwrap();
    let mut changed = bytes.clone();
    let end = changed.len();
    changed[end - 64..end - 56].iter_mut().for_each(|byte| *byte ^= 0x41);
    fs::write(&merged, changed).unwrap();
    let (code, said) = resume();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.starts_with(
        "quickstart: merged.safetensors: it has changed since it was written: its SHA-256 is "
    ));
    let remedy = "; name another checkpoint, or merge the checkpoints of all ranks again\n";
    assert!(said.ends_with(remedy), "{said}");

    // A file of a version that wrote no SHA-256.
    let at = bytes.windows(6).position(|window| window == b"sha256").unwrap();
    let mut without = bytes.clone();
    without[at..at + 6].copy_from_slice(b"remark");
    fs::write(&merged, without).unwrap();
    let (code, said) = resume();
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("merged.safetensors: it has no SHA-256 that shows whether it is complete; "),
        "{said}"
    );
    assert!(said.ends_with(remedy), "{said}");

    fs::write(&merged, bytes).unwrap();
    let (code, said) = resume();
    assert_eq!(code, Some(0), "{said}");
}
