//! The command as its users run it: words, exit codes, and the output on each stream.

use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::tool::clean;

const SEVERAL_NODES: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "4"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
];

fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Each process of a job starts it, so what the loader does for it counts.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn the_loader_corrects_no_addresses_of_the_command_and_loads_no_library_but_that_of_c() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_mpienv")).unwrap();
    // The type of an ELF file: 2 has a fixed address, and 3 has not.
    assert_eq!(program[16], 2);
    let traced = clean("mpienv").env("LD_TRACE_LOADED_OBJECTS", "1").output().unwrap().stdout;
    let libraries = String::from_utf8(traced).unwrap();
    assert!(libraries.contains("libc.so.6") && !libraries.contains("libgcc_s"), "{libraries}");
}

#[test]
fn export_prints_nothing_but_what_stops_a_script_when_it_fails() {
    for vars in [SEVERAL_NODES, &[("OMPI_COMM_WORLD_RANK", "0")], &[("MASTER_PORT", "x")]] {
        let (code, stdout, stderr) =
            output(clean("mpienv").arg("export").envs(vars.iter().copied()));
        assert_eq!((code, stdout.as_str()), (Some(1), "false;\n"));
        assert!(stderr.starts_with("mpienv: ") && stderr.lines().count() == 1, "{stderr}");
    }
}

#[test]
fn words_that_are_wrong_are_code_2_and_say_how_it_goes() {
    let cases = [
        (&["exports"][..], ""),
        (&["exec", "--bad"], ""),
        (&["export", "--shell", "bahs"], "false;\n"),
        (&["export", "--master-port", "0"], "false;\n"),
        (
            &["export", "--shell", "powershell", "--master-port", "0"],
            "throw 'mpienv export failed';\n",
        ),
        (&["export", "--shell=cmd", "--bogus"], "cmd /c exit 1\n"),
        (&["export", "--shell=dotenv", "--bogus"], ""),
        (&["exec"], ""),
        (&[], ""),
    ];
    for (words, printed) in cases {
        let (code, stdout, stderr) = output(clean("mpienv").args(words));
        assert_eq!((code, stdout.as_str()), (Some(2), printed), "{words:?}");
        assert!(stderr.contains("Usage") || stderr.contains("--help"), "{stderr}");
    }
}

#[test]
fn the_version_names_the_commit_if_a_checkout_was_built() {
    let (code, stdout, _) = output(clean("mpienv").arg("--version"));
    assert_eq!(code, Some(0));
    let rest = stdout.strip_prefix(concat!("mpienv ", env!("CARGO_PKG_VERSION"))).unwrap();
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/.git");
    let mut git = clean("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR"), "cat-file", "-e"]);
    if !Path::new(top).exists() || !git.arg("HEAD").output().is_ok_and(|end| end.status.success()) {
        assert_eq!(rest, "\n");
        return;
    }
    let inside = rest.strip_prefix(" (").and_then(|rest| rest.strip_suffix(")\n"));
    let [commit, date] = inside.unwrap().split(' ').collect::<Vec<_>>()[..2] else {
        panic!("{stdout}");
    };
    // Sources that were changed have no commit of their own yet.
    assert_eq!((commit.len(), date.trim_end_matches(',').len()), (8, 10), "{stdout}");
    let mut git = clean("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR"), "cat-file", "-e", commit]);
    assert!(git.status().unwrap().success(), "{stdout}");
}

#[test]
fn the_version_as_json_says_what_the_text_says_and_what_is_compiled_in() {
    let (_, text, _) = output(clean("mpienv").arg("--version"));
    for words in [["--version", "--json"], ["--json", "-V"]] {
        let (code, stdout, stderr) = output(clean("mpienv").args(words));
        assert_eq!((code, &*stderr), (Some(0), ""), "{words:?}");
        let found: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        let commit = found["commit"].as_str().map(|commit| {
            assert_eq!(commit.len(), 40, "{stdout}");
            let changed = if found["changed"] == true { ", changed" } else { "" };
            format!(" ({} {}{changed})", &commit[..8], found["date"].as_str().unwrap())
        });
        assert_eq!(commit.is_none(), found["date"].is_null() && found["changed"].is_null());
        let version = found["version"].as_str().unwrap();
        assert_eq!(text, format!("mpienv {version}{}\n", commit.unwrap_or_default()));
        let c_library = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
        let target = format!("{}-unknown-linux-{c_library}", std::env::consts::ARCH);
        assert_eq!(found["target"], target);
        let features = found["features"].as_array().unwrap();
        assert!(features.contains(&"cli".into()) && features.contains(&"launch".into()));
    }
    // Alone or with a command it says nothing.
    for words in [&["--json"][..], &["--json", "show"]] {
        let (code, stdout, _) = output(clean("mpienv").args(words));
        assert_eq!((code, &*stdout), (Some(2), ""), "{words:?}");
    }
}

#[test]
fn an_option_overrides_the_environment() {
    let mut command = clean("mpienv");
    command.envs(SEVERAL_NODES.iter().copied()).env("MASTER_PORT", "1");
    command.args([
        "export",
        "--master-addr",
        "node-0",
        "--master-port",
        "2",
        "--nccl-ifname",
        "eth0",
    ]);
    let (code, stdout, _) = output(&mut command);
    assert_eq!(code, Some(0));
    for line in
        ["export MASTER_ADDR=node-0;", "export MASTER_PORT=2;", "export NCCL_SOCKET_IFNAME=eth0;"]
    {
        assert!(stdout.lines().any(|found| found == line), "{stdout}");
    }
}

#[test]
fn interfaces_in_nccls_own_file_are_not_replaced_by_the_default() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for (text, expected) in [
        ("# NCCL_SOCKET_IFNAME=ib0\nNCCL_DEBUG=INFO\nNCCL_SOCKET_IFNAMES=x\n", "[^docker0,lo]\n"),
        ("NCCL_DEBUG=INFO\nNCCL_SOCKET_IFNAME=ib0\n", "[]\n"),
    ] {
        std::fs::write(file.path(), text).unwrap();
        let mut command = clean("mpienv");
        command.args(["exec", "--", "sh", "-c", "echo [$NCCL_SOCKET_IFNAME]"]);
        let output = command.env("NCCL_CONF_FILE", file.path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{text}");
    }
}

#[test]
fn a_device_or_a_pipe_in_the_place_of_nccls_file_is_not_read() {
    let home = tempfile::tempdir().unwrap();
    let pipe = home.path().join(".nccl.conf");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    for (name, value) in [("NCCL_CONF_FILE", Path::new("/dev/zero")), ("HOME", home.path())] {
        let mut command = clean("mpienv");
        command.args(["exec", "--", "sh", "-c", "echo [$NCCL_SOCKET_IFNAME]"]).env(name, value);
        let (code, stdout, stderr) = output(&mut command);
        assert_eq!((code, stdout.as_str()), (Some(0), "[^docker0,lo]\n"), "{name}: {stderr}");
    }
}

#[test]
fn nccl_interfaces_are_kept_or_unset_when_asked() {
    let export = |words: &[&str], set: Option<&str>| {
        let mut command = clean("mpienv");
        command.arg("export").args(words).envs(set.map(|value| ("NCCL_SOCKET_IFNAME", value)));
        let (_, stdout, _) = output(&mut command);
        stdout.lines().find(|line| line.contains(" NCCL_SOCKET_IFNAME")).map(str::to_owned)
    };
    assert_eq!(export(&[], None).as_deref(), Some("export NCCL_SOCKET_IFNAME='^docker0,lo';"));
    assert_eq!(export(&[], Some("ib0")).as_deref(), Some("export NCCL_SOCKET_IFNAME=ib0;"));
    assert_eq!(export(&["--nccl-ifname", "keep"], None), None);
    assert_eq!(
        export(&["--nccl-ifname", "keep"], Some("ib0")).as_deref(),
        Some("export NCCL_SOCKET_IFNAME=ib0;")
    );
    assert_eq!(
        export(&["--nccl-ifname", "unset"], Some("ib0")).as_deref(),
        Some("unset NCCL_SOCKET_IFNAME;")
    );
    assert_eq!(
        export(&["--nccl-ifname", "eth9"], Some("ib0")).as_deref(),
        Some("export NCCL_SOCKET_IFNAME=eth9;")
    );
}

#[test]
fn show_prints_the_rest_where_the_master_is_not_known() {
    let (code, stdout, _) =
        output(clean("mpienv").args(["show", "--json"]).envs(SEVERAL_NODES.iter().copied()));
    assert_eq!(code, Some(0));
    let shown: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&shown["rank"], &shown["world_size"]), (&1.into(), &4.into()));
    assert_eq!(shown["master_addr"], serde_json::Value::Null);
    assert_eq!(shown["findings"][0]["severity"], "error");
    assert_eq!(shown["findings"][0]["code"], "master-unknown");
    let keys: Vec<_> = shown.as_object().unwrap().keys().map(String::as_str).collect();
    let contract = "launcher rank world_size local_rank local_world_size node_rank node_count launch_style \
                    master_addr master_port nccl_socket_ifname hosts device_index restart_count platform \
                    provenance findings version host threads refused binding devices";
    assert_eq!(keys, contract.split_whitespace().collect::<Vec<_>>());
    let (_, version, _) = output(clean("mpienv").arg("--version"));
    assert_eq!(format!("mpienv {}\n", shown["version"].as_str().unwrap()), version);
    assert_eq!(shown["host"], mpienv::host_name().unwrap());
}

#[test]
fn show_says_that_the_other_commands_ask_the_launcher_for_the_master_where_they_do() {
    let flux = [("FLUX_JOB_ID", "f7"), ("FLUX_JOB_NNODES", "2"), ("FLUX_JOB_SIZE", "4")];
    let task = [("FLUX_TASK_RANK", "0"), ("FLUX_TASK_LOCAL_ID", "0"), ("PMI_FD", "18")];
    let (code, stdout, _) = output(clean("mpienv").arg("show").envs(flux).envs(task));
    assert_eq!(code, Some(0));
    let asks = "note [master-unknown]: no variable names rank 0's host, and this command does not ask the launcher\n  \
                why: `export`, `exec`, `launch`, `check` and `doctor` ask it for the host\n";
    assert!(stdout.contains(asks) && !stdout.contains("cannot meet"), "{stdout}");
    let inspected =
        clean("mpienv").args(["doctor", "--timeout", "0"]).envs(flux).envs(task).output();
    let inspected = String::from_utf8(inspected.unwrap().stdout).unwrap();
    assert!(inspected.contains(asks) && !inspected.contains("cannot meet"), "{inspected}");
    // A user who does not want that has to name the host.
    let not_asked =
        clean("mpienv").arg("show").envs(flux).envs(task).env("MPIENV_ASK", "0").output();
    let stdout = String::from_utf8(not_asked.unwrap().stdout).unwrap();
    assert!(stdout.contains("error [master-unknown]: "), "{stdout}");
    let remedy = stdout.lines().find(|line| line.starts_with("  remedy: ")).unwrap();
    assert!(
        remedy.contains("; or start this command with `mpienv exec --`, which asks MPICH, ")
            && remedy.contains(", Flux, "),
        "{remedy}"
    );
}

#[test]
fn show_prints_a_table_of_values_and_sources_without_color_unless_on_a_terminal() {
    let (code, stdout, _) = output(clean("mpienv").arg("show"));
    assert_eq!(code, Some(0));
    assert!(
        stdout
            .starts_with("launcher          alone        no launcher gives this process a place\n"),
        "{stdout}"
    );
    assert!(!stdout.contains('\u{1b}'));
    let (_, stdout, _) = output(clean("mpienv").arg("show").env("CLICOLOR_FORCE", "1"));
    assert!(stdout.contains('\u{1b}'));
}

#[test]
fn show_and_doctor_tell_a_binding_where_there_is_one() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores == 1 {
        return crate::support::tool::missing("second core");
    }
    if !crate::support::tool::is_there("taskset") {
        return;
    }
    let taskset = |cores: &str, words: &[&str]| {
        let (_, stdout, stderr) =
            output(clean("taskset").args(["-c", cores, "mpienv"]).args(words));
        assert!(!stdout.is_empty(), "{stderr}");
        stdout
    };
    let (_, allowed, _) = output(clean("taskset").args(["-cp", &std::process::id().to_string()]));
    let first = allowed.rsplit(": ").next().unwrap().split(['\n', ',', '-']).next().unwrap();
    for verb in ["show", "doctor"] {
        assert!(taskset(first, &[verb]).contains("\nnote [cpu-binding]: bound to 1 of "), "{verb}");
        // Linux ignores cores that do not exist.
        assert!(!taskset("0-1023", &[verb]).contains("cpu-binding"), "{verb}");
    }
    let shown: serde_json::Value =
        serde_json::from_str(&taskset(first, &["show", "--json"])).unwrap();
    assert_eq!(shown["findings"][0]["code"], "cpu-binding");
}

#[test]
fn findings_go_to_stderr_when_asked_for() {
    let vars = SEVERAL_NODES
        .iter()
        .chain(&[("MASTER_ADDR", "a"), ("RANK", "0"), ("WORLD_SIZE", "9")])
        .copied();
    let (code, stdout, stderr) = output(clean("mpienv").args(["export", "-v"]).envs(vars));
    assert_eq!(code, Some(0));
    assert!(stdout.lines().all(|line| line.starts_with("export ")), "{stdout}");
    assert!(stderr.starts_with("warning [launchers-disagree]: "), "{stderr}");
}

#[test]
fn exec_becomes_the_command_with_the_variables_set() {
    let script = "echo $$ $RANK/$WORLD_SIZE@$MASTER_ADDR:$MASTER_PORT; exit 7";
    let mut command = clean("mpienv");
    command.args(["exec", "--", "/bin/sh", "-c", script]).env("MASTER_PORT", "29500");
    let child = command.stdout(std::process::Stdio::piped()).spawn();
    let child = child.unwrap();
    let process = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("{process} 0/1@127.0.0.1:29500\n")
    );
}

#[test]
fn exec_passes_bytes_that_are_no_text() {
    let junk = std::ffi::OsString::from_vec(vec![b'a', 0xff, b'b']);
    let mut command = clean("mpienv");
    command
        .args(["exec", "--", "/bin/sh", "-c", r#"printf %s "$1$JUNK""#, "sh"])
        .arg(&junk)
        .env("JUNK", &junk);
    assert_eq!(command.output().unwrap().stdout, b"a\xffba\xffb");
}

#[test]
fn exec_leaves_signals_ignored_but_sigpipe_and_sigchld() {
    let line = "--ignore-signal=HUP,PIPE,CHLD mpienv exec -- grep SigIgn /proc/self/status";
    let (_, stdout, stderr) = output(clean("env").args(line.split(' ')));
    // This file exists only on Linux.
    let Some(ignored) = stdout.trim().strip_prefix("SigIgn:") else {
        return eprintln!("skipped: {stderr}");
    };
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    let is_ignored = |signal: u32| ignored >> (signal - 1) & 1 == 1;
    let ignored = [1, 13, 17].map(is_ignored);
    assert_eq!(ignored, [true, false, false], "what `mpienv exec --help` says");
}

#[test]
fn exec_fails_as_shells_do() {
    let (code, _, stderr) = output(clean("mpienv").args(["exec", "--", "no-such-program"]));
    assert_eq!(code, Some(127));
    assert!(stderr.contains("cannot start \"no-such-program\""), "{stderr}");
    let (code, _, _) = output(clean("mpienv").args(["exec", "--", "/"]));
    assert_eq!(code, Some(126));
    let (code, stdout, _) = output(
        clean("mpienv").args(["exec", "--", "/bin/echo"]).envs(SEVERAL_NODES.iter().copied()),
    );
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "without a master nothing is started");
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let mut command = clean("mpienv");
    command
        .arg("export")
        .stdout(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let (code, _, stderr) = output(&mut command);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("cannot write stdout"), "{stderr}");
}

#[test]
fn a_token_is_in_no_output() {
    for words in [&["export"][..], &["export", "--shell", "json"], &["show"], &["show", "--json"]] {
        let (code, stdout, stderr) =
            output(clean("mpienv").args(words).env("MPIENV_TOKEN", "sesame"));
        assert_eq!(code, Some(0));
        assert!(!stdout.contains("sesame") && !stderr.contains("sesame"), "{stdout}");
    }
}

#[test]
fn a_table_gives_the_terminal_no_commands() {
    for words in ["show", "doctor --timeout 0"] {
        let mut mpienv = clean("mpienv");
        mpienv.args(words.split(' ')).env("NCCL_SOCKET_IFNAME", "eth0\u{1b}]0;x\u{7}");
        let (_, stdout, _) = output(&mut mpienv);
        assert!(stdout.contains("eth0\u{fffd}]0;x"), "{words}: {stdout:?}");
        assert!(!stdout.contains(['\u{1b}', '\u{7}']), "{words}: {stdout:?}");
    }
}

#[test]
fn a_table_with_a_value_of_any_width_is_printed() {
    // Widths above 65535 are not supported by Rust's formatting.
    let name = "e".repeat(70_000);
    for words in ["show", "doctor --timeout 0"] {
        let output = clean("mpienv")
            .args(words.split(' '))
            .env("NCCL_SOCKET_IFNAME", &name)
            .output()
            .unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains(&name), "{words}: {output:?}");
    }
}
