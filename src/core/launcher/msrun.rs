//! MindSpore's `msrun`, and scripts that start the workers of its dynamic cluster.
//!
//! A scheduler that is no rank listens at `MS_SCHED_HOST` and `MS_SCHED_PORT`, so the ranks
//! themselves meet at another port of that host.

use crate::environment::digits;
use crate::error::Reason;
use crate::launcher::prelude::*;

variables! {
    /// The variables that msrun sets for every worker.
    pub struct MsrunVars {
        "[MindSpore: msrun](https://www.mindspore.cn/tutorials/en/master/parallel/msrun_launcher.html)" {
            RANK = "RANK_ID" => rank: Option<u32>, "rank";
            SIZE = "RANK_SIZE" => size: Option<u32>, "world size";
            WORKERS = "MS_WORKER_NUM" => workers: Option<u32>, "the same";
            WORKER = "MS_NODE_ID" => worker: Option<String>, "the worker's number, not the node's";
            ROLE = "MS_ROLE" => role: Option<String>, "`MS_WORKER`; the scheduler, `MS_SCHED`, has no rank";
            SCHED_HOST = "MS_SCHED_HOST" => sched_host: Option<String>, "the scheduler's host, which has rank 0";
            SCHED_PORT = "MS_SCHED_PORT" => sched_port: Option<String>, "where the scheduler listens; identifies the job";
        }
        "recorded from msrun 2.10.0" {
            DEVICE = "DEVICE_ID" => device: Option<u32>, "rank on this node, with `RANK_ID`";
        }
    }
}

/// The role of a rank, and that of the scheduler.
pub(crate) const ROLES: [&str; 2] = ["MS_WORKER", "MS_SCHED"];

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[MsrunVars::VARIABLES],
    // Scripts set the other variables also where mpirun or srun gives the rank.
    marker: |environment| {
        let role = environment.text(ROLE);
        let is_other = role.is_some_and(|role| role != ROLES[0]);
        let is_worker = || role.is_some() || environment.is_set(WORKERS);
        let of_worker = || environment.first_set(&[RANK, WORKER]).filter(|_| is_worker());
        if is_other { Some(ROLE) } else { of_worker() }
    },
    starts: Starts::Processes,
    start: "start the process with msrun",
    one_per_node: "`msrun --local_worker_num 1`",
    local: &[DEVICE],
    outside: &[DEVICE],
    samples: &[Sample::of(|process, vars| {
        vars.set_all([RANK, SIZE], [process.rank, process.size]);
        vars.set_all([WORKER, WORKERS], [process.rank, process.size]);
        vars.set(ROLE, ROLES[0]);
        let is_one = process.nodes == 1;
        vars.set(SCHED_HOST, if is_one { "127.0.0.1".to_owned() } else { process.name(0) });
        vars.set(SCHED_PORT, 8118 + process.job);
        vars.set(DEVICE, process.local_rank);
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: MsrunVars = marker.read()?;
    let launcher = marker.launcher;
    if let Some(role) = vars.role.as_deref().filter(|role| *role != ROLES[0]) {
        let why = if role == ROLES[1] {
            "the scheduler is not a rank"
        } else {
            "only MS_WORKER is a rank"
        };
        return Err(marker.not_a_rank(why, ROLE, role));
    }
    // Scripts may name their workers instead.
    let number = |text: &String| {
        digits(text).ok_or_else(|| launcher.refuse(Reason::NotANumber, WORKER, text))
    };
    let worker = vars.worker.as_ref().filter(|_| vars.rank.is_none()).map(number).transpose()?;
    let rank = by(RANK, vars.rank).or(by(WORKER, worker));
    let rank = rank.ok_or_else(|| marker.missing(RANK))?;
    if let (Some(size), Some(workers)) = (vars.size, vars.workers)
        && size != workers
    {
        let why = format!("it contradicts {WORKERS}=\"{workers}\"");
        return Err(launcher.refuse(why, SIZE, size));
    }
    let size = by(SIZE, vars.size).or(by(WORKERS, vars.workers));
    let size = size.ok_or_else(|| marker.missing(WORKERS))?;
    // Only msrun numbers the devices of a node from 0, and only it sets the rank.
    let device = vars.device.filter(|&device| vars.rank.is_some() && device < size.value);
    let placement = marker.place(rank, size)?.with_local(by(DEVICE, device), None)?;
    let placement = placement.with_master(SCHED_HOST, vars.sched_host.as_deref())?;
    let job = vars.sched_host.zip(vars.sched_port).map(|(host, port)| format!("{host}:{port}"));
    placement.with_job(SCHED_PORT, job).on_loopback()
}
