//! Determines a process's place step by step: detect, read, complete, lint, decide the meeting.

mod auth;
mod builder;
mod choice;
pub(crate) mod disagreement;
pub(crate) mod foreign;
mod lints;
mod nodes;
mod parents;
pub(crate) mod unplaced;

use std::cell::LazyCell;
use std::mem;

use self::choice::{Choice, choose};
use crate::cluster::azure::AzureVars;
use crate::cluster::context::Context;
use crate::cluster::info::{Carried, ClusterInfo, Earlier, Inherited};
use crate::cluster::interface::{Interface, OwnAddr, OwnInterface};
use crate::cluster::master::{Meeting, Scope};
use crate::cluster::overrides::{ASKED, Overrides, RESTART_COUNT};
use crate::cluster::warn::is_on;
use crate::cluster::{device, master, nccl, overrides, threads};
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::finding::{Finding, Severity};
use crate::launcher::placement::Placement;
use crate::launcher::starter::{ON_ONE_HOST, Starter};
use crate::launcher::user::WORLD_SIZE;
use crate::launcher::{Launcher, Marker, Starts, is_shared, kubernetes, markers, restarts};
use crate::value::sourced::{NOT_PROVIDED, Sourced, by, value_of};
use crate::value::token::Munge;

pub use self::builder::ClusterInfoBuilder;

impl ClusterInfoBuilder {
    /// Detects the launcher, reads its variables, and completes, connects and checks the place.
    fn discover(&self, whole: &Environment) -> Result<ClusterInfo, Error> {
        let overrides = self.overrides.or_inherited(whole)?;
        let mut place = self.place(whole, overrides.launcher.as_ref())?;
        complete(&mut place)?;
        let mut findings = lint(&mut place, &overrides);
        let meeting = decide_meeting(&mut place, &overrides, &mut findings)?;
        let Place { environment, placement, azure, .. } = &place;
        let surroundings = Surroundings {
            nccl: nccl::ifname(environment, azure.is_some(), overrides.nccl_ifname)?,
            device_index: device::index(whole, value_of(&placement.local_rank)),
            restart_count: restart_count(whole, placement.launcher())?,
            platform: platform(whole, placement),
            asked_interface: overrides.interface,
            interface: None,
            own_addr: None,
        };
        let carried = Carried {
            overrides: self.overrides.exported(),
            to_unset: lints::to_unset(&place, &surroundings.nccl.ifname),
            // A process that reads the exports must get the overridden place again.
            context: self.overrides.reader(placement.launcher()),
        };
        let mut said = place.own.as_ref().map(|own| own.said.clone()).unwrap_or_default();
        // What another job's variables show has not been said.
        if place.since.is_some_and(|since| since != Environment::default()) {
            said.retain(|code| !unplaced::is_unplaced(code));
        }
        let earlier = Earlier {
            keeps_binding: place.own.as_ref().is_some_and(|own| own.keeps_binding),
            said,
            threads: place.threads,
        };
        let info = ClusterInfo {
            inherited: Inherited(whole.clone()),
            placement: place.placement,
            surroundings,
            meeting,
            carried,
            earlier,
            findings,
            endpoints: None,
        };
        if !is_on(whole, overrides::REQUIRE_LAUNCHER) {
            return Ok(info);
        }
        info.require_launcher().map_err(|error| error.of(overrides::REQUIRE_LAUNCHER).found("1"))
    }

    /// Reads this process's place from the selected launcher's variables or from the overrides.
    fn place<'a>(
        &self,
        whole: &'a Environment,
        explicit: Option<&Sourced<Launcher>>,
    ) -> Result<Place<'a>, Error> {
        let context = Context::find(whole)?;
        let choice = choose(whole, explicit, context.as_ref())?;
        let environment = choice.without_outer(context.as_ref());
        // A process is deliberately alone if an override says so, or if an exported context does and
        // nothing has changed since.
        let is_unplaced = choice.marker.launcher == Launcher::Alone && explicit.is_none();
        let since = context.as_ref().map(|context| context.seen.since(&environment));
        let own = context.as_ref().filter(|_| choice.is_of_context);
        let unplaced = is_unplaced.then(|| match (own, &since) {
            // What `exec` has found before it became this program is found again.
            (Some(own), _) if own.is_one_of_several => disagreement::without_place(&environment),
            (Some(_), Some(since)) => since.clone(),
            _ => environment.clone(),
        });
        let read = self.placement(choice.marker.of(&environment), unplaced.as_ref());
        let (mut placement, choice) = match self.overrides.node {
            Some(node) => {
                let marker = Marker { launcher: Launcher::User, variable: "", environment: whole };
                (nodes::node(node, read, whole)?, Choice::new(marker, ASKED))
            }
            None => (read?, choice),
        };
        if self.overrides.one_per_node {
            placement = nodes::one_per_node(placement, &environment)?;
        }
        if let Some(answer) = &self.overrides.answer {
            placement = answer.apply_pmi(placement)?;
        }
        placement.launcher.source = match placement.launcher() == choice.marker.launcher {
            true => choice.source.clone(),
            false => whole.shown(&placement.rank.source).into(),
        };
        let threads = threads::of_outer(whole, context.as_ref());
        let (own, outer) = match choice.is_of_context {
            true => (context, None),
            false => (None, context.filter(|_| self.overrides.node.is_none())),
        };
        if let Some(answer) = own.as_ref().and_then(Context::answer) {
            placement = answer.fill(placement)?;
        }
        let azure = AzureVars::find(&environment)?;
        Ok(Place {
            whole,
            environment,
            placement,
            choice,
            unplaced,
            own,
            outer,
            since,
            azure,
            threads,
        })
    }

    /// Reads what the launcher provides about this process. Fails if its variables, those that are
    /// `unplaced`, show a job but not this process's place in it.
    fn placement(
        &self,
        marker: Marker<'_>,
        unplaced: Option<&Environment>,
    ) -> Result<Placement, Error> {
        let answer = self.overrides.answer.as_ref();
        if let Some(unplaced) = unplaced {
            if let Some(answer) = answer.filter(|answer| answer.gives_all(unplaced)) {
                return answer.placement(unplaced);
            }
            unplaced::refuse(unplaced).map_or(Ok(()), Err)?;
        }
        let placement = marker.placement()?;
        unplaced::refuse_worker(marker.environment, &placement).map_or(Ok(()), Err)?;
        match answer {
            Some(answer) => answer.apply_pmix(placement),
            None => Ok(placement),
        }
    }
}

/// Returns the launcher that a process with these variables would be said to have. `None` if they
/// cannot be read.
pub(crate) fn launcher_of(environment: &Environment) -> Option<Launcher> {
    let explicit = Overrides::default().or_inherited(environment).ok()?.launcher;
    let context = Context::find(environment).ok()?;
    Some(choose(environment, explicit.as_ref(), context.as_ref()).ok()?.marker.launcher)
}

/// This process's place, and what it was read from.
struct Place<'a> {
    whole: &'a Environment,
    /// The variables without those that an outer job left.
    environment: Environment,
    placement: Placement,
    choice: Choice<'a>,
    /// The variables that may show a job, if none places this process, and no option or variable
    /// asks for that.
    unplaced: Option<Environment>,
    /// What mpienv chose for this process, if no launcher has started it since.
    own: Option<Context>,
    /// What mpienv chose for the surrounding job, in which a launcher started this process.
    outer: Option<Context>,
    /// What was set since mpienv placed this process, or the one around it. Empty if nothing was.
    since: Option<Environment>,
    azure: Option<AzureVars>,
    /// The variables of threads that an outer mpienv has set.
    threads: Vec<(&'static str, u32)>,
}

/// Adds what follows from the place, and rejects what cannot be.
fn complete(place: &mut Place<'_>) -> Result<(), Error> {
    let placement = &mut place.placement;
    let launcher = placement.launcher();
    let starter = LazyCell::new(|| Starter::of(launcher, place.whole));
    let has_local = placement.local_rank.is_some() || placement.local_size.is_some();
    // Such a launcher starts all ranks on its own host without saying so.
    if !has_local && starter.as_ref().is_some_and(|starter| starter.program == ON_ONE_HOST) {
        let known =
            |number| by(format!("{ON_ONE_HOST} starts all ranks on its host"), Some(number));
        placement.local_rank = known(placement.rank.value);
        placement.local_size = known(placement.size.value);
    }
    let is_open = placement.job.is_none() && placement.size.value > 1 && placement.is_one_node();
    // The process that started all ranks identifies the job if no variable does.
    if is_open && let Some(starter) = &*starter {
        placement.job = Some(starter.job());
    }
    nodes::complete(placement, place.azure.is_some())
}

/// Returns what is suspicious about the place.
fn lint(place: &mut Place<'_>, overrides: &Overrides) -> Vec<Finding> {
    let mut findings = mem::take(&mut place.placement.findings);
    let others = disagreement::others(place);
    let of_place = lints::findings(place, &others);
    let is_disagreement = |finding: &Finding| {
        finding.code == disagreement::DISAGREE && finding.severity > Severity::Note
    };
    let is_sure = overrides.launcher.is_some()
        || overrides.node.is_some()
        || of_place.iter().any(is_disagreement);
    let is_alone = place.placement.launcher() == Launcher::Alone;
    let is_of_several = place.own.as_ref().is_some_and(|own| own.is_one_of_several);
    if let Some(unplaced) = place.unplaced.as_ref().filter(|_| is_alone) {
        let is_known = place.own.is_some() && !is_of_several;
        findings.extend(unplaced::finding(unplaced, is_known));
    } else if !is_sure {
        findings.extend(disagreement::one_of_several(place, &others));
    }
    findings.extend(of_place);
    let is_found = |found: &Finding| found.shows_several || unplaced::is_unplaced(found.code);
    if is_of_several && !is_sure && !findings.iter().any(is_found) {
        findings.push(disagreement::found_before(place.placement.launcher()));
    }
    findings
}

/// Determines where the ranks meet, and whether the launcher's list of hosts fits that.
fn decide_meeting(
    place: &mut Place<'_>,
    overrides: &Overrides,
    findings: &mut Vec<Finding>,
) -> Result<Meeting, Error> {
    let Place { whole, environment, placement, own, outer, azure, .. } = place;
    let (own, azure, explicit) = (own.as_ref(), azure.as_ref(), overrides.master_addr.clone());
    let addr = master::decide_addr(environment, placement, own, azure, explicit, findings)?;
    findings.extend(addr.as_ref().and_then(|addr| master::unbracketed(environment, addr)));
    placement.hosts = nodes::hosts(placement, addr.as_ref());
    let found = addr.as_ref().map(|addr| &addr.value);
    let derived = placement.master_addr.as_ref().map(|derived| &derived.value);
    if derived.is_some() && found == derived {
        findings.extend(placement.master_doubt.take());
    }
    let wrong = placement.not_master.take().filter(|(host, _)| found == Some(host));
    findings.extend(wrong.map(|(_, finding)| finding));
    findings.extend(lints::privileged_ports(&overrides.port_range));
    let (port, mut default_port) =
        master::port(environment, placement, azure.is_some(), overrides)?;
    default_port.is_used |= port.source == master::MASTER_PORT
        && own.is_some_and(|own| own.has_chosen_port(port.value));

    // Some launchers set the job's master together with the rank.
    let comes_along = placement.launcher().spec().sets_master();
    let own_addr = own.and_then(|own| own.master_addr.as_ref());
    let own_port = own.and_then(|own| own.master_port.as_ref());
    let addr_names = [master::MASTER_ADDR, overrides::MASTER_ADDR];
    let port_names = [master::MASTER_PORT, overrides::MASTER_PORT];
    let addr_scope = addr.as_ref().map(|addr| Scope::of(addr, addr_names, comes_along, own_addr));
    // An override is deliberate, so that only the plain variable can be left from another job.
    if let Some(addr) = &addr
        && addr_scope == Some(Scope::User)
        && addr.source == master::MASTER_ADDR
    {
        let of_hosts = lints::master_of_hosts(placement, &addr.value);
        findings.extend(of_hosts.or_else(|| lints::master_of_platform(placement, &addr.value)));
    }
    let auth = auth::munge(environment)?;
    // A worker's script may set some of its variables anew, as `LOCAL_RANK=0` beside one device for
    // each worker: with as many ranks that meet at the same port, the job is the same.
    let is_same_job = |outer: &&Context| {
        placement.launcher() == Launcher::User
            && outer.seen.is_known(whole, WORLD_SIZE)
            && !outer.seen.is_changed(whole, master::MASTER_PORT)
    };
    let of_job = own.or(outer.as_ref().filter(is_same_job));
    let (mut token, mut token_scope) = auth::token(environment, placement, of_job)?;
    if token_scope == Scope::Job
        && auth.as_ref().is_none_or(Munge::is_auto)
        && let Some(secret) = overrides.secret()
    {
        (token, token_scope) = (secret.clone(), Scope::Programs);
    }
    findings.extend(auth::short(&token, token_scope).filter(|_| own.is_none()));
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

/// What surrounds a rank: its device and network, the platform, and the job's earlier attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Surroundings {
    pub nccl: nccl::Selected,
    pub device_index: Sourced<Option<u32>>,
    pub restart_count: Sourced<Option<u32>>,
    pub platform: Sourced<Option<Launcher>>,
    /// The network interface that was asked for.
    pub asked_interface: Option<Sourced<Interface>>,
    /// The one that was found.
    pub interface: Option<OwnInterface>,
    /// This host's own address, or why it has none, once it was asked for.
    pub own_addr: Option<Result<OwnAddr, Error>>,
}

/// Returns the platform that started a process on this node: the launcher itself, or a platform
/// around it.
fn platform(environment: &Environment, placement: &Placement) -> Sourced<Option<Launcher>> {
    let is_platform = |launcher: Launcher| launcher.spec().starts == Starts::OnePerNode;
    if is_platform(placement.launcher()) {
        return Sourced::new(Some(placement.launcher()), placement.launcher.source.clone());
    }
    let mut markers = markers(environment).filter(|marker| is_platform(marker.launcher));
    let around = markers.find_map(|marker| {
        let node = marker.placement().ok()?;
        // Users set some of these variables by hand, and `exec --per-node` sets torchrun's own.
        let is_pod = environment.is_set(kubernetes::SERVICE);
        let is_sure = !is_shared(marker.variable)
            && value_of(&node.local_size) == Some(1)
            && (is_pod || marker.launcher != Launcher::Kubernetes);
        let source = || marker.shown();
        is_sure.then(|| Sourced::new(Some(marker.launcher), source()))
    });
    around.unwrap_or(Sourced::new(None, NOT_PROVIDED))
}

/// Returns how often the job was restarted, from the launcher's own variable or a surrounding
/// launcher's.
fn restart_count(
    environment: &Environment,
    launcher: Launcher,
) -> Result<Sourced<Option<u32>>, Error> {
    let read = |variable: &'static str| -> Result<Option<Sourced<Option<u32>>>, Error> {
        let Some(text) = environment.setting_text(variable)? else { return Ok(None) };
        let refused = |_| launcher.refuse(Reason::NotANumber, variable, text);
        Ok(Some(Sourced::new(Some(text.parse().map_err(refused)?), variable)))
    };
    for variable in restarts(launcher).into_iter().chain([RESTART_COUNT]) {
        if let Some(count) = read(variable)? {
            return Ok(count);
        }
    }
    // An unreadable variable of another launcher is not a reason to fail.
    let of_others = Launcher::ALL.iter().filter_map(|&other| restarts(other));
    let mut counts = of_others.filter_map(|variable| read(variable).ok()?);
    Ok(counts.next().unwrap_or(Sourced::new(None, NOT_PROVIDED)))
}
