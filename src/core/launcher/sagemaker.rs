//! Amazon SageMaker training jobs: the entry point runs once on each host.
//!
//! SageMaker itself describes the hosts in a file. Its training toolkit makes variables of it, in
//! containers that have the toolkit.
//!
//! If SageMaker's support for MPI or torchrun is on, those launchers are detected first. Under MPI,
//! `SM_CURRENT_HOST` is the same everywhere.

use crate::error::quote;
use crate::launcher::named_file;
use crate::launcher::prelude::*;
use crate::value::json::Json;

variables! {
    /// The variables that describe a host's place in SageMaker.
    pub struct SageMakerVars {
        "[SageMaker training toolkit](https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md)" {
            HOSTS = "SM_HOSTS" => hosts: Option<String>, "`[\"algo-1\",\"algo-2\"]`: all hosts; the first is the master";
            CURRENT = "SM_CURRENT_HOST" => current: Option<String>, "`algo-1`: this host";
            GPUS = "SM_NUM_GPUS" => gpus: Option<String>, "this host's GPUs";
            GROUPS = "SM_INSTANCE_GROUPS" => groups: Option<String>, "groups of hosts; with several, some hosts may not be ranks";
            BASE = "SAGEMAKER_BASE_DIR" => base: Option<String>, "`/opt/ml` if it is not set: the folder of `input/config/resourceconfig.json`";
        }
        "[SageMaker: training information](https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html)" {
            JOB = "TRAINING_JOB_ARN" => job: Option<String>, "the job; without the toolkit's variables, the file `resourceconfig.json` has its hosts";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[SageMakerVars::VARIABLES],
    marker: |environment| environment.first_set(&[CURRENT, HOSTS, JOB]),
    start: "start the process as SageMaker's entry point",
    outside: &[GPUS, GROUPS, BASE],
    samples: &[Sample::of(|process, vars| {
        let hosts: Vec<_> = (1..=process.nodes).map(|host| format!("\"algo-{host}\"")).collect();
        vars.set(HOSTS, format!("[{}]", hosts.join(",")));
        vars.set(CURRENT, format!("algo-{}", process.node + 1));
        vars.set(GPUS, 8);
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: SageMakerVars = marker.read()?;
    let base = vars.base.as_deref().unwrap_or("/opt/ml");
    let file = (marker.variable == JOB).then(|| format!("{base}/input/config/resourceconfig.json"));
    let [source, own] = if file.is_some() { [JOB; 2] } else { [HOSTS, CURRENT] };
    let value = if file.is_some() { &vars.job } else { &vars.hosts };
    let value = value.as_deref().ok_or_else(|| marker.missing(source))?;
    let malformed = |why: &str| {
        let why = file.as_ref().map_or(why.to_owned(), |file| format!("{file} {why}"));
        marker.refuse(why, source, value)
    };
    let [hosts, current, groups] = match &file {
        Some(file) => {
            let file = named_file::parsed(file.as_ref()).map_err(|why| malformed(&why))?;
            ["hosts", "current_host", "instance_groups"].map(|name| file.get(name).cloned())
        }
        None => {
            let parse = |text: &str| Json::parse(text).ok();
            [parse(value), vars.current.map(Json::Text), vars.groups.as_deref().and_then(parse)]
        }
    };
    if groups.as_ref().and_then(Json::list).is_some_and(|groups| groups.len() > 1) {
        let why = "the hosts of a group may not be ranks, such as those that load data";
        let (variable, value) = vars.groups.as_deref().map_or((source, value), |it| (GROUPS, it));
        return Err(marker.cannot_place(why, variable, value));
    }
    let hosts = hosts.as_ref().and_then(Json::texts).filter(|hosts| !hosts.is_empty());
    let hosts =
        hosts.ok_or_else(|| malformed("does not list hosts, like [\"algo-1\",\"algo-2\"]"))?;
    let current = current.as_ref().and_then(Json::text).ok_or_else(|| match &file {
        Some(_) => malformed("has no current_host"),
        None => marker.missing(CURRENT),
    })?;
    let Some(index) = hosts.iter().position(|host| *host == current) else {
        return Err(malformed(&format!("does not list this host, {}", quote(current))));
    };
    let [index, size] = [index, hosts.len()].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let mut placement = marker.node(by(own, index), by(source, size))?;
    let first = hosts.first().map(|first| marker.launcher.host(source, first)).transpose()?;
    placement.master_addr = by(format!("{source}: the first"), first);
    Ok(placement.with_workers(GPUS, vars.gpus).with_hosts(source, hosts))
}
