//! Every file that `quickstart` reads: only regular files, and no change of a checkpoint goes
//! unnoticed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mpienv_sharding::checkpoint::Checkpoint;

use crate::support::regular_files::{
    assert_noticed, assert_reads_only_regular_files, assert_writes_only_regular_files, ended,
};

/// `quickstart` without variables, in a folder.
fn quickstart(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quickstart"));
    command.args(arguments).env_clear().current_dir(folder);
    command
}

#[test]
fn what_is_not_a_regular_file_is_never_waited_for() {
    assert_reads_only_regular_files("merged.safetensors", |folder| {
        quickstart(folder, &["--threads", "2", "--resume-from", "merged.safetensors"])
    });
    assert_reads_only_regular_files("CKP-1_4.safetensors", |folder| {
        quickstart(folder, &["merge", "-o", "merged.safetensors", "."])
    });
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
    let read = |path: &Path| {
        Checkpoint::read(path).map(|(read, _)| read).map_err(|error| error.to_string())
    };
    assert_noticed(&merged, read);
    assert_noticed(&folder.path().join("device/1/CKP-1_4.safetensors"), read);
}

#[test]
fn a_merged_checkpoint_replaces_a_regular_file_alone() {
    let (folder, _) = merged();
    assert_writes_only_regular_files(&|path| {
        let mut command = quickstart(folder.path(), &["merge", "device/0", "device/1", "-o"]);
        command.arg(path);
        command
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
