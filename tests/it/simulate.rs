//! `mpienv simulate` with a command: the ranks of a job run at the same time on this machine.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Output, Stdio};
use std::time::Instant;

use crate::support::clock::SLACK;
use crate::support::launched::{piped, signal};
use crate::support::timeout::PATIENT;
use crate::support::tool::clean;
use mpienv::Launcher;
use mpienv::simulate::Job;

fn simulate(arguments: &[&str], command: &[&str]) -> Output {
    let mut mpienv = clean("mpienv");
    mpienv.arg("simulate").args(arguments).arg("--").args(command).stdin(Stdio::null());
    mpienv.output().unwrap()
}

#[track_caller]
fn sorted_lines(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut lines: Vec<String> =
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_ranks_of_every_launcher_run_together_and_meet() {
    for launcher in Launcher::ALL {
        // Launchers that start one process on each node, or only one process, simulate the shapes
        // that they can.
        let shapes = [
            ["--nodes", "2", "--ppn", "2"],
            ["--nodes", "3", "--ppn", "1"],
            ["--nodes", "1", "--ppn", "1"],
        ];
        let size = |shape: &[&str; 4]| -> u32 {
            shape[1].parse::<u32>().unwrap() * shape[3].parse::<u32>().unwrap()
        };
        let can = |shape: &&[&str; 4]| {
            let job = Job::of(*launcher)
                .nodes(shape[1].parse().unwrap())
                .per_node(shape[3].parse().unwrap());
            job.build().is_ok()
        };
        let shape = shapes.iter().find(can).unwrap();
        let arguments = [&["--launcher", launcher.name()], &shape[..]].concat();
        // Rank 0 waits for all the others, and the others wait for it.
        let output = simulate(&arguments, &["mpienv", "check", "--timeout", PATIENT]);
        // Two simulated nodes are one host, which is not an error.
        assert_eq!(output.status.code(), Some(0), "{launcher:?}: {output:?}");
        let lines: Vec<String> =
            String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
        let ranks =
            if size(shape) == 1 { "1 rank".to_owned() } else { format!("{} ranks", size(shape)) };
        let note = "[0] the job is simulated on this host: hosts and local ranks are not compared";
        assert!(lines.iter().any(|line| line == note), "{launcher:?}: {lines:?}");
        assert!(!said(&output).contains("local-"), "{launcher:?}: {}", said(&output));
        let met = lines
            .iter()
            .find(|line| line.starts_with(&format!("[0] {ranks} on 1 host, started by ")));
        let end = match size(shape) {
            1 => ": it has no other rank to meet",
            _ => ", met at 127.0.0.1:",
        };
        assert!(
            met.is_some_and(|line| line.contains(end)),
            "{launcher:?}: {lines:?} {}",
            said(&output)
        );
    }
}

#[test]
fn lines_have_their_rank_before_them_and_the_launchers_variables_are_there() {
    let script =
        r#"echo "$SLURM_PROCID of $SLURM_STEP_NUM_TASKS on $SLURM_NODEID at $MASTER_ADDR""#;
    let lines = sorted_lines(&simulate(
        &["--launcher", "slurm", "--nodes", "2", "--ppn", "2"],
        &["sh", "-c", script],
    ));
    let expected = [(0, 0), (1, 0), (2, 1), (3, 1)]
        .map(|(rank, node)| format!("[{rank}] {rank} of 4 on {node} at 127.0.0.1"));
    assert_eq!(lines, expected);
}

#[test]
fn the_launchers_own_master_is_kept_when_asked() {
    let show = &["sh", "-c", r#"eval "$(mpienv export)"; echo "$MASTER_ADDR:$MASTER_PORT""#];
    let shape = ["--launcher", "slurm", "--nodes", "2"];
    let lines = sorted_lines(&simulate(&[&shape[..], &["--keep-master"]].concat(), show));
    assert_eq!(lines, ["[0] node0:24245", "[1] node0:24245"]);
    // A single rank meets no other: it prints what a real rank of this launcher would.
    let lines = sorted_lines(&simulate(&[&shape[..], &["--rank", "1"]].concat(), show));
    assert_eq!(lines, ["node0:24245"]);
}

#[test]
fn two_jobs_at_once_have_ports_of_their_own() {
    // Each holds its port until it knows the other's port.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let script = r#"exec 3<>"/dev/tcp/127.0.0.1/$1"; mpienv check --timeout 1200 && echo "$MASTER_PORT" >&3; read -r _ <&3"#;
    let jobs: Vec<_> = (0..2)
        .map(|_| {
            let mut command = clean("mpienv");
            command.args([
                "simulate",
                "--launcher",
                "slurm",
                "--",
                "bash",
                "-c",
                script,
                "bash",
                &port,
            ]);
            command.stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    let mut streams: Vec<_> = (0..2).map(|_| listener.accept().unwrap().0).collect();
    let ports: Vec<String> = streams
        .iter_mut()
        .map(|stream| {
            let mut bytes = [0; 5];
            stream.read_exact(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
        .collect();
    assert_ne!(ports[0], ports[1]);
    streams.iter_mut().for_each(|stream| stream.write_all(b"go\n").unwrap());
    for mut job in jobs {
        assert!(job.wait().unwrap().success());
    }
}

/// PyTorch's ranks would wait for the store of a torchrun that does not run.
#[test]
fn ranks_of_a_simulated_torchrun_open_their_own_store() {
    let say = ["sh", "-c", "echo store: $TORCHELASTIC_USE_AGENT_STORE"];
    let job = ["--launcher", "torchrun", "--nodes", "1", "--ppn", "2"];
    let all = simulate(&job, &say);
    assert_eq!(sorted_lines(&all), ["[0] store: False", "[1] store: False"]);
    let one = simulate(&[&job[..], &["--rank", "1"]].concat(), &say);
    assert_eq!(sorted_lines(&one), ["store: False"]);
}

#[test]
fn when_a_rank_fails_all_end_and_the_exit_code_is_its() {
    let begun = Instant::now();
    let script = "test $SLURM_PROCID = 1 && { echo no >&2; exit 7; }; sleep 3000";
    let output =
        simulate(&["--launcher", "slurm", "--nodes", "2", "--ppn", "2"], &["sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    assert!(
        said(&output).contains("[1] no") && said(&output).contains("mpienv: rank 1 on "),
        "{}",
        said(&output)
    );
    assert!(begun.elapsed() < SLACK);
}

#[test]
fn one_rank_gets_the_signals_in_mpienvs_place_and_gives_its_exit_code() {
    let script = "trap 'exit 9' TERM; echo up; while :; do sleep 0.1; done";
    let mut mpienv = clean("mpienv");
    mpienv.args(["simulate", "--launcher", "slurm", "--rank", "0", "--", "sh", "-c", script]);
    let mut child = piped(&mut mpienv);
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    signal("TERM", &child);
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn nothing_of_a_real_launcher_or_a_worker_reaches_the_ranks() {
    let around = [
        ("OMPI_COMM_WORLD_RANK", "9"),
        ("OMPI_COMM_WORLD_SIZE", "10"),
        ("MPIENV_LAUNCHER", "user"),
        ("MPIENV_MASTER_ADDR", "elsewhere"),
        ("MPIENV_MASTER_PORT", "1"),
        ("MPIENV_TOKEN", "another"),
        ("AZ_BATCH_MASTER_NODE", "10.0.0.9:6000"),
        ("RANK", "9"),
        ("WORLD_SIZE", "10"),
        ("MASTER_ADDR", "elsewhere"),
        ("MASTER_PORT", "1"),
    ];
    let mut mpienv = clean("mpienv");
    let script = r#"eval "$(mpienv export)"; echo "$RANK/$WORLD_SIZE $MASTER_ADDR""#;
    mpienv.envs(around).args([
        "simulate",
        "--launcher",
        "slurm",
        "--ppn",
        "2",
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(sorted_lines(&mpienv.output().unwrap()), ["[0] 0/2 127.0.0.1", "[1] 1/2 127.0.0.1"]);
}

#[test]
fn a_command_for_more_ranks_than_a_machine_runs_is_refused_at_once() {
    let output = simulate(&["--launcher", "slurm", "--nodes", "65536"], &["true"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(
        said(&output).contains("65536 ranks, and at most 4096 run on one machine"),
        "{}",
        said(&output)
    );
    assert!(said(&output).contains("--rank R"), "{}", said(&output));
}

#[test]
fn a_job_that_no_machine_holds_is_an_error_with_the_range() {
    for (options, text) in [
        (&["--nodes", "4294967295"][..], "expected a whole number from 1 to 1048576"),
        (&["--ppn", "4294967295"], "expected a whole number from 1 to 1048576"),
        (&["--nodes", "1048577"], "expected a whole number from 1 to 1048576"),
        (&["--nodes", "1048576", "--ppn", "2"], "a simulated job has at most 1048576 ranks"),
        (&["--nodes", "-1"], "expected a whole number from 1 to 1048576"),
        (&["--rank", "-1"], "expected a whole number, such as 2"),
    ] {
        let output = simulate(&[&["--launcher", "slurm"], options].concat(), &["true"]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(text), "{}", said(&output));
    }
}

#[test]
fn doctor_finds_nothing_wrong_with_the_hosts_of_a_simulated_job() {
    let words = [
        "simulate",
        "--launcher",
        "slurm",
        "--nodes",
        "2",
        "--",
        "mpienv",
        "doctor",
        "--timeout",
        PATIENT,
    ];
    let output = clean("mpienv")
        .args(words)
        .env("http_proxy", "http://proxy:3128")
        // Bridges of this host's containers are not what is tested.
        .env("MPIENV_NCCL_IFNAME", "unset")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        ["master-loopback", "hostname-loopback", "[proxy]"].iter().all(|code| !said.contains(code)),
        "{said}"
    );
}
