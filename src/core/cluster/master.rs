//! Where the ranks of a job meet, and how they recognize each other: `MASTER_ADDR`, `MASTER_PORT` and
//! the token.

use std::fmt::Display;

use crate::cluster::azure::AzureVars;
use crate::cluster::context::Context;
use crate::cluster::overrides::{MasterPort, Overrides};
use crate::cluster::{azure, overrides};
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::finding::Finding;
use crate::launcher::Starts;
use crate::launcher::placement::Placement;
use crate::value::host::{Host, meant_with_port};
use crate::value::job::port_of_this_process;
use crate::value::port::{Port, PortRange};
use crate::value::sourced::{Known, Sourced, value_of};
use crate::value::token::{Munge, Token};

pub(crate) const MASTER_ADDR: &str = "MASTER_ADDR";
pub(crate) const MASTER_PORT: &str = "MASTER_PORT";

/// Where the ranks meet, and how they recognize each other. The same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meeting {
    /// Rank 0's host, or the error that explains why it is unknown.
    pub addr: Result<Sourced<Host>, Error>,
    pub addr_scope: Scope,
    pub port: Sourced<Port>,
    pub port_scope: Scope,
    pub default_port: DefaultPort,
    pub token: Token,
    pub token_scope: Scope,
    pub auth: Option<Munge>,
}

/// Which jobs have a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// This job alone.
    Job,
    /// This job alone, as a secret that only the programs that mpienv starts may have.
    Programs,
    /// Perhaps several jobs of a user, who has set it.
    User,
}

impl Scope {
    /// Returns the scope of a value that a user may have set by one of two variables. The first of
    /// them may also be set for this job alone, by its launcher (`comes_along`) or by mpienv
    /// (`in_context`).
    pub(crate) fn of(
        known: &Sourced<impl Display>,
        [plain, asked]: [&str; 2],
        comes_along: bool,
        in_context: Option<&String>,
    ) -> Scope {
        let is_of_context = || in_context.is_some_and(|own| *own == known.value.to_string());
        let is_set = known.source == plain && !comes_along && !is_of_context();
        if known.source == asked || is_set { Scope::User } else { Scope::Job }
    }
}

/// The port of a rank for which neither an option nor a variable sets one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DefaultPort {
    pub port: Port,
    /// Whether it is derived from this job, so that other jobs do not share it.
    pub is_derived: bool,
    /// Whether the ranks meet there, because nothing sets another one, or where an mpienv around
    /// this process has chosen.
    pub is_used: bool,
    /// The range from which ports are derived.
    pub range: PortRange,
}

/// Returns rank 0's host, or `None` if there are several nodes and nothing names it.
///
/// The first of these that is present counts:
///
/// 1. What a user requests: `--master-addr`, a builder's host, `MPIENV_MASTER_ADDR`.
/// 2. `MASTER_ADDR`, if an outer mpienv has set it for this process.
/// 3. Azure's variables.
/// 4. `MASTER_ADDR`, without that of an outer job.
/// 5. 127.0.0.1, if all ranks are on one node.
/// 6. The launcher: its server's answer or its variables.
///
/// If there is none, the commands ask the launcher's server, and all is read again with the answer.
pub(crate) fn decide_addr(
    environment: &Environment,
    placement: &Placement,
    own: Option<&Context>,
    azure: Option<&AzureVars>,
    explicit: Known<Host>,
    findings: &mut Vec<Finding>,
) -> Result<Known<Host>, Error> {
    if explicit.is_some() {
        return Ok(explicit);
    }
    let inherited = environment.setting::<Host>(MASTER_ADDR)?;
    if let (Some(own), Some(host)) = (own, &inherited) {
        let is_answered = own.master_addr.as_ref() == Some(&host.value.to_string());
        let server = own.server.filter(|_| is_answered);
        let answer = server.map(|server| Sourced::new(host.value.clone(), server.master()));
        return Ok(answer.or(inherited));
    }
    let named = match azure {
        Some(azure) if placement.is_one_node() => Some(azure.master_on_one_node()?),
        Some(azure) => {
            findings.extend(azure.disagreement());
            azure.master_on_several_nodes()?
        }
        None => None,
    };
    if let Some(host) = named {
        if let Some(inherited) = inherited.filter(|inherited| inherited.value != host.value) {
            findings.push(replaced(&inherited.value, &host));
        }
        return Ok(Some(host));
    }
    let launchers = loopback_or_launchers(placement);
    // A platform that gives rank 0's address only to the others may call it localhost there.
    let is_any = launchers.as_ref().is_some_and(|host| host.value == Host::ANY);
    Ok(inherited.filter(|host| !is_any || host.value.to_string() != "localhost").or(launchers))
}

/// Returns rank 0's host if no user and no platform names it.
pub(crate) fn loopback_or_launchers(placement: &Placement) -> Known<Host> {
    if placement.is_one_node() {
        return Some(Sourced::new(Host::LOOPBACK, "all ranks are on this node"));
    }
    placement.master_addr.clone()
}

fn replaced(inherited: &Host, host: &Sourced<Host>) -> Finding {
    Finding::warning(
        "master-addr-replaced",
        format!("MASTER_ADDR is {inherited}, but {} says {}", host.source, host.value),
        "on Azure, the platform's own variables name the master",
        format!("to use {inherited} set MPIENV_MASTER_ADDR={inherited} for all ranks"),
    )
}

/// Reports an IPv6 address whose last group may be a port. The same address can be written without
/// this ambiguity.
pub(crate) fn unbracketed(environment: &Environment, host: &Sourced<Host>) -> Option<Finding> {
    // Azure's lists contain several hosts, of which the first is the master.
    let text = environment.text(&host.source)?.split([',', ';']).next()?.trim();
    let (meant, port) = meant_with_port(text)?;
    let variable = &host.source;
    let remedy = match azure::VARIABLES.contains(&&**variable) {
        true => format!("for {meant} set {variable} to [{meant}]:{port}, for {text} to [{text}]"),
        false => format!(
            "if you mean [{meant}]:{port}, set {variable} to {meant} and MASTER_PORT to {port}; \
             for {text} itself write all eight groups"
        ),
    };
    Some(Finding::warning(
        "unbracketed-ipv6",
        format!("{variable} is {text}, which is read as the address {}", host.value),
        format!(
            "its last group can also be a port: without brackets, {meant} with port {port} is the same text"
        ),
        remedy,
    ))
}

/// Returns the error for a job on several nodes whose rank 0 is unknown.
pub(crate) fn unknown(environment: &Environment, placement: &Placement) -> Error {
    let (launcher, world_size) = (placement.launcher(), placement.size.value);
    let names = [MASTER_ADDR, overrides::MASTER_ADDR];
    let empty = names.iter().find(|name| environment.get(name).is_some()).map(|name| {
        format!("{name} is set but empty, and the {world_size} ranks may be on several nodes")
    });
    // With one process on each node, `launch` starts several ranks there.
    let nodes = value_of(&placement.node_count).filter(|&nodes| nodes == world_size);
    let of_nodes =
        |nodes| format!("the job has {nodes} nodes, and no variable names rank 0's host");
    let why = empty.or_else(|| placement.master_unknown.clone()).or(nodes.map(of_nodes));
    let remedy = format!("give rank 0's host to all ranks: {}", launcher.spec().give_master);
    Error::new(Reason::MasterUnknown { world_size, why }, remedy).by(launcher).of(MASTER_ADDR)
}

/// Returns the same error as a finding, for commands that only inspect.
pub(crate) fn unknown_finding(error: &Error) -> Finding {
    Finding::error(
        "master-unknown",
        format!("no MASTER_ADDR: {}", error.reason()),
        "the ranks cannot meet, so nothing can be exported",
        error.remedy(),
    )
}

/// Returns the port on rank 0's host, and the one that it would be by default. Both depend only on
/// what all ranks share.
///
/// By default, the first of these that is present counts: the platform's port, Azure's, one derived
/// from the job, one derived from the process if it is the only one. Otherwise, all jobs use the
/// same number.
pub(crate) fn port(
    environment: &Environment,
    placement: &Placement,
    on_azure: bool,
    overrides: &Overrides,
) -> Result<(Sourced<Port>, DefaultPort), Error> {
    let asked_range = value_of(&overrides.port_range);
    let range = asked_range.unwrap_or_default();
    let own = own_port(placement, range);
    let port = match overrides.master_port.clone() {
        Some(Sourced { value: MasterPort::Fixed(port), source }) => {
            Some(Sourced::new(port, source))
        }
        Some(Sourced { value: MasterPort::FromJob, .. }) if own.is_some() => own.clone(),
        asked => {
            let set = environment.setting(MASTER_PORT)?;
            // It may be the port that was derived for the job before its place was exported.
            if asked.is_some() && set.is_none() {
                let error = Error::new(Reason::NoJobIdentity, "give a number as the port");
                return Err(error.by(placement.launcher()).of(overrides::MASTER_PORT));
            }
            set
        }
    };
    let platforms = placement.master_port.clone();
    let is_used = port.is_none() && platforms.is_none();
    let derived = own.filter(|_| platforms.is_none() && !on_azure);
    let is_derived = derived.is_some();
    let default = platforms
        .or(derived)
        .unwrap_or_else(|| same_for_all_jobs(placement.is_one_node(), on_azure, asked_range));
    let default_port = DefaultPort { port: default.value, is_derived, is_used, range };
    Ok((port.unwrap_or(default), default_port))
}

fn same_for_all_jobs(
    one_node: bool,
    on_azure: bool,
    asked_range: Option<PortRange>,
) -> Sourced<Port> {
    let number = if one_node { Port::ONE_NODE } else { Port::SEVERAL_NODES };
    let whose = if on_azure { "Azure's" } else { "default" };
    let source = format!("{whose} on {}", if one_node { "one node" } else { "several nodes" });
    // A job with a port range may not be able to use ports outside of it.
    let range = asked_range.filter(|_| !on_azure);
    Sourced::new(range.map_or(number, |range| range.port(number.get().into())), source)
}

/// Returns a port derived from this job alone, if all its ranks can derive it.
fn own_port(placement: &Placement, range: PortRange) -> Known<Port> {
    let is_alone = placement.size.value == 1;
    // A platform's job with one process has the same identity in all processes on its node.
    let is_shared = is_alone && placement.launcher().spec().starts == Starts::OnePerNode;
    let alone = "derived from this process, the only one";
    match &placement.job {
        Some(job) if !is_shared => Some(Sourced::new(job.value.port(range), job.source.clone())),
        _ => is_alone.then(|| Sourced::new(port_of_this_process(range), alone)),
    }
}
