//! Where the ranks of a job meet, and how they recognize each other: `MASTER_ADDR`, `MASTER_PORT` and
//! the token.

use std::fmt::Display;

use crate::cluster::azure::AzureVars;
use crate::cluster::context::Server;
use crate::cluster::overrides::MasterPort;
use crate::cluster::{azure, overrides};
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::finding::Finding;
use crate::launcher::Starts;
use crate::launcher::placement::Placement;
use crate::value::host::{Host, meant_with_port};
use crate::value::job::port_of_this_process;
use crate::value::port::{Port, PortRange};
use crate::value::sourced::{Known, Sourced};
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
    /// Whether the ranks meet there, because nothing sets another one.
    pub is_used: bool,
    /// The range from which ports are derived.
    pub range: PortRange,
}

/// What may name rank 0's host besides the launcher and `MASTER_ADDR`.
pub(crate) struct MasterSources<'a> {
    pub azure: Option<&'a AzureVars>,
    pub explicit: Known<Host>,
    /// Whether mpienv itself set `MASTER_ADDR` for this process, so that it takes precedence over
    /// Azure's variables.
    pub is_set_by_mpienv: bool,
    /// The `MASTER_ADDR` that mpienv has set, and the server that it has asked.
    pub answered: Option<(&'a str, Server)>,
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
    sources: MasterSources<'_>,
    findings: &mut Vec<Finding>,
) -> Result<Known<Host>, Error> {
    let MasterSources { azure, explicit, is_set_by_mpienv, answered } = sources;
    if explicit.is_some() {
        return Ok(explicit);
    }
    let inherited = environment.setting::<Host>(MASTER_ADDR)?;
    if is_set_by_mpienv && let Some(host) = &inherited {
        let answered = answered.filter(|(answered, _)| *answered == host.value.to_string());
        let answer = |(_, server): (_, Server)| Sourced::new(host.value.clone(), server.master());
        return Ok(answered.map(answer).or(inherited));
    }
    if let Some(host) =
        azure.map(|azure| azure_addr(azure, placement, findings)).transpose()?.flatten()
    {
        if let Some(inherited) = inherited.filter(|inherited| inherited.value != host.value) {
            findings.push(replaced(&inherited.value, &host));
        }
        return Ok(Some(host));
    }
    if inherited.is_some() {
        return Ok(inherited);
    }
    Ok(loopback_or_launchers(placement))
}

/// Returns rank 0's host if no user and no platform names it.
pub(crate) fn loopback_or_launchers(placement: &Placement) -> Known<Host> {
    if placement.is_one_node() {
        return Some(Sourced::new(Host::LOOPBACK, "all ranks are on this node"));
    }
    placement.master_addr.clone()
}

fn azure_addr(
    azure: &AzureVars,
    placement: &Placement,
    findings: &mut Vec<Finding>,
) -> Result<Known<Host>, Error> {
    if placement.is_one_node() {
        return azure.master_on_one_node().map(Some);
    }
    let host = azure.master_on_several_nodes()?;
    findings.extend(azure.disagreement());
    Ok(host)
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
    let launcher = placement.launcher();
    let command = launcher.spec().give_master;
    let reason = Reason::MasterUnknown {
        world_size: placement.size.value,
        why: empty(environment, placement)
            .or_else(|| placement.master_unknown.clone())
            .or_else(|| of_nodes(placement)),
    };
    let remedy = format!("give rank 0's host to all ranks: {command}");
    Error::new(reason, remedy).by(launcher).of(MASTER_ADDR)
}

/// Returns what to say of a job with one process on each node: `launch` starts several ranks there.
fn of_nodes(placement: &Placement) -> Option<String> {
    let nodes = placement.node_count.as_ref()?.value;
    (nodes == placement.size.value)
        .then(|| format!("the job has {nodes} nodes, and no variable names rank 0's host"))
}

/// Returns what to say of a job whose users have named the host, but with an empty value.
fn empty(environment: &Environment, placement: &Placement) -> Option<String> {
    let names = [MASTER_ADDR, overrides::MASTER_ADDR];
    let name = names.iter().find(|name| environment.get(name).is_some())?;
    let ranks = placement.size.value;
    Some(format!("{name} is set but empty, and the {ranks} ranks may be on several nodes"))
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

/// The range from which a port is taken, and whether Azure's port numbers take precedence.
#[derive(Clone, Copy)]
pub(crate) struct PortRule {
    pub on_azure: bool,
    pub range: Option<PortRange>,
}

impl PortRule {
    pub(crate) fn range(self) -> PortRange {
        self.range.unwrap_or_default()
    }
}

/// Returns the port on rank 0's host, and the one that it would be by default. Both depend only on
/// what all ranks share.
pub(crate) fn port(
    environment: &Environment,
    placement: &Placement,
    rule: PortRule,
    explicit: Known<MasterPort>,
) -> Result<(Sourced<Port>, DefaultPort), Error> {
    let default = default_port(placement, rule);
    let port = match explicit {
        Some(Sourced { value: MasterPort::Fixed(port), source }) => {
            Some(Sourced::new(port, source))
        }
        Some(Sourced { value: MasterPort::FromJob, .. }) => Some(of_job(placement, rule.range())?),
        None => environment.setting(MASTER_PORT)?,
    };
    let default_port = DefaultPort {
        port: default.value,
        is_derived: placement.master_port.is_none()
            && !rule.on_azure
            && own_port(placement, rule.range()).is_some(),
        is_used: port.is_none() && placement.master_port.is_none(),
        range: rule.range(),
    };
    Ok((port.unwrap_or(default), default_port))
}

/// Returns the port of a rank for which no option or variable sets one.
///
/// The first of these that is present counts: the platform's port, Azure's, one derived from the
/// job, one derived from the process if it is the only one. Otherwise, all jobs use the same
/// number.
fn default_port(placement: &Placement, rule: PortRule) -> Sourced<Port> {
    let one_node = placement.is_one_node();
    if let Some(port) = &placement.master_port {
        return port.clone();
    }
    let number = if one_node { Port::ONE_NODE } else { Port::SEVERAL_NODES };
    if rule.on_azure {
        let source = if one_node { "Azure's on one node" } else { "Azure's on several nodes" };
        return Sourced::new(number, source);
    }
    // A job with a port range may not be able to use ports outside of it.
    let number = rule.range.map_or(number, |range| range.port(number.get().into()));
    let source = if one_node { "default on one node" } else { "default on several nodes" };
    own_port(placement, rule.range()).unwrap_or(Sourced::new(number, source))
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

fn of_job(placement: &Placement, range: PortRange) -> Result<Sourced<Port>, Error> {
    own_port(placement, range).ok_or_else(|| {
        Error::new(Reason::NoJobIdentity, "give a number as the port")
            .by(placement.launcher())
            .of(overrides::MASTER_PORT)
    })
}
