//! Volcano's jobs with the plugins `env` and `svc`: one process per pod. Huawei's ModelArts also
//! runs on Volcano.
//!
//! `VC_TASK_INDEX` counts within a task, and no variable names the task. If there are several
//! tasks, this pod's task is the one whose list contains the pod's `HOSTNAME`. The master's task
//! comes first, then the workers'. Based on documentation.

use crate::error::quote;
use crate::finding::Finding;
use crate::launcher::prelude::*;
use crate::value::host::first_label;

variables! {
    /// The variables of a job with the tasks `master` and `worker`. Other tasks change the names of
    /// these variables.
    pub struct VolcanoVars {
        "[Volcano: env plugin](https://github.com/volcano-sh/volcano/blob/master/docs/user-guide/how_to_use_env_plugin.md)" {
            INDEX = "VC_TASK_INDEX" => index: Option<u32>, "the pod's number in its task";
            OLD_INDEX = "VK_TASK_INDEX" => old_index: Option<u32>, "the same";
        }
        "[Volcano: svc plugin](https://github.com/volcano-sh/volcano/blob/master/docs/user-guide/how_to_use_svc_plugin.md)" {
            MASTERS = "VC_MASTER_HOSTS" => masters: Option<String>, "names of the task's pods, with commas";
            WORKERS = "VC_WORKER_HOSTS" => workers: Option<String>, "the same";
            MASTER_COUNT = "VC_MASTER_NUM" => master_count: Option<u32>, "how many these are";
            WORKER_COUNT = "VC_WORKER_NUM" => worker_count: Option<u32>, "the same";
        }
        "[ModelArts: environment variables of a training container](https://support.huaweicloud.com/intl/en-us/usermanual-standard-modelarts/develop-modelarts-0104.html)" {
            GPUS = "MA_NUM_GPUS" => gpus: Option<String>, "the container's GPUs or NPUs";
        }
    }
}

/// The container's host name, which is the name of its pod. Volcano does not set this variable.
const HOSTNAME: &str = "HOSTNAME";

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[VolcanoVars::VARIABLES],
    marker: |environment| {
        // The tensorflow plugin says which pods are ranks.
        let is_elsewhere =
            || environment.is_set("TF_CONFIG") && environment.first_set(OTHER_ROLES).is_some();
        let marker = environment.first_set(&[INDEX, OLD_INDEX, MASTERS, WORKERS]);
        marker.filter(|_| !is_elsewhere())
    },
    start: "start the process in a pod of a job with the plugins env and svc",
    outside: &[GPUS],
    samples: &[Sample::of(|process, vars| {
        let job = format!("train{}", process.job);
        let index = process.node.saturating_sub(1);
        let workers: Vec<_> =
            (1..process.nodes).map(|node| format!("{job}-worker-{}.{job}", node - 1)).collect();
        let task = if process.node == 0 { "master" } else { "worker" };
        vars.set(INDEX, index);
        vars.set(OLD_INDEX, index);
        vars.set(MASTERS, format!("{job}-master-0.{job}"));
        vars.set(MASTER_COUNT, 1);
        if !workers.is_empty() {
            vars.set(WORKERS, workers.join(","));
            vars.set(WORKER_COUNT, workers.len());
        }
        vars.set(HOSTNAME, format!("{job}-{task}-{index}"));
    })],
    ..LauncherSpec::plain(read)
};

/// The pods of one task.
struct Task<'a> {
    variable: &'a str,
    hosts: Vec<&'a str>,
}

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let environment = marker.environment;
    let vars: VolcanoVars = marker.read()?;
    let index = vars.index.or(vars.old_index).ok_or_else(|| marker.missing(INDEX))?;
    let tasks = tasks(environment);
    let Some(first) = tasks.first() else {
        let remedy = "add the plugin `svc: []` to the job, which lists the pods of each task, or set RANK, WORLD_SIZE and MASTER_ADDR";
        return Err(marker.missing_with(WORKERS, remedy));
    };
    let is_other = |task: &&Task<'_>| OTHER_ROLES.contains(&task.variable);
    if let Some(task) = tasks.iter().find(is_other) {
        let why = "not all pods of the job are ranks";
        let error = marker.cannot_place(why, WORKERS, &task.hosts.join(","));
        return Err(error.of(task.variable.to_owned()));
    }
    if let Some(count) = task_without_hosts(environment) {
        let why = "the list of hosts has another length";
        let value = environment.text(count).unwrap_or_default();
        return Err(marker.cannot_place(why, COUNTS, &format!("{count}={value}")));
    }
    let mut names: Vec<_> = tasks.iter().map(|task| task.variable).collect();
    let lists = names.join(", ");
    if tasks.len() > 1 && first.variable != MASTERS {
        let why = "no task is called master";
        names.sort_unstable();
        let value = format!("{index} ({})", names.join(", "));
        return Err(marker.cannot_place(why, INDEX, &value));
    }
    let name = environment.text(HOSTNAME).map(first_label);
    let is_own = |task: &Task<'_>| {
        name.is_some() && task.hosts.get(index as usize).map(|host| first_label(host)) == name
    };
    let own = if tasks.len() == 1 { Some(0) } else { tasks.iter().position(is_own) };
    let Some(own) = own else {
        let why = "the pod's HOSTNAME is in no task's list at that place";
        return Err(marker.cannot_place(why, INDEX, &index.to_string()));
    };
    let count = |tasks: &[Task<'_>]| {
        let hosts = tasks.iter().map(|task| task.hosts.len()).sum::<usize>();
        u32::try_from(hosts).unwrap_or(u32::MAX)
    };
    let rank = count(&tasks[..own]).saturating_add(index);
    let size = by(format!("number of hosts in {lists}"), count(&tasks));
    let mut placement = marker.node(by(INDEX, rank), size)?.with_workers(GPUS, vars.gpus);
    let host = first.hosts.first().copied();
    if placement.size.value == 1 && host.map(first_label) != name {
        placement.findings.push(other_host(first, name));
    }
    let placement = placement.with_master(first.variable.to_owned(), host)?;
    Ok(placement.with_hosts(lists, tasks.iter().flat_map(|task| &task.hosts)))
}

/// Reports a list of one host that is not this one. If the other tasks' lists are missing, each pod
/// would be alone.
fn other_host(task: &Task<'_>, name: Option<&str>) -> Finding {
    let (hosts, name) = (quote(&task.hosts.join(",")), quote(name.unwrap_or("")));
    Finding::warning(
        "place-unknown",
        format!("{}={hosts} is not {HOSTNAME}={name}", task.variable),
        "this process is treated as a single process; in a job of several tasks each would be rank 0",
        "add the plugin `svc: []` to the job, or set RANK, WORLD_SIZE and MASTER_ADDR",
    )
}

/// The variables that hold each task's number of pods.
const COUNTS: &str = "VC_*_NUM";

/// The lists of tasks whose pods are no workers of a training.
const OTHER_ROLES: &[&str] =
    &["VC_PS_HOSTS", "VC_EVALUATOR_HOSTS", "VC_SCHEDULER_HOSTS", "VC_SERVER_HOSTS"];

/// Returns the variable with a task's number of pods, if the task's list is missing or has another
/// length.
fn task_without_hosts(environment: &Environment) -> Option<&str> {
    environment.names().find(|name| {
        let task = name.strip_prefix("VC_").and_then(|name| name.strip_suffix("_NUM"));
        let count = environment.digits::<usize>(name);
        task.zip(count).is_some_and(|(task, count)| {
            hosts(environment, &format!("VC_{task}_HOSTS")).len() != count
        })
    })
}

/// Returns the tasks whose pods are listed: first the master's task, then the workers', then the
/// others by name.
fn tasks(environment: &Environment) -> Vec<Task<'_>> {
    let is_list = |name: &&str| name.starts_with("VC_") && name.ends_with("_HOSTS");
    let lists = environment.names().filter(is_list);
    let tasks = lists.map(|variable| Task { variable, hosts: hosts(environment, variable) });
    let mut tasks: Vec<_> = tasks.filter(|task| !task.hosts.is_empty()).collect();
    tasks.sort_by_key(|task| (task.variable != MASTERS, task.variable != WORKERS, task.variable));
    tasks
}

fn hosts<'a>(environment: &'a Environment, variable: &str) -> Vec<&'a str> {
    let list = environment.text(variable).unwrap_or_default();
    list.split(',').map(str::trim).filter(|host| !host.is_empty()).collect()
}
