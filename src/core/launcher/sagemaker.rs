//! Amazon SageMaker training jobs: the entry point runs once on each host.
//!
//! If SageMaker's support for MPI or torchrun is on, those launchers are detected first. Under MPI,
//! `SM_CURRENT_HOST` is the same everywhere.

use crate::error::{Reason, quote};
use crate::launcher::prelude::*;
use crate::value::json::Json;

variables! {
    /// The variables that describe a host's place in SageMaker.
    pub struct SageMakerVars {
        "[SageMaker training toolkit](https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md)" {
            HOSTS = "SM_HOSTS" => hosts: String, "`[\"algo-1\",\"algo-2\"]`: all hosts; the first is the master";
            CURRENT = "SM_CURRENT_HOST" => current: String, "`algo-1`: this host";
            GPUS = "SM_NUM_GPUS" => gpus: Option<String>, "this host's GPUs";
            GROUPS = "SM_INSTANCE_GROUPS" => groups: Option<String>, "groups of hosts; with several, some hosts may not be ranks";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[SageMakerVars::VARIABLES],
    marker: |environment| first_set(environment, &[CURRENT, HOSTS]),
    start: "start the process as SageMaker's entry point",
    outside: &[GPUS, GROUPS],
    samples: &[Sample::of(|process, vars| {
        let hosts: Vec<_> = (1..=process.nodes).map(|host| format!("\"algo-{host}\"")).collect();
        vars.set(HOSTS, format!("[{}]", hosts.join(",")));
        vars.set(CURRENT, format!("algo-{}", process.node + 1));
        vars.set(GPUS, 8);
    })],
    ..LauncherSpec::plain(read)
};

fn read(environment: &Environment, marker: Marker) -> Result<Placement, Error> {
    let vars: SageMakerVars = marker.read(environment)?;
    let malformed =
        |text: &str| marker.launcher.refuse(Reason::Malformed(text.to_owned()), HOSTS, &vars.hosts);
    if let Some(groups) = &vars.groups
        && Json::parse(groups).is_ok_and(|list| list.texts().is_some_and(|list| list.len() > 1))
    {
        let why = "the hosts of a group may not be ranks, such as those that load data";
        return Err(marker.cannot_place(why, GROUPS, groups));
    }
    let list = Json::parse(&vars.hosts).ok();
    let hosts = list.as_ref().and_then(Json::texts).filter(|hosts| !hosts.is_empty());
    let hosts = hosts.ok_or_else(|| malformed("not a list like [\"algo-1\",\"algo-2\"]"))?;
    let Some(index) = hosts.iter().position(|host| *host == vars.current) else {
        return Err(malformed(&format!("{CURRENT}={} is not in the list", quote(&vars.current))));
    };
    let [index, size] = [index, hosts.len()].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let mut placement = marker.node(by(CURRENT, index), by(HOSTS, size))?;
    let first = hosts.first().map(|first| marker.launcher.host(HOSTS, first)).transpose()?;
    placement.master_addr = by(format!("{HOSTS}: the first"), first);
    Ok(placement.with_workers(GPUS, vars.gpus).with_hosts(HOSTS, hosts))
}
