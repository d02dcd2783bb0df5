//! Reads rank 0's host from the variables of Azure Machine Learning and Azure Batch.
//!
//! Azure starts Open MPI's mpirun. These variables only add rank 0's host.
//!
//! [Azure Batch](https://learn.microsoft.com/en-us/azure/batch/batch-mpi) runs the coordination
//! command of a multi-instance task on every node and its command on the primary node. Neither
//! learns its number.

use crate::environment::{Environment, Variables as _, variables};
use crate::error::{Error, quote};
use crate::finding::Finding;
use crate::launcher::alone::BY_ITSELF;
use crate::value::host::{Host, HostError};
use crate::value::sourced::{Known, Sourced};

/// The variables that name hosts, each perhaps with a port after it.
pub(crate) const VARIABLES: [&str; 4] = [BATCH, BATCHAI, HOST_LIST, NODE_LIST];

variables! {
    /// The variables of Azure that name the master.
    #[derive(Default)]
    pub struct AzureVars {
        "[Azure Batch: compute node environment variables](https://learn.microsoft.com/en-us/azure/batch/batch-compute-node-environment-variables)" {
            BATCH = "AZ_BATCH_MASTER_NODE" => batch_master: Option<String>, "`10.0.0.4:6000`, on several nodes; the port is not for rank 0";
            HOST_LIST = "AZ_BATCH_HOST_LIST" => host_list: Option<String>, "`10.0.0.4,10.0.0.5`";
            NODE_LIST = "AZ_BATCH_NODE_LIST" => node_list: Option<String>, "`10.0.0.4;10.0.0.5`";
        }
        "[AzureML: distributed training, MPI](https://learn.microsoft.com/en-us/azure/machine-learning/how-to-train-distributed-gpu)" {
            BATCHAI = "AZ_BATCHAI_MPI_MASTER_NODE" => batchai_master: Option<String>, "`10.0.0.4`, or `localhost`; may be missing";
        }
    }
}

/// Whether this is a multi-instance task's primary node.
const IS_MASTER: &str = "AZ_BATCH_IS_CURRENT_NODE_MASTER";

/// Variables of multi-instance tasks.
pub(crate) const OF_TASKS: [&str; 3] = [IS_MASTER, NODE_LIST, HOST_LIST];

/// Azure's lists of nodes with their separators.
const LISTS: [(&str, char); 2] = [(HOST_LIST, ','), (NODE_LIST, ';')];

/// Returns the number of nodes in Azure's first list, and the list's variable.
pub(crate) fn listed(environment: &Environment) -> Option<(&'static str, u64)> {
    LISTS.into_iter().find_map(|(name, separator)| {
        let nodes = environment.text(name)?.split(separator).filter(|node| !node.trim().is_empty());
        Some((name, nodes.count() as u64))
    })
}

/// Returns the error for the coordination command of a node that is not the primary one, because it
/// is one of several and cannot know which.
pub(crate) fn refuse_subtask(environment: &Environment) -> Option<Error> {
    let text = environment.text(IS_MASTER).filter(|text| text.eq_ignore_ascii_case("false"))?;
    let reason = "Azure Batch has started this process on another node than the primary one, and no variable tells which";
    let remedy = format!(
        "start the processes with mpirun in the task's command; or set RANK, WORLD_SIZE and MASTER_ADDR, or {BY_ITSELF}"
    );
    Some(Error::new(reason, remedy).of(IS_MASTER).found(text))
}

impl AzureVars {
    /// Reads Azure's variables. Returns `None` if none of them is set.
    pub(crate) fn find(environment: &Environment) -> Result<Option<AzureVars>, Error> {
        let vars = AzureVars::read(environment).map_err(Error::reading_setting)?;
        Ok((vars != AzureVars::default()).then_some(vars))
    }

    /// Returns the master on one node: 127.0.0.1 if Azure names none.
    pub(crate) fn master_on_one_node(&self) -> Result<Sourced<Host>, Error> {
        match &self.batchai_master {
            Some(text) => host(BATCHAI, text),
            None => Ok(Sourced::new(Host::LOOPBACK, "one node, Azure names no master")),
        }
    }

    /// Returns the master on several nodes, if Azure names one.
    pub(crate) fn master_on_several_nodes(&self) -> Result<Known<Host>, Error> {
        if let Some(text) = &self.batch_master {
            return host(BATCH, text).map(Some);
        }
        // `localhost` would be a different host on each node.
        if let Some(text) = self.batchai_master.as_deref().filter(|&text| text != "localhost") {
            return host(BATCHAI, text).map(Some);
        }
        let lists = [&self.host_list, &self.node_list].into_iter().zip(LISTS);
        let mut firsts = lists.filter_map(|(list, (variable, separator))| {
            Some((variable, list.as_ref()?.split(separator).next()?))
        });
        firsts.next().map(|(variable, first)| host(variable, first.trim())).transpose()
    }

    /// Reports two variables that should name the same host but differ.
    pub(crate) fn disagreement(&self) -> Option<Finding> {
        let (batch, batchai) = (self.batch_master.as_ref()?, self.batchai_master.as_ref()?);
        let named = host(BATCH, batch).ok()?.value.to_string();
        if &named == batchai || batchai == "localhost" {
            return None;
        }
        Some(Finding::warning(
            "azure-masters-differ",
            format!("{BATCH} is {} and {BATCHAI} is {}", quote(batch), quote(batchai)),
            format!("they name two hosts, but rank 0 is on only one; mpienv uses {BATCH}"),
            "if rank 0 is on the other host, set MPIENV_MASTER_ADDR for all ranks",
        ))
    }
}

/// Parses a host. A port after it is ignored, because it belongs to another service.
fn host(variable: &'static str, text: &str) -> Result<Sourced<Host>, Error> {
    // `:6000` is Azure's form with an empty host.
    let parsed = match text.split_once(':') {
        Some(("", rest)) if !rest.contains(':') => Err(HostError::Empty),
        _ => Host::parse_with_port(text),
    };
    let (host, _port) = parsed.map_err(|error| Error::of_setting(error, variable, text))?;
    Ok(Sourced::new(host, variable))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Reason;

    fn several(text: &str) -> Result<String, Error> {
        let vars = AzureVars { batch_master: Some(text.into()), ..AzureVars::default() };
        Ok(vars.master_on_several_nodes()?.unwrap().value.to_string())
    }

    #[test]
    fn the_host_is_taken_and_the_port_is_not() {
        for (text, expected) in [
            ("10.0.0.4:6000", "10.0.0.4"),
            ("10.0.0.4", "10.0.0.4"),
            ("[fe::1]:6000", "fe::1"),
            ("[fe::1]", "fe::1"),
            ("fe::1", "fe::1"),
            ("::1", "::1"),
            ("node-0.cluster:6000", "node-0.cluster"),
        ] {
            assert_eq!(several(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_not_a_host_is_an_error_with_its_variable() {
        for (text, reason) in [
            (":", HostError::Empty),
            (":6000", HostError::Empty),
            ("host:99999", HostError::Port("99999".into())),
            ("host:", HostError::Port(String::new())),
            ("$(reboot)", HostError::Character('$')),
            ("a b", HostError::Character(' ')),
            ("a;b:1", HostError::Character(';')),
            ("http://10.0.0.4", HostError::Port("//10.0.0.4".into())),
            ("10.0.0.400:1", HostError::NotIpv4),
            ("[10.0.0.4]:1", HostError::Bracket),
            ("[fe::1", HostError::Bracket),
            ("fe::g", HostError::NotIpv6),
        ] {
            let error = several(text).unwrap_err();
            assert_eq!(error.reason(), &Reason::NotAHost(reason), "{text}");
            assert_eq!((error.variable(), error.value()), (Some(BATCH), Some(text)));
        }
    }
}
