//! Selects the launcher that started this process: the innermost of those that left variables.

use std::cell::LazyCell;

use super::disagreement::has_other_master;
use super::unplaced;
use crate::cluster::context::{CONTEXT, Context};
use crate::cluster::{master, overrides};
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::launcher::placement::Placement;
use crate::launcher::starter::{self, Starter};
use crate::launcher::user::{RANK, WORLD_SIZE};
use crate::launcher::{Change, Launcher, Marker, is_shared, markers, slurm, specs};
use crate::value::sourced::{Source, Sourced};

/// The selected launcher, and the reason for selecting it.
pub(super) struct Choice<'a> {
    pub marker: Marker<'a>,
    pub source: Source,
    /// Other launchers whose variables may describe this process too and must then agree.
    pub rest: Vec<Marker<'a>>,
    /// Whether the context still describes this process.
    pub is_of_context: bool,
    /// The program whose process shows which of several launchers started this one.
    pub starter: Option<&'static str>,
}

pub(super) fn choose<'a>(
    environment: &'a Environment,
    explicit: Option<&Sourced<Launcher>>,
    context: Option<&Context>,
) -> Result<Choice<'a>, Error> {
    match (explicit, context) {
        (Some(explicit), _) => asked_for(environment, explicit, context),
        (None, Some(context)) => innermost(environment, context),
        (None, None) => Ok(first_detected(environment)),
    }
}

fn asked_for<'a>(
    environment: &'a Environment,
    explicit: &Sourced<Launcher>,
    context: Option<&Context>,
) -> Result<Choice<'a>, Error> {
    let launcher = explicit.value;
    let marker = find(environment, launcher).ok_or_else(|| {
        // The launcher may only have started the script that runs this process.
        let script = unplaced::script(environment);
        let start = script
            .filter(|script| script.code.strip_suffix("-not-a-task") == Some(launcher.name()));
        let start = start.map_or(String::new(), |script| format!("{}; or ", script.remedy));
        let remedy = format!("{start}select the launcher that started this process");
        let absent = Reason::LauncherAbsent(launcher);
        if explicit.source != overrides::LAUNCHER {
            return Error::new(absent, format!("{remedy}, or do not select one"));
        }
        Error::new(absent, format!("{remedy}, or unset {}", overrides::LAUNCHER))
            .of(overrides::LAUNCHER)
            .found(launcher.name())
    })?;
    let is_of_context = context.is_some_and(|context| {
        context.launcher == launcher && changed(environment, context).is_empty()
    });
    // If the ranks of a launcher inherit the variable, each of them is alone.
    let is_alone = launcher == Launcher::Alone
        || launcher == Launcher::User && environment.text(WORLD_SIZE) == Some("1");
    let is_inherited = is_alone && explicit.source == overrides::LAUNCHER;
    let rest = if is_inherited { markers(environment).collect() } else { Vec::new() };
    Ok(Choice { rest, is_of_context, ..Choice::new(marker, explicit.source.clone()) })
}

/// Without a context, the order of the launchers decides. Other launchers that disagree are
/// suspicious.
fn first_detected(environment: &Environment) -> Choice<'_> {
    let markers: Vec<_> = markers(environment).collect();
    started(&markers).unwrap_or_else(|| {
        // The last launcher accepts every environment.
        let alone = Marker { environment, launcher: Launcher::Alone, variable: "" };
        let marker = markers.first().copied().unwrap_or(alone);
        let rest = markers.into_iter().skip(1).collect();
        Choice { rest, ..Choice::new(marker, marker.shown()) }
    })
}

/// Among several launchers that may have started this process, selects the one whose own process is
/// the nearest ancestor. Returns `None` if no such process is visible, and Slurm's is not hidden.
fn started<'a>(candidates: &[Marker<'a>]) -> Option<Choice<'a>> {
    let starters = |marker: &Marker<'_>| marker.launcher.spec().starters;
    let first = candidates.first()?;
    let environment = first.environment;
    let is_other =
        |other: &Marker<'_>| other.launcher != first.launcher && !starters(other).is_empty();
    let has_other = candidates.iter().any(is_other);
    let is_by_hand = |other: &Marker<'_>| other.launcher == Launcher::User;
    let may_be_nearer = !starters(first).is_empty() && candidates.iter().any(is_by_hand);
    if !has_other && !may_be_nearer {
        return None;
    }
    let programs: Vec<_> = candidates.iter().flat_map(starters).copied().collect();
    let (starter, child) = match Starter::nearest(&programs, environment) {
        Some(Starter { program, child, .. }) => (program, child),
        // Slurm's process is root's. Those of mpirun and mpiexec are the user's, so they are visible.
        None if programs.contains(&slurm::STARTER) => {
            (slurm::STARTER, starter::below_hidden(environment)?)
        }
        None => return None,
    };
    let marker = *candidates.iter().find(|marker| starters(marker).contains(&starter))?;
    let read = |marker: &Marker<'_>| marker.placement().ok();
    let only = read(&marker).filter(|job| job.size.value == 1);
    // Read only if a launcher may be nearer.
    let then = LazyCell::new(|| child.environment());
    let is_new = |name: &&str| then.text(name) != environment.text(name);
    // A launcher without known programs, such as torchrun, is even nearer unless its own variables
    // were there before. So are numbers that were set in a job's only rank, but not by all of
    // several such jobs: they would all be rank 0.
    let is_nearer = |other: &&Marker<'_>| {
        let mut own = other.launcher.variables().map(|variable| variable.name);
        match (other.launcher, &only) {
            (Launcher::User, Some(only)) => {
                let is_own = |own: Placement| {
                    let has_first = own.rank.value > 0 || !has_other_master(environment, only);
                    own.size.value > 1 && has_first
                };
                own.any(|name| [RANK, WORLD_SIZE].contains(&name) && is_new(&name))
                    && read(other).is_some_and(is_own)
            }
            _ if other.launcher == first.launcher && starters(first).is_empty() => {
                own.any(|name| !is_shared(name) && is_new(&name))
            }
            _ => false,
        }
    };
    let (marker, how) = match candidates.iter().find(is_nearer) {
        // Each rank of the job may have started a job of its own.
        Some(_) if only.is_none() => return None,
        Some(nearer) => (*nearer, format!("set below {starter}")),
        None if !has_other => return None,
        None => (marker, format!("and {starter} started this process")),
    };
    let source = format!("{}, {how}", marker.shown());
    let is_rest = |other: &&Marker<'_>| other.launcher != marker.launcher;
    let rest = candidates.iter().filter(is_rest).copied().collect();
    Some(Choice { rest, starter: Some(starter), ..Choice::new(marker, source) })
}

/// Selects a launcher whose variables have changed since the context was written. If there is none,
/// this is the process that the context describes, or a child of it.
fn innermost<'a>(environment: &'a Environment, context: &Context) -> Result<Choice<'a>, Error> {
    let changed = changed(environment, context);
    if let Some(choice) = started(&changed) {
        return Ok(choice);
    }
    if let [marker, rest @ ..] = &changed[..] {
        let shown = marker.shown();
        let source = format!("{shown}, set since mpienv started the process around this one");
        return Ok(Choice { rest: rest.to_vec(), ..Choice::new(*marker, source) });
    }
    // A program may have received only RANK and related variables, without the launcher's own.
    // Whatever mpienv has placed also got RANK, so that the node's number is only a remainder.
    let is_whole = |marker: &Marker<'_>| marker.variable != "NODE_RANK";
    let of_user = || find(environment, Launcher::User);
    let marker = find(environment, context.launcher).or_else(of_user).filter(is_whole);
    let marker = marker.ok_or_else(|| {
        // Without the context, what remains of the place would be refused too.
        let remedy = format!(
            "keep the variables that mpienv set for this process; or, for a process by itself, \
             set {}={}",
            overrides::LAUNCHER,
            Launcher::Alone.name()
        );
        Error::new(Reason::LauncherAbsent(context.launcher), remedy).of(CONTEXT)
    })?;
    let source = if context.is_asked_alone { CONTEXT.into() } else { marker.shown() };
    Ok(Choice { is_of_context: true, ..Choice::new(marker, source) })
}

fn find(environment: &Environment, launcher: Launcher) -> Option<Marker<'_>> {
    markers(environment).find(|marker| marker.launcher == launcher)
}

/// Returns the launchers that may have started a process after the context was written, likeliest
/// first.
fn changed<'a>(environment: &'a Environment, context: &Context) -> Vec<Marker<'a>> {
    let change =
        |marker: Marker<'a>| Some((marker.launcher.change(environment, &context.seen)?, marker));
    let changes: Vec<_> = markers(environment).filter_map(change).collect();
    // A launcher that also sets another launcher's variables is recognized by its own.
    let Some(surest) = changes.iter().map(|(change, _)| *change).min() else {
        let is_newer =
            |marker: &Marker<'_>| context.seen.has_newer_starter(marker.launcher, environment);
        if let Some(newer) = markers(environment).find(is_newer) {
            return vec![newer];
        }
        // A worker's master may differ from the one it was given: a script's ranks may have the
        // same numbers.
        let mut masters = [master::MASTER_ADDR, master::MASTER_PORT].into_iter();
        let is_new = context.launcher == Launcher::User
            && masters.any(|name| context.seen.is_changed(environment, name));
        return find(environment, context.launcher).into_iter().filter(|_| is_new).collect();
    };
    // If only shared variables changed, a launcher that always sets a new value of its own did not
    // change them.
    let can_be =
        |marker: &Marker<'_>| surest == Change::Own || !marker.launcher.spec().is_always_seen;
    let likeliest = changes.into_iter().filter(|(change, _)| *change == surest);
    likeliest.map(|(_, marker)| marker).filter(can_be).collect()
}

impl<'a> Choice<'a> {
    pub(super) fn new(marker: Marker<'a>, source: impl Into<Source>) -> Choice<'a> {
        let source = source.into();
        Choice { marker, source, rest: Vec::new(), is_of_context: false, starter: None }
    }

    /// Returns the environment without an outer job's master and nodes, if this process inherited
    /// them.
    pub(super) fn without_outer(&self, context: Option<&Context>) -> Environment {
        let environment = self.marker.environment;
        let Some(outer) = context.filter(|_| !self.is_of_context) else {
            return environment.clone();
        };
        let is_left = |name: &str| !outer.seen.is_changed(environment, name);
        let inherited = self.marker.launcher.spec().may_inherit;
        let of_outer = |name: &str| match name {
            master::MASTER_ADDR => is_same(environment, name, &outer.master_addr),
            master::MASTER_PORT => is_same(environment, name, &outer.master_port),
            name => is_left(name),
        };
        let identities = specs().filter_map(|spec| spec.identity);
        let unchanged = identities.filter(|(identity, _)| is_left(identity));
        let of_its_job =
            unchanged.flat_map(|(identity, others)| others.iter().copied().chain([identity]));
        let left = inherited.iter().copied().filter(|name| of_outer(name)).chain(of_its_job);
        environment.with(left.map(|name| (name, None)))
    }
}

fn is_same(environment: &Environment, name: &str, value: &Option<String>) -> bool {
    value.is_some() && environment.text(name) == value.as_deref()
}
