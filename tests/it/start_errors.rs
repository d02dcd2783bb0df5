//! Why a program cannot be started, with a remedy that fits the cause.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::tool::{clean, is_there};

/// An executable file with this text.
fn script(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    crate::support::script::script(&path, text);
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_remedy_fits_what_a_program_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let missing = script(folder, "missing", "#!/no/such/interpreter -x\nexit\n");
    let windows = script(folder, "windows", "#!/bin/sh\r\nexit\r\n");
    let plain = script(folder, "plain", "#!/bin/sh\nexit\n");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    // An ELF file whose loader does not exist: the replacement path has the same length.
    let elf = fs::read("/bin/true").unwrap();
    let at = elf.windows(8).position(|bytes| bytes == b"ld-linux").unwrap();
    let foreign = folder.join("foreign");
    crate::support::script::script(&foreign, [&elf[..at], b"xx-linux", &elf[at + 8..]].concat());
    let foreign = foreign.to_str().unwrap();
    let folder = folder.to_str().unwrap();
    let cases = [
        ("no-such-program", 127, "check that it is installed on this host and on PATH"),
        ("/no/such/program", 127, "check that it is installed on this host and on PATH"),
        (
            &missing,
            126,
            "its first line names the interpreter \"/no/such/interpreter\", which is not on this host",
        ),
        (&windows, 126, "its first line ends with a carriage return"),
        (foreign, 126, "its dynamic loader is not on this host"),
        (&plain, 126, "it is not executable: if it is your program, run `chmod +x "),
        (folder, 126, "it is a folder: choose a program in it"),
    ];
    for verb in [
        &["exec", "--"][..],
        &["launch", "--nproc-per-node", "1", "--"],
        &["simulate", "--launcher", "slurm", "--"],
    ] {
        for (program, code, remedy) in cases {
            let output = clean("mpienv").args(verb).arg(program).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{verb:?} {program}: {said}");
            assert!(
                said.contains(&format!("cannot start {program:?}: ")),
                "{verb:?} {program}: {said}"
            );
            assert!(said.contains(remedy), "{verb:?} {program}: {said}");
        }
    }
    // Also found on PATH.
    let output = clean("sh")
        .args(["-c", "PATH=$PATH:$1 exec mpienv exec -- windows", "sh", folder])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("a carriage return"), "{output:?}");
}

#[test]
fn a_program_is_found_behind_a_file_of_its_name_that_is_not_executable() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["true", "alone"] {
        fs::write(folder.path().join(name), "no program").unwrap();
    }
    for verb in ["exec", "launch --nproc-per-node 1", "simulate --launcher slurm"] {
        for (program, code) in [("true", 0), ("alone", 126)] {
            let line = format!("PATH=$0:$PATH exec mpienv {verb} -- {program}");
            let output = clean("sh").args(["-c", &line]).arg(folder.path()).output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{verb} {program}: {output:?}");
        }
    }
}

#[test]
fn the_remedy_names_the_limit_that_is_reached() {
    // The longest arguments with which mpienv itself can be started: together with the variables,
    // they are too long.
    let exec = |length: usize| {
        let script = "ulimit -s 1024; exec mpienv exec -- true \"$@\"";
        let third = "x".repeat(length / 3);
        let output =
            clean("sh").args(["-c", script, "sh", &third, &third, &third]).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = (2500..2622)
        .rev()
        .map(|hundreds| exec(hundreds * 100))
        .find(|said| said.contains("mpienv: cannot start \"true\""));
    assert!(said.is_some_and(|said| said.contains("(getconf ARG_MAX, ulimit -s)")));
    if !is_there("prlimit") {
        return;
    }
    // Just enough for mpienv itself, but not for the pipes of 16 workers.
    let launch = ["mpienv", "launch", "--nproc-per-node", "16", "--", "sleep", "0.1"];
    let output = clean("prlimit").arg("--nofile=24").args(launch).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_ne!(output.status.code(), Some(0));
    assert!(said.contains("(ulimit -n)"), "{said}");
}

#[test]
fn without_a_path_launch_and_exec_find_the_systems_programs() {
    for words in [&["exec"][..], &["launch", "--nproc-per-node", "1"]] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_mpienv"));
        let output = command.env_clear().args(words).args(["--", "true"]).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
}
