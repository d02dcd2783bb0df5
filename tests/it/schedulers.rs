//! Schedulers that number a job's processes, or run one command for all of them: HTCondor, Google
//! Batch, OAR, Azure Batch.

use std::fs;

use mpienv::{LaunchStyle, Launcher, Severity};
use serde_json::Value;

use super::platforms::{Pairs, error, read};
use crate::support::tool::clean;

const HTCONDOR: Pairs = &[
    ("_CONDOR_PROCNO", "1"),
    ("_CONDOR_NPROCS", "2"),
    ("_CONDOR_REMOTE_SPOOL_DIR", "/var/lib/condor/spool/7/0/cluster7.proc0.subproc0"),
    ("_CONDOR_SLOT", "slot1_2"),
];

const GOOGLE: Pairs =
    &[("BATCH_TASK_INDEX", "1"), ("BATCH_TASK_COUNT", "2"), ("BATCH_HOSTS_FILE", "/no/such/hosts")];

const AZURE: Pairs = &[
    ("AZ_BATCH_NODE_LIST", "10.0.0.4;10.0.0.5"),
    ("AZ_BATCH_HOST_LIST", "10.0.0.4,10.0.0.5"),
    ("AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"),
    ("AZ_BATCH_IS_CURRENT_NODE_MASTER", "true"),
];

/// What `show` says with these variables.
fn shown(vars: Pairs) -> Value {
    let mut show = clean("mpienv");
    let output = show.args(["show", "--json"]).envs(vars.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The codes and severities of the findings.
fn codes(vars: Pairs) -> Vec<(&'static str, Severity)> {
    read(vars).unwrap().findings().iter().map(|found| (found.code, found.severity)).collect()
}

#[test]
fn htcondors_parallel_universe() {
    let info = read(HTCONDOR).unwrap();
    assert_eq!(
        (info.launcher(), info.rank().index(), info.world_size()),
        (Launcher::HtCondor, 1, 2)
    );
    assert_eq!((info.local_rank(), info.launch_style()), (None, LaunchStyle::Unknown));
    assert!((20_000..30_000).contains(&info.master_port().get()));
    // Nothing names process 0's machine.
    let error = info.exports().unwrap_err();
    assert!(error.remedy().contains("condor_chirp set_job_attr"), "{error}");
    let json = shown(HTCONDOR);
    assert_eq!((&json["launcher"], &json["rank"]), (&"htcondor".into(), &1.into()));
    assert_eq!(
        (&json["master_addr"], &json["findings"][0]["code"]),
        (&Value::Null, &"master-unknown".into())
    );
    let given = read(&[HTCONDOR, &[("MASTER_ADDR", "m0")]].concat()).unwrap();
    assert_eq!(
        (given.master_addr().unwrap().to_string(), given.findings().len()),
        ("m0".into(), 0)
    );
}

#[test]
fn half_of_htcondors_variables_and_wrong_ones_are_errors() {
    assert_eq!(codes(&HTCONDOR[1..2]), [("place-unknown", Severity::Warning)]);
    for (vars, expected) in [
        (&HTCONDOR[..1], "HTCondor: _CONDOR_NPROCS is not set, although _CONDOR_PROCNO=\"1\" is"),
        (
            &[("_CONDOR_PROCNO", "2"), ("_CONDOR_NPROCS", "2")],
            "HTCondor: _CONDOR_PROCNO=\"2\": must be from 0 to 1, because the size is 2",
        ),
        (
            &[("_CONDOR_PROCNO", "x"), ("_CONDOR_NPROCS", "2")],
            "HTCondor: _CONDOR_PROCNO=\"x\": not a whole number",
        ),
    ] {
        let error = error(vars);
        assert!(error.starts_with(expected) && error.contains("; "), "{error}");
    }
}

#[test]
fn jobs_of_htcondors_other_universes_are_alone_in_silence() {
    let vanilla: Pairs = &[
        ("_CONDOR_SLOT", "slot1_1"),
        ("_CONDOR_SCRATCH_DIR", "/var/lib/condor/execute/dir_7"),
        ("_CONDOR_JOB_AD", "/var/lib/condor/execute/dir_7/.job.ad"),
        ("_CONDOR_MACHINE_AD", "/var/lib/condor/execute/dir_7/.machine.ad"),
        ("_CONDOR_JOB_IWD", "/home/user"),
        ("_CONDOR_JOB_PIDS", ""),
        ("_CHIRP_DELAYED_UPDATE_PREFIX", "Chirp*"),
        ("BATCH_SYSTEM", "HTCondor"),
        ("OMP_NUM_THREADS", "1"),
    ];
    let info = read(vanilla).unwrap();
    assert_eq!((info.launcher(), info.findings()), (Launcher::Alone, &[][..]));
}

#[test]
fn google_batchs_tasks_with_a_file_of_hosts_are_a_job() {
    let info = read(GOOGLE).unwrap();
    assert_eq!(
        (info.launcher(), info.rank().index(), info.world_size()),
        (Launcher::GoogleBatch, 1, 2)
    );
    assert_eq!(info.local_rank(), None);
    assert!(info.exports().is_err());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hosts");
    // Two tasks on two hosts, and two on one host, which need not run at the same time.
    for (hosts, style) in [("a\nb\n", "per-node"), ("a\n", "unknown"), ("", "unknown")] {
        fs::write(&path, hosts).unwrap();
        let json = shown(&[&GOOGLE[..2], &[("BATCH_HOSTS_FILE", path.to_str().unwrap())]].concat());
        assert_eq!((&json["rank"], &json["launch_style"]), (&1.into(), &style.into()), "{hosts:?}");
    }
    let error = error(&[("BATCH_TASK_INDEX", "1"), GOOGLE[2]]);
    assert!(error.starts_with("Google Batch: BATCH_TASK_COUNT is not set"), "{error}");
    let above = super::platforms::error(&[("BATCH_TASK_INDEX", "2"), GOOGLE[1], GOOGLE[2]]);
    assert!(
        above.starts_with("Google Batch: BATCH_TASK_INDEX=\"2\": must be from 0 to 1"),
        "{above}"
    );
}

#[test]
fn google_batchs_array_of_independent_tasks_is_only_noted() {
    assert_eq!(codes(&GOOGLE[..2]), [("place-unknown", Severity::Note)]);
    assert_eq!(codes(&GOOGLE[..1]), [("place-unknown", Severity::Note)]);
    assert_eq!(codes(&[("BATCH_TASK_INDEX", "0"), ("BATCH_TASK_COUNT", "1")]), []);
    let info = read(&GOOGLE[..2]).unwrap();
    assert_eq!(info.launcher(), Launcher::Alone);
    assert!(info.findings()[0].remedy.contains("requireHostsFile"), "{:?}", info.findings());
}

#[test]
fn oars_script_runs_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nodes");
    // The file has a line for each core.
    for (hosts, severity) in [("a\na\nb\nb\n", "warning"), ("a\na\n", "note"), ("", "warning")] {
        fs::write(&path, hosts).unwrap();
        let json = shown(&[("OAR_JOB_ID", "7"), ("OAR_NODEFILE", path.to_str().unwrap())]);
        let finding = &json["findings"][0];
        assert_eq!(
            (&finding["code"], &finding["severity"]),
            (&"oar-not-a-task".into(), &severity.into())
        );
        assert!(finding["remedy"].as_str().unwrap().contains("-machinefile $OAR_NODEFILE"));
    }
    assert_eq!(codes(&[("OAR_JOB_ID", "7")]), [("oar-not-a-task", Severity::Warning)]);
    let ranks: Pairs = &[("OAR_JOB_ID", "7"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")];
    assert_eq!(read(ranks).unwrap().world_size(), 2);
}

#[test]
fn azure_batchs_command_runs_once_and_its_coordination_command_on_every_node() {
    assert_eq!(codes(AZURE), [("azure-batch-not-a-task", Severity::Warning)]);
    for list in [&AZURE[..1], &AZURE[1..2], &AZURE[3..]] {
        assert_eq!(codes(list), [("azure-batch-not-a-task", Severity::Warning)], "{list:?}");
    }
    let one: Pairs = &[("AZ_BATCH_NODE_LIST", "10.0.0.4"), AZURE[3]];
    assert_eq!(codes(one), [("azure-batch-not-a-task", Severity::Note)]);
    let other = [&AZURE[..3], &[("AZ_BATCH_IS_CURRENT_NODE_MASTER", "false")]].concat();
    let error = error(&other);
    assert!(
        error.starts_with("AZ_BATCH_IS_CURRENT_NODE_MASTER=\"false\": Azure Batch has"),
        "{error}"
    );
    assert!(error.contains("mpirun") && error.contains("MPIENV_LAUNCHER=alone"), "{error}");
    // With mpirun, or with a place of its own, the process is placed.
    for ranks in [[("PMI_RANK", "1"), ("PMI_SIZE", "2")], [("RANK", "1"), ("WORLD_SIZE", "2")]] {
        let info = read(&[&other, &ranks[..]].concat()).unwrap();
        assert_eq!((info.rank().index(), info.findings()), (1, &[][..]));
        assert_eq!(info.master_addr().unwrap().to_string(), "10.0.0.4");
    }
    let alone = read(&[&other[..], &[("MPIENV_LAUNCHER", "alone")]].concat()).unwrap();
    assert_eq!((alone.launcher(), alone.findings()), (Launcher::Alone, &[][..]));
}
