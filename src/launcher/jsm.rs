//! IBM's Job Step Manager: `jsrun` under LSF.
//!
//! | variable | what it is | defined in |
//! | --- | --- | --- |
//! | `JSM_NAMESPACE_RANK` | rank | [IBM: JSM environment variables] |
//! | `JSM_NAMESPACE_SIZE` | world size | same |
//! | `JSM_NAMESPACE_LOCAL_RANK` | rank on this node | same |
//! | `JSM_NAMESPACE_LOCAL_SIZE` | ranks on this node | same |
//! | `LSB_MCPU_HOSTS` | `launch 1 node1 42 node2 42`: hosts and slots, the launch node first | [IBM: LSF environment variables] |
//! | `LSB_JOBID` | the job's number | same |
//!
//! [IBM: JSM environment variables]: https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=SSWRJV_10.1.0/jsm/10.3/base/jsm_kickoff.htm
//! [IBM: LSF environment variables]: https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=variables-environment-variable-reference

use serde::Deserialize;

use crate::environment::{Environment, variable_names};
use crate::error::{Error, Reason};
use crate::launcher::{Evidence, first_set, unreadable};
use crate::value::host::HostError;
use crate::value::job::Job;
use crate::value::placement::{Launcher, Placement, Sourced};

const RANK: &str = "JSM_NAMESPACE_RANK";
const SIZE: &str = "JSM_NAMESPACE_SIZE";
const LOCAL_RANK: &str = "JSM_NAMESPACE_LOCAL_RANK";
const LOCAL_SIZE: &str = "JSM_NAMESPACE_LOCAL_SIZE";
const HOSTS: &str = "LSB_MCPU_HOSTS";

/// The variables that jsrun and LSF set for every process.
///
/// ```
/// use mpienv::Environment;
/// use mpienv::launcher::jsm::JsmVars;
///
/// let environment = Environment::from_vars([("JSM_NAMESPACE_RANK", "1"), ("JSM_NAMESPACE_SIZE", "2")]);
/// let vars: JsmVars = environment.read()?;
/// assert_eq!((vars.rank, vars.size), (1, 2));
/// # Ok::<(), mpienv::ReadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct JsmVars {
    /// `JSM_NAMESPACE_RANK`: the rank.
    #[serde(rename = "jsm_namespace_rank")]
    pub rank: u32,
    /// `JSM_NAMESPACE_SIZE`: the world size.
    #[serde(rename = "jsm_namespace_size")]
    pub size: u32,
    /// `JSM_NAMESPACE_LOCAL_RANK`: the rank on this node.
    #[serde(rename = "jsm_namespace_local_rank")]
    pub local_rank: Option<u32>,
    /// `JSM_NAMESPACE_LOCAL_SIZE`: the number of ranks on this node.
    #[serde(rename = "jsm_namespace_local_size")]
    pub local_size: Option<u32>,
    /// `LSB_MCPU_HOSTS`: hosts and slots, the launch node first.
    #[serde(rename = "lsb_mcpu_hosts")]
    pub hosts: Option<String>,
    /// `LSB_JOBID`: the job's number.
    #[serde(rename = "lsb_jobid")]
    pub job: Option<String>,
}

pub(crate) fn variables() -> Vec<String> {
    variable_names::<JsmVars>()
}

pub(crate) fn detect(environment: &Environment) -> Option<Evidence> {
    first_set(environment, &[RANK, SIZE])
}

pub(crate) fn read(environment: &Environment) -> Result<Placement, Error> {
    let launcher = Launcher::Jsm;
    let evidence = detect(environment);
    let vars: JsmVars = environment.read().map_err(|error| unreadable(environment, launcher, error, evidence))?;
    let mut placement = Placement::new(launcher, (RANK, vars.rank), (SIZE, vars.size))?
        .with_local((LOCAL_RANK, vars.local_rank), (LOCAL_SIZE, vars.local_size))?;
    if let Some(name) = vars.hosts.as_deref().and_then(first_compute_node) {
        let host = name
            .parse()
            .map_err(|error: HostError| Error::of_launcher(launcher, Reason::NotAHost(error), HOSTS).found(name))?;
        placement.master_addr = Some(Sourced::new(host, format!("{HOSTS}: the first host after the launch node")));
    }
    Ok(match vars.job {
        Some(id) => placement.with_job(Job { id, step: String::new(), restarts: 0 }, "hash of LSB_JOBID"),
        None => placement,
    })
}

/// The second host of `launch 1 node1 42 ...`: no rank runs on the first.
fn first_compute_node(hosts: &str) -> Option<&str> {
    hosts.split_ascii_whitespace().nth(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launch_node_is_never_the_master() {
        assert_eq!(first_compute_node("batch5 1 h50n03 42 h50n04 42"), Some("h50n03"));
        assert_eq!(first_compute_node("batch5 1"), None);
    }
}
