//! Amazon SageMaker training jobs: the entry point runs once on each host.
//!
//! | variable | what it is | defined in |
//! | --- | --- | --- |
//! | `SM_HOSTS` | `["algo-1","algo-2"]`: all hosts; the first is the master | [SageMaker training toolkit] |
//! | `SM_CURRENT_HOST` | `algo-1`: this host | same |
//!
//! With SageMaker's MPI or torchrun support on, those launchers are found first: under MPI
//! `SM_CURRENT_HOST` is the same everywhere.
//!
//! [SageMaker training toolkit]: https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md

use serde::Deserialize;

use crate::environment::{Environment, variable_names};
use crate::error::{Error, Reason};
use crate::launcher::{Evidence, first_set, unreadable};
use crate::value::host::HostError;
use crate::value::placement::{Launcher, Placement, Sourced};

const HOSTS: &str = "SM_HOSTS";
const CURRENT: &str = "SM_CURRENT_HOST";

/// The variables of SageMaker that tell a host's place.
///
/// ```
/// use mpienv::Environment;
/// use mpienv::launcher::sagemaker::SageMakerVars;
///
/// let environment = Environment::from_vars([
///     ("SM_HOSTS", "[\"algo-1\", \"algo-2\"]"),
///     ("SM_CURRENT_HOST", "algo-2"),
/// ]);
/// let vars: SageMakerVars = environment.read()?;
/// assert_eq!(vars.current, "algo-2");
/// # Ok::<(), mpienv::ReadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct SageMakerVars {
    /// `SM_HOSTS`: a JSON list of all hosts.
    #[serde(rename = "sm_hosts")]
    pub hosts: String,
    /// `SM_CURRENT_HOST`: this host.
    #[serde(rename = "sm_current_host")]
    pub current: String,
}

pub(crate) fn variables() -> Vec<String> {
    variable_names::<SageMakerVars>()
}

pub(crate) fn detect(environment: &Environment) -> Option<Evidence> {
    first_set(environment, &[CURRENT, HOSTS])
}

pub(crate) fn read(environment: &Environment) -> Result<Placement, Error> {
    let launcher = Launcher::SageMaker;
    let evidence = detect(environment);
    let vars: SageMakerVars = environment.read().map_err(|error| unreadable(environment, launcher, error, evidence))?;
    let malformed =
        |text: &str| Error::of_launcher(launcher, Reason::Malformed(text.to_owned()), HOSTS).found(vars.hosts.clone());
    let hosts = json_list(&vars.hosts).ok_or_else(|| malformed("not a list like [\"algo-1\",\"algo-2\"]"))?;
    let (Some(index), Ok(size)) = (hosts.iter().position(|host| *host == vars.current), u32::try_from(hosts.len()))
    else {
        return Err(malformed(&format!("{CURRENT}={} is not in the list", crate::error::quote(&vars.current))));
    };
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    let mut placement = Placement::new(launcher, (CURRENT, index), (HOSTS, size))?
        .with_local((CURRENT, Some(0)), (CURRENT, Some(1)))?;
    placement.node_rank = Some(Sourced::new(index, CURRENT));
    placement.node_count = Some(Sourced::new(size, HOSTS));
    if let Some(first) = hosts.first() {
        let host = first
            .parse()
            .map_err(|error: HostError| Error::of_launcher(launcher, Reason::NotAHost(error), HOSTS).found(*first))?;
        placement.master_addr = Some(Sourced::new(host, format!("{HOSTS}: the first")));
    }
    Ok(placement)
}

/// The texts of a JSON list of plain texts; a host's name needs no escapes.
fn json_list(text: &str) -> Option<Vec<&str>> {
    let inside = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    let texts = inside.split(',').map(|item| {
        let text = item.trim().strip_prefix('"')?.strip_suffix('"')?;
        (!text.is_empty() && !text.contains(['"', '\\'])).then_some(text)
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_json_list_of_host_names_is_read_and_nothing_else() {
        assert_eq!(json_list(r#"["algo-1","algo-2"]"#), Some(vec!["algo-1", "algo-2"]));
        assert_eq!(json_list(r#" [ "algo-1" , "algo-2" ] "#), Some(vec!["algo-1", "algo-2"]));
        for bad in ["", "[", "[]", "algo-1", r#"["a""#, r#"["a",]"#, r#"[""]"#, r#"["a\"b"]"#, "[1]"] {
            assert_eq!(json_list(bad), None, "{bad}");
        }
    }
}
