//! The real mpirun.

use std::collections::BTreeSet;

use crate::support::tool::{clean, is_there};

/// The standard output of `mpirun -n 4` of a command, line by line.
fn mpirun(words: &[&str]) -> Option<Vec<String>> {
    if !is_there("mpirun") {
        return None;
    }
    let mut command = clean("mpirun");
    // Without these, Open MPI refuses to run as root, as containers do.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args(["-n", "4", "--oversubscribe"]).args(words);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

#[test]
fn every_rank_exports_its_own_place_as_json() {
    // One line per rank, in one write, so that the ranks' lines cannot mix.
    let script = r#"printf '%s\n' "$(mpienv export --shell json | tr -d '\n')""#;
    let Some(lines) = mpirun(&["bash", "-c", script]) else { return };
    assert_eq!(lines.len(), 4);
    let (mut ranks, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for line in &lines {
        let exports: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(exports["WORLD_SIZE"], "4");
        assert_eq!(exports["LOCAL_WORLD_SIZE"], "4");
        assert_eq!(exports["NODE_RANK"], "0");
        assert_eq!(exports["MASTER_ADDR"], "127.0.0.1");
        ports.insert(exports["MASTER_PORT"].as_str().unwrap().to_owned());
        ranks.insert((exports["RANK"].to_string(), exports["LOCAL_RANK"].to_string()));
    }
    assert_eq!(ranks.len(), 4);
    let port: u16 = ports.pop_first().unwrap().parse().unwrap();
    assert!(ports.is_empty() && (20_000..30_000).contains(&port), "{port} {ports:?}");
}

#[test]
fn a_shell_evals_its_own_place() {
    let script = r#"eval "$(mpienv export --master-port 29500)"; echo $RANK/$WORLD_SIZE@$MASTER_ADDR:$MASTER_PORT"#;
    let Some(mut lines) = mpirun(&["bash", "-c", script]) else { return };
    lines.sort();
    let expected: Vec<_> = (0..4).map(|rank| format!("{rank}/4@127.0.0.1:29500")).collect();
    assert_eq!(lines, expected);
}

#[test]
fn exec_starts_a_program_with_its_own_place() {
    let script = "echo $RANK $LOCAL_RANK $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_LOCAL_RANK";
    let Some(lines) = mpirun(&["mpienv", "exec", "--", "sh", "-c", script]) else { return };
    let mut seen = BTreeSet::new();
    for line in &lines {
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!((words[0], words[1]), (words[2], words[3]), "{line}");
        seen.insert(words[0].to_owned());
    }
    assert_eq!(seen.len(), 4);
}

#[test]
fn pytorch_gets_all_that_its_env_method_needs() {
    let script = "printf '%s\\n' \"$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT\"";
    let Some(mut lines) = mpirun(&[
        "mpienv",
        "exec",
        "--master-port",
        "29500",
        "--for",
        "torch",
        "--",
        "sh",
        "-c",
        script,
    ]) else {
        return;
    };
    lines.sort();
    let expected: Vec<_> =
        (0..4).map(|rank| format!("{rank} 4 {rank} 4 127.0.0.1:29500")).collect();
    assert_eq!(lines, expected);
}

#[test]
fn a_rank_that_asks_pmix_hears_at_once_that_it_can_no_longer_call_mpi() {
    let asked = |words: &[&str]| {
        Some(mpirun(&[&["sh", "-c", "exec \"$@\" 2>&1", "sh", "mpienv"], words].concat())?.concat())
    };
    let Some(said) = asked(&["exec", "--ask-pmix", "--", "true"]) else { return };
    assert_eq!(said.matches("mpienv: warning: --ask-pmix under Open MPI 4").count(), 1, "{said}");
    assert!(said.contains("MPI_Init") && said.contains("mpirun -x MASTER_ADDR=HOST"), "{said}");
    assert_eq!(asked(&["exec", "--", "true"]).unwrap(), "");
    assert_eq!(asked(&["exec", "-q", "--ask-pmix", "--", "true"]).unwrap(), "");
}

#[test]
fn mindspore_gets_workers_and_one_scheduler_none_of_which_sees_the_launcher() {
    let folder = tempfile::tempdir().unwrap();
    // The scheduler writes a file for which all workers wait, and exits when all of them have
    // finished.
    let script = format!(
        "cd {}; left=$(env | grep -c -E '^(OMPI|PMIX|PMI)_'); \
         said=\"$MS_ROLE ${{MS_NODE_ID-none}} $MS_WORKER_NUM $MS_SCHED_HOST:$MS_SCHED_PORT $left\"; \
         test $MS_ROLE = MS_WORKER || {{ echo $said >> scheduler; \
         while test $(ls | wc -l) -lt 5; do sleep 0.01; done; exit; }}; \
         while ! test -s scheduler; do sleep 0.01; done; printf '%s\\n' \"$said\"; touch worker.$MS_NODE_ID",
        folder.path().display()
    );
    let Some(mut lines) = mpirun(&[
        "mpienv",
        "exec",
        "--master-port",
        "29500",
        "--for",
        "mindspore",
        "--",
        "sh",
        "-c",
        &script,
    ]) else {
        return;
    };
    lines.sort();
    let workers: Vec<_> =
        (0..4).map(|rank| format!("MS_WORKER {rank} 4 127.0.0.1:29500 0")).collect();
    assert_eq!(lines, workers);
    let scheduler = std::fs::read_to_string(folder.path().join("scheduler")).unwrap();
    assert_eq!(scheduler, "MS_SCHED none 4 127.0.0.1:29500 0\n");
}

#[test]
fn exec_gives_each_of_two_ranks_all_cores_unless_mpirun_was_asked_to_bind() {
    if !is_there("mpirun") || !is_there("taskset") {
        return;
    }
    let cores = |words: &[&str]| {
        let mut command = clean("mpirun");
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        // nproc counts no more than OMP_NUM_THREADS.
        let nproc = ["env", "-u", "OMP_NUM_THREADS", "nproc"];
        let output = command.args(["-n", "1"]).args(words).args(nproc).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let all = clean("taskset").args(["-c", "0-1023", "nproc"]).output().unwrap();
    let all = String::from_utf8(all.stdout).unwrap().trim().to_owned();
    let bound = cores(&[]);
    assert_eq!(cores(&["mpienv", "exec", "--"]), all);
    assert_eq!(cores(&["mpienv", "exec", "--keep-binding", "--"]), bound);
    // Placement by node requests no cores.
    assert_eq!(cores(&["--map-by", "ppr:1:node", "mpienv", "exec", "--"]), all);
    let rankfile = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(rankfile.path(), "rank 0=localhost slot=0\n").unwrap();
    for asked in [
        "--bind-to core",
        "--bind-to-core",
        "--cpu-set 0",
        "--cpu-list 0",
        "--map-by core",
        "--map-by core:PE=1",
        "--map-by slot:PE=1",
        "--bycore",
        "--cpus-per-proc 1",
        &format!("--rankfile {}", rankfile.path().display()),
    ] {
        let words: Vec<_> = asked.split(' ').collect();
        assert_eq!(
            cores(&[&words, &["mpienv", "exec", "--"][..]].concat()),
            cores(&words),
            "{asked}"
        );
    }
}

#[test]
fn exec_leaves_a_binding_that_a_person_chose() {
    if !is_there("taskset") {
        return;
    }
    let allowed = clean("taskset").args(["-cp", &std::process::id().to_string()]).output().unwrap();
    let allowed = String::from_utf8(allowed.stdout).unwrap();
    let first = allowed.trim().rsplit(": ").next().unwrap().split([',', '-']).next().unwrap();
    let output =
        clean("taskset").args(["-c", first, "mpienv", "exec", "--", "nproc"]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "1\n");
}
