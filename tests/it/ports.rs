//! The master's port: from which range it is derived, which jobs get a separate one, whether rank 0
//! may listen there, and what is said of a port in use.

use std::process::{Command, Output};

use mpienv::simulate::Job;
use mpienv::{ClusterInfo, Launcher, MasterPort, PortRange};

use super::warnings::{Vars, run};
use crate::support::port::free_port;
use crate::support::root::is_root;
use crate::support::tool::{clean, is_there};

type Pairs<'a> = &'a [(&'a str, &'a str)];

fn port(vars: Pairs) -> u16 {
    ClusterInfo::from_vars(vars.iter().copied()).unwrap().master_port().get()
}

const MPIRUN: Pairs = &[
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
];
const NAMESPACE: (&str, &str) = ("PMIX_NAMESPACE", "3203661825");
const AZURE: (&str, &str) = ("AZ_BATCHAI_MPI_MASTER_NODE", "localhost");

#[test]
fn a_range_moves_every_derived_port_and_keeps_the_formula() {
    let range = |text: &'static str| ("MPIENV_PORT_RANGE", text);
    let step = [
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_STEP_ID", "12"),
    ];
    let step = [&step[..], &[("SLURM_STEP_NODELIST", "a,b")]].concat();
    assert_eq!(port(&step), 25769);
    // The same number, modulo the size of the range.
    let whole = port(&[&step[..], &[range("1000-10999")]].concat());
    assert_eq!(whole, 1000 + 5769);
    let job = [MPIRUN, &[NAMESPACE]].concat();
    for (vars, is_alone) in
        [(&step, false), (&job, false), (&MPIRUN.to_vec(), false), (&Vec::new(), true)]
    {
        let moved = [&vars[..], &[range("1400-1999")]].concat();
        assert!((1400..=1999).contains(&port(&moved)), "{vars:?}");
        assert_eq!(port(&moved), port(&moved), "{is_alone}");
        assert_eq!(port(&[&vars[..], &[range("1500-1500")]].concat()), 1500, "{vars:?}");
    }
    // Ports that are set for the job, and Azure's ports, which users know, are kept.
    assert_eq!(port(&[&step[..], &[range("1400-1999"), ("MASTER_PORT", "29500")]].concat()), 29500);
    assert_eq!(port(&[&job[..], &[range("1400-1999"), AZURE]].concat()), 54965);
    let asked = [&job[..], &[range("1400-1999"), AZURE, ("MPIENV_MASTER_PORT", "auto")]].concat();
    assert!((1400..=1999).contains(&port(&asked)));
    // The program's setting takes precedence over the variable.
    let builder = ClusterInfo::builder().port_range("3000-3009".parse::<PortRange>().unwrap());
    let info = builder.master_port(MasterPort::FromJob).vars(asked).read().unwrap();
    assert!((3000..=3009).contains(&info.master_port().get()));
    assert_eq!(info.exports().unwrap().get("MPIENV_PORT_RANGE"), Some("3000-3009"));
}

#[test]
fn a_range_that_is_none_is_an_error_with_variable_value_reason_and_remedy() {
    for bad in ["1999-1400", "1400", "0-10", "1-70000", "low-high"] {
        let why = match bad {
            "1999-1400" => "the range runs backwards: the lower port comes first",
            _ => "not a range of ports from 1 to 65535",
        };
        let error = ClusterInfo::from_vars([("MPIENV_PORT_RANGE", bad)]).unwrap_err().to_string();
        let text = format!(
            "MPIENV_PORT_RANGE=\"{bad}\": {why}, as in 1400-1999; correct MPIENV_PORT_RANGE or \
             unset it"
        );
        assert_eq!(error, text);
    }
    let output = clean("mpienv").args(["show", "--port-range", "9-1"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2)
            && said.contains("the lower port comes first, as in 1400-1999"),
        "{said}"
    );
}

#[test]
fn a_launch_without_a_launcher_takes_a_free_port_of_the_range() {
    let launch = |options: &[&str], range: Option<&str>| -> u16 {
        let mut command = clean("mpienv");
        command.envs(range.map(|range| ("MPIENV_PORT_RANGE", range))).args([
            "launch",
            "--nproc-per-node",
            "1",
        ]);
        let output =
            command.args(options).args(["--", "printenv", "MASTER_PORT"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().trim_start_matches("[0] ").parse().unwrap()
    };
    assert!((14_000..=14_999).contains(&launch(&["--port-range", "14000-14999"], None)));
    assert!((15_000..=15_999).contains(&launch(&[], Some("15000-15999"))));
}

#[test]
fn two_processes_of_a_platforms_job_of_one_node_do_not_share_a_port() {
    let show = |vars: &[(String, String)]| -> u64 {
        let output =
            clean("mpienv").envs(vars.iter().cloned()).args(["show", "--json"]).output().unwrap();
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(shown["world_size"], 1, "{shown}");
        shown["master_port"].as_u64().unwrap()
    };
    for platform in
        [Launcher::SkyPilot, Launcher::Dstack, Launcher::Lepton, Launcher::LeaderWorkerSet]
    {
        let vars = Job::of(platform).build().unwrap().environment(0).unwrap();
        let ports = [show(&vars), show(&vars)];
        assert!(
            ports[0] != ports[1] && ports.iter().all(|port| (20_000..30_000).contains(port)),
            "{platform}: {ports:?}"
        );
    }
}

#[test]
fn a_port_that_was_derived_and_exported_is_the_one_that_auto_gives_inside() {
    for builder in Job::of_each() {
        let job = builder.clone().nodes(2).build().or_else(|_| builder.build()).unwrap();
        let mut vars = job.environment(0).unwrap();
        vars.push(("MPIENV_MASTER_PORT".to_owned(), "auto".to_owned()));
        // Not every launcher identifies a job of several nodes.
        let Ok(outer) = ClusterInfo::from_vars(vars.clone()) else { continue };
        let Ok(exports) = outer.exports() else { continue };
        if outer.world_size() == 1 {
            continue;
        }
        let set = exports.iter().filter_map(|(name, value)| Some((name.into(), value?.into())));
        let inner = ClusterInfo::from_vars(vars.into_iter().chain(set)).unwrap();
        assert_eq!(inner.master_port(), outer.master_port(), "{}", outer.launcher());
    }
    let by_hand: Pairs =
        &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MPIENV_MASTER_PORT", "auto")];
    let error = ClusterInfo::from_vars(by_hand.iter().copied()).unwrap_err();
    assert_eq!(error.variable(), Some("MPIENV_MASTER_PORT"));
}

#[test]
fn the_port_of_enroots_hook_is_a_finding_because_all_steps_of_a_job_have_it() {
    let step: Pairs = &[
        ("SLURM_PROCID", "1"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_JOB_ID", "104711"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NODELIST", "a"),
        ("SLURM_STEP_TASKS_PER_NODE", "2"),
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "a"),
    ];
    let codes = |more: Pairs| {
        let info = ClusterInfo::from_vars([step, more].concat()).unwrap();
        info.findings().iter().map(|finding| finding.code).collect::<Vec<_>>()
    };
    for port in [104_711 % 4536 + 61_000, 104_711 % 16_384 + 49_152] {
        let port = port.to_string();
        assert_eq!(codes(&[("MASTER_PORT", &port)]), ["pyxis-master-port"], "{port}");
        // A user who asks for a different port gets it.
        let info = [step, &[("MASTER_PORT", &port), ("MPIENV_MASTER_PORT", "auto")]].concat();
        let info = ClusterInfo::from_vars(info).unwrap();
        assert!(
            (20_000..30_000).contains(&info.master_port().get()) && info.findings().is_empty(),
            "{info:?}"
        );
    }
    assert_eq!(codes(&[("MASTER_PORT", "29500")]), [""; 0]);
}

#[test]
fn rank_0_whose_user_may_not_listen_on_the_port_hears_so_before_the_program_starts() {
    if !is_root() || !is_there("setpriv") || !is_there("unshare") {
        return;
    }
    // In a network of its own, only root listens below 1024, whatever this machine allows.
    let run = |user: &[&str], words: &[&str], rank: &str, port: &str| {
        let mut command: Command = clean("unshare");
        command.arg("--net").args(user).arg("mpienv").args(words);
        command.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_RANK", rank)]);
        command.envs([("LOCAL_WORLD_SIZE", "2"), ("MASTER_PORT", port)]);
        let Output { stdout, stderr, .. } = command.output().unwrap();
        String::from_utf8([stdout, stderr].concat()).unwrap()
    };
    let ordinary = ["setpriv", "--inh-caps=-net_bind_service", "--bounding-set=-net_bind_service"];
    let commands: [&[&str]; 4] =
        [&["export"], &["exec", "--", "true"], &["show"], &["doctor", "--timeout", "0"]];
    for words in commands {
        let severity = if words[0] == "doctor" { "error" } else { "warning" };
        let found = format!(
            "{severity} [port-privileged]: this is rank 0, and its user may not listen on its port 80\n"
        );
        let said = run(&ordinary, words, "0", "80");
        assert_eq!(said.matches(&found).count(), 1, "{words:?}: {said}");
        assert!(said.contains("remedy: give all ranks a MASTER_PORT from 1024 up\n"), "{said}");
        for (user, rank, port) in
            [(&[][..], "0", "80"), (&ordinary, "1", "80"), (&ordinary, "0", "6105")]
        {
            let said = run(user, words, rank, port);
            assert!(!said.contains("port-privileged"), "{words:?}: {said}");
        }
    }
}

#[test]
fn exec_on_one_node_warns_of_a_port_that_is_in_use_and_starts_the_program() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().port().to_string();
    let said = format!(
        "warning [port-in-use]: this is rank 0, but another program already listens on its port {taken}\n"
    );
    let place = |rank, size| {
        [("RANK", rank), ("WORLD_SIZE", size), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", "2")]
    };
    let exec = |port: &str, vars: Vars, words: &[&str]| {
        let words = [&["exec"], words, &["--", "echo", "started"]].concat();
        run(&words, &[vars, &[("MASTER_PORT", port), ("MASTER_ADDR", "127.0.0.1")]])
    };
    for vars in [&[][..], &place("0", "2")] {
        let (code, stdout, stderr) = exec(&taken, vars, &[]);
        assert_eq!((code, stdout.as_str()), (Some(0), "started\n"), "{stderr}");
        assert!(stderr.starts_with(&said), "{stderr}");
        assert_eq!(exec(&taken, vars, &["-q"]).2, "");
        assert_eq!(exec(&free_port().to_string(), vars, &[]).2, "");
    }
    // Each command may find the port free or in use.
    let twice = run(
        &["exec", "--", "mpienv", "exec", "--", "true"],
        &[&place("0", "2"), &[("MASTER_PORT", &taken), ("MASTER_ADDR", "127.0.0.1")]],
    );
    assert_eq!(twice.2.matches("[port-in-use]").count(), 2, "{}", twice.2);
    // torchrun's agent listens there for its workers.
    let torchrun = [
        &place("0", "2")[..],
        &[("GROUP_RANK", "0"), ("GROUP_WORLD_SIZE", "1"), ("TORCHELASTIC_RUN_ID", "none")],
        &[("TORCHELASTIC_RESTART_COUNT", "0"), ("TORCHELASTIC_USE_AGENT_STORE", "True")],
    ]
    .concat();
    assert_eq!(exec(&taken, &torchrun, &[]), (Some(0), "started\n".to_owned(), String::new()));
    let own_store = [&torchrun[..], &[("TORCHELASTIC_USE_AGENT_STORE", "False")]].concat();
    assert!(exec(&taken, &own_store, &[]).2.starts_with(&said));
    // Other ranks cannot know, and rank 0 of several nodes may not be the one that listens.
    assert_eq!(exec(&taken, &place("1", "2"), &[]).2, "");
    assert_eq!(exec(&taken, &place("0", "4"), &[]).2, "");
    // One rank meets no other rank, so its meeting does not find out.
    let (code, stdout, stderr) = exec(&taken, &[], &["--meet", "5"]);
    assert_eq!((code, stdout.as_str()), (Some(0), "started\n"), "{stderr}");
    assert!(stderr.starts_with(&said), "{stderr}");
    let (code, stdout, stderr) = run(&["check", "--timeout", "5"], &[&[("MASTER_PORT", &taken)]]);
    assert!(stdout.starts_with("1 rank on 1 host"), "{stdout}{stderr}");
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.starts_with(&said.replace("warning", "error")), "{stderr}");
    // A meeting of several ranks says it once, and fails.
    let (code, stdout, stderr) = exec(&taken, &place("0", "2"), &["--meet", "5"]);
    assert_eq!((code, stdout.as_str()), (Some(3), ""), "{stderr}");
    assert!(stderr.starts_with("mpienv: port ") && !stderr.contains("[port-in-use]"), "{stderr}");
}

#[test]
fn launch_on_one_node_warns_of_a_port_that_is_in_use_and_starts_the_workers() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().port().to_string();
    let said = format!(
        "warning [port-in-use]: this is rank 0, but another program already listens on its port {taken}\n"
    );
    let launch = |vars: Vars, words: &[&str]| {
        let words = [&["launch", "--nproc-per-node", "2"], words, &["--", "echo", "up"]].concat();
        let (code, stdout, stderr) = run(&words, &[vars]);
        assert_eq!((code, stdout.matches("up").count()), (Some(0), 2), "{stderr}");
        stderr
    };
    let own: Vars = &[("MASTER_PORT", &taken)];
    let unset = format!("unset MASTER_PORT={taken}, so that the job uses its own port ");
    for words in [&[][..], &["--meet", "5"]] {
        let stderr = launch(own, words);
        assert!(stderr.starts_with(&said) && stderr.contains(&unset), "{stderr}");
    }
    assert_eq!(launch(own, &["-q"]), "");
    assert_eq!(launch(&[("MASTER_PORT", &free_port().to_string())], &[]), "");
    // Without one, the launch finds a port that is free.
    assert_eq!(launch(&[], &[]), "");
}
