//! Determines a process's place step by step: detect, read, complete, lint, decide the meeting.

mod auth;
mod builder;
mod choice;
mod foreign;
mod lints;
mod nodes;
mod parents;
pub(crate) mod surroundings;
pub(crate) mod unplaced;

use std::borrow::Cow;
use std::mem;

use self::choice::{Choice, choose};
use self::surroundings::Surroundings;
use crate::cluster::azure::AzureVars;
use crate::cluster::context::Context;
use crate::cluster::info::{Carried, ClusterInfo, Earlier, Inherited};
use crate::cluster::master::{MasterSources, Meeting, PortRule, Scope};
use crate::cluster::overrides::Overrides;
use crate::cluster::{master, overrides, threads};
use crate::environment::Environment;
use crate::error::Error;
use crate::finding::Finding;
use crate::launcher::placement::Placement;
use crate::launcher::starter::{ON_ONE_HOST, Starter};
use crate::launcher::{Launcher, display_variable};
use crate::value::sourced::{Sourced, by, value_of};
use crate::value::token::{Munge, Token};

pub use self::builder::ClusterInfoBuilder;

impl ClusterInfoBuilder {
    /// Detects the launcher, reads its variables, and completes, connects and checks the place.
    fn discover(&self, environment: &Environment) -> Result<ClusterInfo, Error> {
        let overrides = self.overrides.or_inherited(environment)?;
        let detected = detect(environment, overrides.launcher.as_ref())?;
        let mut place = complete(self.place(detected)?)?;
        let mut findings = lint(&mut place);
        let meeting = decide_meeting(&mut place, &overrides, &mut findings)?;
        let surroundings = Surroundings::read(&place, overrides)?;
        let Place { whole, placement, own, threads, .. } = &place;
        let carried = Carried {
            overrides: self.overrides.exported(),
            to_unset: lints::to_unset(&place, &surroundings.nccl.ifname),
            // A process that reads the exports must get the overridden place again.
            context: self.overrides.reader(placement.launcher()),
        };
        let earlier = Earlier {
            said: own.as_ref().map(|own| own.said.clone()).unwrap_or_default(),
            keeps_binding: own.as_ref().is_some_and(|own| own.keeps_binding),
            threads: threads.clone(),
        };
        Ok(ClusterInfo {
            inherited: Inherited(Environment::clone(whole)),
            placement: place.placement,
            surroundings,
            meeting,
            carried,
            earlier,
            findings,
            endpoints: None,
        })
    }

    /// Reads this process's place from the selected launcher's variables or from the overrides.
    fn place<'a>(&self, detected: Detected<'a>) -> Result<Place<'a>, Error> {
        let placement = self.placement(&detected);
        let Detected { whole, environment, choice, context, is_unplaced } = detected;
        let (placement, choice) = match self.overrides.node {
            Some(node) => (nodes::node(node, placement, whole)?, nodes::choice()),
            None => (placement?, choice),
        };
        let mut placement =
            if self.overrides.one_per_node { nodes::one_per_node(placement)? } else { placement };
        if let Some(answer) = &self.overrides.answer {
            placement = answer.apply_pmi(placement)?;
        }
        placement.launcher.source = match placement.launcher() == choice.marker.launcher {
            true => choice.source.clone(),
            false => display_variable(whole, &placement.rank.source).into(),
        };
        let threads = threads::of_outer(whole, context.as_ref());
        let own = context.as_ref().filter(|_| choice.is_of_context);
        if let Some((node, server)) = own.and_then(|own| own.node.zip(own.server)) {
            let known = |number| by(server.source(), Some(number));
            placement.node_rank = placement.node_rank.or_else(|| known(node.index()));
            placement.node_count = placement.node_count.or_else(|| known(node.size()));
        }
        if let Some((local, server)) = own.and_then(|own| own.local.zip(own.server)) {
            let known = |number| by(server.source(), Some(number));
            let rank = placement.local_rank.clone().or_else(|| known(local.index()));
            let size = placement.local_size.clone().or_else(|| known(local.size()));
            placement = placement.with_local(rank, size)?;
        }
        let (own, outer) = match choice.is_of_context {
            true => (context, None),
            false => (None, context.filter(|_| self.overrides.node.is_none())),
        };
        let azure = None;
        Ok(Place { whole, environment, placement, choice, is_unplaced, own, outer, azure, threads })
    }

    /// Reads what the launcher provides about this process.
    fn placement(&self, detected: &Detected<'_>) -> Result<Placement, Error> {
        match &self.overrides.answer {
            Some(answer) if answer.gives_all(&detected.environment, detected.is_unplaced) => {
                answer.placement(&detected.environment)
            }
            Some(answer) => answer.apply_pmix(read(detected)?),
            None => read(detected),
        }
    }
}

/// Reads the launcher's variables. Fails if they show a job but not this process's place in it.
fn read(detected: &Detected<'_>) -> Result<Placement, Error> {
    if detected.is_unplaced {
        unplaced::refuse(&detected.environment)?;
    }
    let marker = detected.choice.marker;
    let placement = (marker.launcher.spec().read)(&detected.environment, marker)?;
    unplaced::refuse_worker(&detected.environment, &placement)?;
    Ok(placement)
}

/// What shows which launcher started this process.
struct Detected<'a> {
    whole: &'a Environment,
    /// The variables without those that an outer job left.
    environment: Cow<'a, Environment>,
    choice: Choice,
    context: Option<Context>,
    /// Whether nothing places this process, and no option or variable asks for that.
    is_unplaced: bool,
}

fn detect<'a>(
    whole: &'a Environment,
    explicit: Option<&Sourced<Launcher>>,
) -> Result<Detected<'a>, Error> {
    let context = Context::find(whole)?;
    let choice = choose(whole, explicit, context.as_ref())?;
    let inner = choice.without_outer(whole, context.as_ref());
    let environment = inner.map_or(Cow::Borrowed(whole), Cow::Owned);
    // A process is deliberately alone if an override or an exported context says so.
    let is_unplaced =
        choice.marker.launcher == Launcher::Alone && explicit.is_none() && !choice.is_of_context;
    Ok(Detected { whole, environment, choice, context, is_unplaced })
}

/// Returns the launcher that a process with these variables would be said to have. `None` if they
/// cannot be read.
pub(crate) fn launcher_of(environment: &Environment) -> Option<Launcher> {
    let overrides = Overrides::default().or_inherited(environment).ok()?;
    Some(detect(environment, overrides.launcher.as_ref()).ok()?.choice.marker.launcher)
}

/// This process's place, and what it was read from.
struct Place<'a> {
    whole: &'a Environment,
    environment: Cow<'a, Environment>,
    placement: Placement,
    choice: Choice,
    is_unplaced: bool,
    /// What mpienv chose for this process, if no launcher has started it since.
    own: Option<Context>,
    /// What mpienv chose for the surrounding job, in which a launcher started this process.
    outer: Option<Context>,
    azure: Option<AzureVars>,
    /// The variables of threads that an outer mpienv has set.
    threads: Vec<(&'static str, u32)>,
}

/// Adds what follows from the place, and rejects what cannot be.
fn complete(mut place: Place<'_>) -> Result<Place<'_>, Error> {
    place.placement = on_one_host(place.placement, place.whole)?;
    let placement = &mut place.placement;
    let is_open = placement.job.is_none() && placement.size.value > 1 && placement.is_one_node();
    // The process that started all ranks identifies the job if no variable does.
    if is_open && let Some(starter) = Starter::of(placement.launcher(), place.whole) {
        placement.job = Some(starter.job());
    }
    place.azure = AzureVars::find(&place.environment)?;
    nodes::complete(placement, place.azure.is_some())?;
    Ok(place)
}

/// Adds the local rank and size of a launcher that starts all ranks on its own host without saying
/// so.
fn on_one_host(placement: Placement, environment: &Environment) -> Result<Placement, Error> {
    let is_open = placement.local_rank.is_none() && placement.local_size.is_none();
    let starter = is_open.then(|| Starter::of(placement.launcher(), environment)).flatten();
    if starter.is_none_or(|starter| starter.program != ON_ONE_HOST) {
        return Ok(placement);
    }
    let known = |number| by(format!("{ON_ONE_HOST} starts all ranks on its host"), Some(number));
    let (rank, size) = (known(placement.rank.value), known(placement.size.value));
    placement.with_local(rank, size)
}

/// Returns what is suspicious about the place.
fn lint(place: &mut Place<'_>) -> Vec<Finding> {
    let mut findings = mem::take(&mut place.placement.findings);
    if place.is_unplaced && place.placement.launcher() == Launcher::Alone {
        findings.extend(unplaced::finding(&place.environment));
    }
    findings.extend(lints::findings(place));
    findings
}

/// Determines where the ranks meet, and whether the launcher's list of hosts fits that.
fn decide_meeting(
    place: &mut Place<'_>,
    overrides: &Overrides,
    findings: &mut Vec<Finding>,
) -> Result<Meeting, Error> {
    let Place { environment, placement, own, azure, .. } = place;
    let explicit = overrides.master_addr.clone();
    let answered = own.as_ref().and_then(|own| own.master_addr.as_deref().zip(own.server));
    let is_set_by_mpienv = own.is_some();
    let sources = MasterSources { azure: azure.as_ref(), explicit, is_set_by_mpienv, answered };
    let addr = master::decide_addr(environment, placement, sources, findings)?;
    findings.extend(addr.as_ref().and_then(|addr| master::unbracketed(environment, addr)));
    placement.hosts = nodes::hosts(placement, addr.as_ref());
    let derived = placement.master_addr.as_ref().map(|derived| &derived.value);
    if derived.is_some() && addr.as_ref().map(|addr| &addr.value) == derived {
        findings.extend(placement.master_doubt.take());
    }
    let found = addr.as_ref().map(|addr| &addr.value);
    let wrong = placement.not_master.take().filter(|(host, _)| found == Some(host));
    findings.extend(wrong.map(|(_, finding)| finding));
    findings.extend(lints::privileged_ports(&overrides.port_range));
    let rule = PortRule { on_azure: azure.is_some(), range: value_of(&overrides.port_range) };
    let (port, default_port) =
        master::port(environment, placement, rule, overrides.master_port.clone())?;

    // Some launchers set the job's master together with the rank.
    let comes_along = placement.launcher().spec().sets_master();
    let own_addr = own.as_ref().and_then(|own| own.master_addr.as_ref());
    let own_port = own.as_ref().and_then(|own| own.master_port.as_ref());
    let addr_names = [master::MASTER_ADDR, overrides::MASTER_ADDR];
    let port_names = [master::MASTER_PORT, overrides::MASTER_PORT];
    let addr_scope = addr.as_ref().map(|addr| Scope::of(addr, addr_names, comes_along, own_addr));
    // An override is deliberate, so that only the plain variable can be left from another job.
    let of_user = addr
        .as_ref()
        .filter(|addr| addr_scope == Some(Scope::User) && addr.source == master::MASTER_ADDR);
    findings.extend(of_user.and_then(|addr| lints::master_of_hosts(placement, &addr.value)));
    let auth = auth::munge(environment)?;
    let (mut token, mut token_scope) = auth::token(environment, placement, own.as_ref())?;
    if token_scope == Scope::Job
        && auth.as_ref().is_none_or(Munge::is_auto)
        && let Some(secret) = overrides.secret()
    {
        (token, token_scope) = (Token::new(secret), Scope::Programs);
    }
    findings.extend(auth::short(&token, token_scope).filter(|_| !is_set_by_mpienv));
    let addr = addr.ok_or_else(|| master::unknown(environment, placement));
    findings.extend(addr.as_ref().err().map(master::unknown_finding));
    Ok(Meeting {
        addr,
        addr_scope: addr_scope.unwrap_or(Scope::User),
        port_scope: Scope::of(&port, port_names, comes_along, own_port),
        port,
        default_port,
        token,
        token_scope,
        auth,
    })
}
