//! The variables of programs with a launcher of their own: what each says about a process.

use mpienv::{LaunchStyle, Launcher};

use crate::platforms::{Pairs, error, read};

/// What `msrun` sets for the second worker on one node (recorded).
const MSRUN: Pairs = &[
    ("MS_ROLE", "MS_WORKER"),
    ("RANK_ID", "1"),
    ("RANK_SIZE", "2"),
    ("MS_NODE_ID", "1"),
    ("MS_WORKER_NUM", "2"),
    ("DEVICE_ID", "1"),
    ("MS_SCHED_HOST", "127.0.0.1"),
    ("MS_SCHED_PORT", "8118"),
];

/// The same variables with other values.
fn with<'a>(vars: Pairs<'a>, more: Pairs<'a>) -> Vec<(&'a str, &'a str)> {
    [vars, more].concat()
}

#[test]
fn a_worker_of_msrun_on_one_node() {
    let info = read(MSRUN).unwrap();
    assert_eq!(info.launcher(), Launcher::Msrun);
    assert_eq!((info.rank().index(), info.world_size()), (1, 2));
    assert_eq!((info.local_rank(), info.local_world_size()), (Some(1), Some(2)));
    assert_eq!(info.master_addr().unwrap().to_string(), "127.0.0.1");
    assert_ne!(info.master_port().get(), 8118, "the scheduler listens there");
    assert_eq!(info.findings(), []);
}

#[test]
fn a_worker_of_msrun_on_the_second_of_two_nodes() {
    let vars = with(
        MSRUN,
        &[
            ("RANK_ID", "5"),
            ("RANK_SIZE", "8"),
            ("MS_NODE_ID", "5"),
            ("MS_WORKER_NUM", "8"),
            ("MS_SCHED_HOST", "10.0.0.4"),
        ],
    );
    let info = read(&vars).unwrap();
    assert_eq!((info.rank().index(), info.world_size()), (5, 8));
    assert_eq!((info.local_rank(), info.local_world_size()), (Some(1), None));
    assert_eq!((info.node_rank(), info.launch_style()), (None, LaunchStyle::Unknown));
    assert_eq!(info.master_addr().unwrap().to_string(), "10.0.0.4");
    // One task of a Slurm step on each node has started msrun.
    let step: Pairs = &[
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_GTIDS", "1"),
        ("SLURM_NODEID", "1"),
        ("SLURM_NNODES", "2"),
        ("SLURM_STEP_NODELIST", "a,b"),
    ];
    let inside = read(&with(&vars, step)).unwrap();
    assert_eq!((inside.launcher(), inside.rank().index()), (Launcher::Msrun, 5));
    assert_eq!(inside.findings(), []);
    let other = read(&with(&with(&vars, step), &[("RANK_ID", "2"), ("MS_NODE_ID", "2")])).unwrap();
    assert_eq!(other.findings()[0].code, "launchers-disagree");
}

#[test]
fn a_scheduler_of_mindspore_and_numbers_that_contradict_each_other_are_errors() {
    for (more, expected) in [
        (
            &[("MS_ROLE", "MS_SCHED")][..],
            "msrun: MS_ROLE=\"MS_SCHED\": it does not determine the rank: the scheduler is no rank; ",
        ),
        (
            &[("MS_ROLE", "MS_PSERVER")],
            "msrun: MS_ROLE=\"MS_PSERVER\": it does not determine the rank: only MS_WORKER is a rank; ",
        ),
        (&[("RANK_ID", "2")], "msrun: RANK_ID=\"2\": must be from 0 to 1"),
        (&[("RANK_ID", "one")], "msrun: RANK_ID=\"one\": not a whole number"),
        (&[("MS_WORKER_NUM", "4")], "msrun: RANK_SIZE=\"2\": it contradicts MS_WORKER_NUM=\"4\"; "),
        (
            &[("RANK_ID", ""), ("MS_NODE_ID", "worker_a")],
            "msrun: MS_NODE_ID=\"worker_a\": not a whole number",
        ),
        (&[("MS_SCHED_HOST", "a b")], "msrun: MS_SCHED_HOST=\"a b\": not a host"),
    ] {
        let error = error(&with(MSRUN, more));
        assert!(error.starts_with(expected), "{error}");
    }
    // The scheduler of a script has no number at all.
    let scheduler: Pairs = &[("MS_ROLE", "MS_SCHED"), ("MS_WORKER_NUM", "2")];
    assert!(error(scheduler).contains("the scheduler is no rank"));
    // Where another launcher gives the rank, the cluster's variables do not.
    let of_slurm: Pairs = &[("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "2")];
    let cluster: Pairs = &[("MS_ROLE", "MS_WORKER"), ("MS_WORKER_NUM", "2")];
    assert_eq!(read(&with(of_slurm, cluster)).unwrap().launcher(), Launcher::Slurm);
    let alone = read(cluster).unwrap();
    assert_eq!((alone.world_size(), alone.findings()[0].code), (1, "place-unknown"));
}
