//! Places that the user sets because the platform does not: `--one-per-node`, `--node-rank` and
//! `--nnodes`.

use mpienv::{ClusterInfo, LaunchStyle, Rank};

use crate::support::tool::clean;

type Pairs<'a> = &'a [(&'a str, &'a str)];

const RANK_1: Pairs = &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node-0")];

/// Exit code, stdout and stderr of a command that has only these variables.
fn run(vars: Pairs, line: &str) -> (Option<i32>, String, String) {
    let output = clean("mpienv").envs(vars.iter().copied()).args(line.split(' ')).output().unwrap();
    let [out, err] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    (output.status.code(), out, err)
}

/// The stdout of a command that must succeed.
fn printed(vars: Pairs, line: &str) -> String {
    let (code, out, err) = run(vars, line);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{vars:?} {line}");
    out
}

#[test]
fn a_rank_without_a_local_rank_counts_nodes_if_it_is_said_to() {
    let launch = "launch --nproc-per-node 2 --one-per-node -- printenv RANK";
    let mut lines: Vec<_> = printed(RANK_1, launch).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["[2] 2", "[3] 3"]);
    let exports = printed(RANK_1, "export --per-node --one-per-node --shell docker");
    for line in ["PET_NODE_RANK=1", "PET_NNODES=2", "PET_MASTER_ADDR=node-0", "NODE_RANK=1"] {
        assert!(exports.lines().any(|found| found == line), "{line}: {exports}");
    }
    assert_eq!(printed(RANK_1, "exec --per-node --one-per-node -- printenv PET_NODE_RANK"), "1\n");
    // Without the option, the error names it.
    for line in
        ["launch --nproc-per-node 2 -- true", "export --per-node", "exec --per-node -- true"]
    {
        let (code, _, err) = run(RANK_1, line);
        assert!(code == Some(1) && err.contains("--one-per-node"), "{err}");
    }
}

#[test]
fn a_node_that_no_variable_numbers_is_numbered_by_options() {
    let pod: Pairs = &[("JOB_COMPLETION_INDEX", "1")];
    let options = "--node-rank 1 --nnodes 2 --master-addr job-0.svc";
    let launch = format!(
        "launch --nproc-per-node 2 {options} -- printenv RANK WORLD_SIZE NODE_RANK MASTER_ADDR"
    );
    let mut lines: Vec<_> = printed(pod, &launch).lines().map(str::to_owned).collect();
    lines.sort();
    let expected = |rank| [rank, "4", "1", "job-0.svc"].map(|value| format!("[{rank}] {value}"));
    let mut expected = [expected("2"), expected("3")].concat();
    expected.sort();
    assert_eq!(lines, expected);
    let node = printed(
        pod,
        &format!("exec --per-node {options} -- printenv PET_NODE_RANK PET_NNODES PET_MASTER_ADDR"),
    );
    assert_eq!(node, "1\n2\njob-0.svc\n");
    // A program started inside reads the same place again.
    let inner = printed(pod, &format!("exec {options} -- mpienv show --json"));
    let inner: serde_json::Value = serde_json::from_str(&inner).unwrap();
    assert_eq!(
        (&inner["rank"], &inner["world_size"], &inner["launch_style"]),
        (&1.into(), &2.into(), &"per-node".into())
    );
    // Underscores are accepted, as torchrun accepts them.
    assert_eq!(
        printed(&[], "exec --node_rank 0 --nnodes 1 -- printenv MASTER_ADDR"),
        "127.0.0.1\n"
    );
    let logs = tempfile::tempdir().unwrap();
    let log_dir = logs.path().to_str().unwrap();
    let line = "--nproc_per_node 1 --master_addr 127.0.0.1 --master_port 29500";
    printed(&[], &format!("launch {line} --log_dir {log_dir} -- printenv MASTER_PORT"));
    assert_eq!(std::fs::read_to_string(logs.path().join("rank.0/stdout")).unwrap(), "29500\n");
}

#[test]
fn errors_and_findings_of_a_place_that_is_not_there_name_the_options() {
    let hint = "or, for one process on each node, pass mpienv --node-rank R --nnodes N --master-addr HOST, or set RANK=R \
                WORLD_SIZE=N LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=HOST";
    let cases: [Pairs; 7] = [
        &[("JOB_COMPLETION_INDEX", "1")],
        &[("LWS_LEADER_ADDRESS", "a"), ("LWS_GROUP_SIZE", "2")],
        &[("VC_TASK_INDEX", "1")],
        &[("PRIMARY_ADDR", "10.0.0.4"), ("NUM_NODES", "2")],
        &[("PMIX_RANK", "1")],
        &[("RANK", "1")],
        &[("NNODES", "2")],
    ];
    for vars in cases {
        let (code, _, err) = run(vars, "launch --nproc-per-node 2 -- true");
        assert!(code == Some(1) && err.contains(hint), "{vars:?}: {err}");
    }
    // Variables that users set for torchrun: each node would be a separate job.
    let (_, _, err) = run(&[("NODE_RANK", "1"), ("MASTER_ADDR", "127.0.0.1")], "exec -- true");
    assert!(
        err.contains("NODE_RANK=\"1\" is set, but RANK and WORLD_SIZE are not")
            && err.contains(hint),
        "{err}"
    );
    let (_, finding, _) = run(&[("LOCAL_RANK", "5")], "show");
    assert!(finding.contains("place-unknown") && finding.contains(hint), "{finding}");
    // The variables that it names give the place.
    let named = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("MASTER_ADDR", "node-0"),
    ];
    for vars in cases {
        let line = "launch --nproc-per-node 2 -- printenv RANK";
        let mut lines: Vec<_> =
            printed(&[vars, &named].concat(), line).lines().map(str::to_owned).collect();
        lines.sort();
        assert_eq!(lines, ["[2] 2", "[3] 3"], "{vars:?}");
    }
}

#[test]
fn the_option_for_azuremls_pytorch_jobs_comes_before_other_cures() {
    let node = [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("NODE_RANK", "1")];
    let master = [("MASTER_ADDR", "10.0.0.4"), ("MASTER_PORT", "6105")];
    let vars = [&node[..], &master].concat();
    let (code, _, err) = run(&vars, "launch --nproc-per-node 2 -- true");
    let cure = "the local size; pass --one-per-node if no other process of the job is on its node; or start";
    assert!(code == Some(1) && err.contains(cure), "{err}");
    let line = "launch --one-per-node --nproc-per-node 2 -- printenv RANK";
    let mut lines: Vec<_> = printed(&vars, line).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["[2] 2", "[3] 3"]);
}

#[test]
fn launch_says_first_that_a_rank_and_a_world_size_may_be_left_from_another_job() {
    let (code, _, err) =
        run(&[("RANK", "3"), ("WORLD_SIZE", "8")], "launch --nproc-per-node 2 -- true");
    let cause = "the job's only process on its node: RANK=\"3\" and WORLD_SIZE=\"8\" are set, and LOCAL_WORLD_SIZE is not; \
                 unset RANK and WORLD_SIZE if they are left from another job; or start one process on each node: ";
    assert!(code == Some(1) && err.contains(cause), "{err}");
    assert!(err.contains("or pass --launcher alone, or --one-per-node if no other"), "{err}");
}

#[test]
fn what_contradicts_an_option_is_named() {
    let text = |vars: Pairs, line: &str| {
        let (code, _, err) = run(vars, line);
        assert_ne!(code, Some(0), "{vars:?} {line}");
        err
    };
    let several = [RANK_1, &[("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")]].concat();
    let err = text(&several, "exec --one-per-node -- true");
    assert!(
        err.contains("LOCAL_WORLD_SIZE=\"2\": one process on each node was requested"),
        "{err}"
    );
    let err = text(&[RANK_1, &[("LOCAL_RANK", "1")]].concat(), "exec --one-per-node -- true");
    assert!(err.contains("LOCAL_RANK=\"1\""), "{err}");
    let err = text(&[RANK_1, &[("NODE_RANK", "0")]].concat(), "exec --one-per-node -- true");
    assert!(err.contains("NODE_RANK=\"0\""), "{err}");
    let err = text(&[], "launch --nproc-per-node 1 --node-rank 2 --nnodes 2 -- true");
    assert!(
        err.contains("--node-rank=\"2\": must be from 0 to 1, because the size is 2; give a number below --nnodes"),
        "{err}"
    );
    assert!(text(&[], "show --node-rank 1").contains("--nnodes"));
    assert!(text(&[], "show --nnodes 2").contains("--node-rank"));
    assert!(
        text(&[], "show --one-per-node --nnodes 2 --node-rank 1").contains("cannot be used with")
    );
    // Several nodes need a master. No launcher is there to ask, and each node may have many ranks.
    for start in ["exec", "launch --nproc-per-node 2"] {
        let err = text(&[], &format!("{start} --node-rank 1 --nnodes 2 -- true"));
        let end = "MASTER_ADDR=HOST; or pass mpienv --master-addr HOST\n";
        assert!(err.ends_with(end), "{err}");
        assert!(err.contains("the job has 2 nodes, and no variable names rank 0's host"), "{err}");
    }
}

#[test]
fn the_platforms_master_stays_if_a_person_numbers_the_node() {
    let vars = [
        ("SKYPILOT_NODE_RANK", "0"),
        ("SKYPILOT_NUM_NODES", "3"),
        ("SKYPILOT_NODE_IPS", "10.0.0.4\n10.0.0.5"),
    ];
    let node = Rank::new(1, 2).unwrap();
    let info = ClusterInfo::builder().node(node).vars(vars).read().unwrap();
    assert_eq!((info.rank(), info.launch_style()), (node, LaunchStyle::PerNode));
    assert_eq!(info.master_addr().unwrap().to_string(), "10.0.0.4");
    assert_eq!((info.findings(), info.provenance().rank.as_ref()), (&[][..], "asked for"));
    // A launcher's process.
    let vars = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("MASTER_ADDR", "a")];
    let info = ClusterInfo::builder().node(node).vars(vars).read().unwrap();
    assert_eq!((info.rank(), info.findings()), (node, &[][..]));
}
