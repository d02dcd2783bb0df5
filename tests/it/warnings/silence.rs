//! Which process prints a warning, how often, and what silences it.

use super::*;

#[test]
fn what_mpienv_started_does_not_warn_again() {
    for (vars, code) in UNPLACED {
        let stderr = run(&["exec", "--", "mpienv", "exec", "--", "true"], &[vars]).2;
        assert_eq!(stderr.matches(&format!("[{code}]")).count(), 1, "{stderr}");
    }
}

#[test]
fn no_warning_is_repeated_by_the_program_that_exec_became() {
    let step: Vars = &[
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "0"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NODEID", "0"),
        ("SLURM_STEP_NUM_TASKS", "3"),
        ("SLURM_STEP_TASKS_PER_NODE", "3"),
        ("SLURM_GTIDS", "0,1"),
        ("MASTER_ADDR", "127.0.0.1"),
    ];
    let program =
        Path::new(env!("CARGO_BIN_EXE_mpienv")).with_file_name("examples").join("cluster_info");
    let program = program.to_str().unwrap();
    for (vars, code) in [(step, "slurm-local-sizes-differ"), (STALE_MASTER, "master-not-here")] {
        let count = |words: &[&str]| run(words, &[vars]).2.matches(&format!(" [{code}]: ")).count();
        assert_eq!(count(&["exec", "--", program]), 1, "{code}");
        assert_eq!(
            count(&["exec", "--", "mpienv", "exec", "--", "mpienv", "exec", "--", program]),
            1,
            "{code}"
        );
        // What exec did not say is said.
        let said = run(&["exec", "-q", "--", "mpienv", "exec", "--", "true"], &[vars]).2;
        assert_eq!(said.matches(&format!(" [{code}]: ")).count(), 1, "{said}");
    }
}

#[test]
fn an_error_is_printed_whatever_a_user_silences() {
    for words in COMMANDS {
        let quiet = [&words[..1], &["-q"], &words[1..]].concat();
        let by_variable: Vars = &[("MPIENV_QUIET", "1")];
        for (words, vars) in [(&quiet[..], &[][..]), (words, by_variable)] {
            let (status, _, stderr) = run(words, &[STALE_MASTER, MISSPELLED, vars]);
            assert_eq!(status, Some(0), "{words:?}: {stderr}");
            assert!(stderr.starts_with("error [master-not-here]: "), "{words:?}: {stderr}");
            assert!(!stderr.contains("warning "), "{words:?}: {stderr}");
        }
    }
}

#[test]
fn warnings_can_be_silenced_by_an_option_and_by_a_variable() {
    for words in COMMANDS {
        let quiet = [&words[..1], &["-q"], &words[1..]].concat();
        assert_eq!(run(&quiet, &[SCRIPT]).2, "", "{quiet:?}");
        assert_eq!(run(words, &[SCRIPT, &[("MPIENV_QUIET", "1")]]).2, "", "{words:?}");
        assert_ne!(run(words, &[SCRIPT, &[("MPIENV_QUIET", "0")]]).2, "", "{words:?}");
    }
}

#[test]
fn only_a_nodes_first_rank_warns_and_another_nodes_says_which_it_is() {
    let second: Vars = &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_RANK", "1")];
    assert_eq!(run(&["export"], &[DISAGREE, second]).2, "");
    let other_node: Vars = &[
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
        ("MASTER_ADDR", "node0"),
    ];
    let stderr = run(&["export"], &[DISAGREE, other_node]).2;
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert!(
        stderr.starts_with(&format!("warning [launchers-disagree]: rank 1 on {}: ", host.trim())),
        "{stderr}"
    );
}

#[test]
fn mpiruns_ranks_warn_once() {
    if !is_there("mpirun") {
        return;
    }
    let mut command = clean("mpirun");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
        .args(["-n", "3", "--oversubscribe", "mpienv", "exec", "--", "true"])
        .env("RANK", "1")
        .env("WORLD_SIZE", "9");
    let stderr = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert_eq!(stderr.matches("[launchers-disagree]").count(), 1, "{stderr}");
}

#[test]
fn ranks_to_which_mpirun_passes_a_request_to_be_alone_warn_and_a_ranks_own_command_does_not() {
    if !is_there("mpirun") {
        return;
    }
    let said = |outside: &str, inside: &str| {
        let mut command = clean("mpirun");
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("MPIENV_LAUNCHER", outside).args(["-n", "2", "--oversubscribe", "sh", "-c"]);
        let script = format!("{inside} mpienv exec -- true");
        String::from_utf8(command.arg(script).output().unwrap().stderr).unwrap()
    };
    let inherited = said("alone", "");
    let mut command = clean("mpirun");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args(["-x", "MPIENV_LAUNCHER=alone", "-n", "2", "--oversubscribe"]);
    let output = command.args(["mpienv", "exec", "--", "true"]).output().unwrap();
    for said in [inherited, String::from_utf8(output.stderr).unwrap()] {
        let warnings = said.matches("MPIENV_LAUNCHER=alone says rank 0 of 1");
        assert_eq!(warnings.count(), 2, "{said}");
    }
    for inside in ["MPIENV_LAUNCHER=alone", "export MPIENV_LAUNCHER=alone; exec"] {
        assert_eq!(said("", inside), "", "{inside}");
    }
    let place = "RANK=0 WORLD_SIZE=1";
    let inherited = said("user", place);
    assert_eq!(inherited.matches("[launchers-disagree]").count(), 2, "{inherited}");
    assert_eq!(said("", &format!("MPIENV_LAUNCHER=user {place}")), "");
}
