//! Little memory, few threads, and files that claim more than they hold: an error, never an abort.

use std::fs::File;
use std::io::Write;
use std::process::Command;

use crate::support::limited::{assert_fails, with_little_memory};

#[test]
fn a_checkpoint_of_47_gb_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = File::create(folder.path().join("merged.safetensors")).unwrap();
    file.write_all(b"\x40\0\0\0\0\0\0\0{").unwrap();
    file.set_len(47 << 30).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quickstart"));
    command.current_dir(folder.path());
    command.args(["--threads", "1", "--resume-from", "merged.safetensors"]);
    let output = with_little_memory(&command).output().unwrap();
    assert_fails(&output, "merged.safetensors: has more than 1073741824 bytes");
}

#[test]
fn more_ranks_as_threads_than_the_system_gives_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    // First of memory, and then of open files.
    for count in ["100", "1000"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quickstart"));
        command.current_dir(folder.path()).args(["--threads", count, "--epochs", "1"]);
        let output = with_little_memory(&command).output().unwrap();
        assert_fails(&output, &format!(" of {count} "));
        assert_fails(&output, "; use fewer --threads, or raise the limits");
    }
}

#[test]
fn a_run_without_more_open_files_names_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command
        .current_dir(folder.path())
        .args(["-c", "ulimit -n 40; exec \"$0\" --threads 64 --epochs 1"]);
    let output = command.arg(env!("CARGO_BIN_EXE_quickstart")).output().unwrap();
    assert_fails(
        &output,
        "Too many open files (os error 24); check this host's network and its limit of open files; use fewer --threads, or raise the limits (`ulimit -n`, `ulimit -u`, `ulimit -v`)",
    );
}
