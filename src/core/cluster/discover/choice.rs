//! Selects the launcher that started this process: the innermost of those that left variables.

use crate::cluster::master;
use crate::cluster::overrides;
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::launcher::context::{CONTEXT, Context};
use crate::launcher::starter::Starter;
use crate::launcher::{Change, DETECTORS, Detector, LAUNCHERS, Marker};
use crate::value::placement::{Launcher, Source, Sourced};

/// The selected launcher, and the reason for selecting it.
pub(super) struct Choice {
    pub marker: Marker,
    pub source: Source,
    /// Other detectors whose variables may describe this process too and must then agree.
    pub rest: Vec<&'static Detector>,
    /// Whether the context still describes this process.
    pub is_of_context: bool,
    /// The program whose process shows which of several launchers started this one.
    pub starter: Option<&'static str>,
}

pub(super) fn choose(
    environment: &Environment,
    explicit: Option<&Sourced<Launcher>>,
    context: Option<&Context>,
) -> Result<Choice, Error> {
    if let Some(explicit) = explicit {
        let marker = find(environment, explicit.value).ok_or_else(|| {
            let absent = Reason::LauncherAbsent(explicit.value);
            if explicit.source != overrides::LAUNCHER {
                return Error::new(
                    absent,
                    "select the launcher that started this process, or none",
                );
            }
            let remedy = format!(
                "select the launcher that started this process, or none (unset {})",
                overrides::LAUNCHER
            );
            Error::new(absent, remedy).of(overrides::LAUNCHER).found(explicit.value.name())
        })?;
        let is_of_context = context.is_some_and(|context| {
            context.launcher == explicit.value && changed(environment, context).is_empty()
        });
        return Ok(Choice {
            marker,
            source: explicit.source.clone(),
            rest: Vec::new(),
            is_of_context,
            starter: None,
        });
    }
    match context {
        Some(context) => innermost(environment, context),
        None => Ok(first_detected(environment)),
    }
}

/// Without a context, the order of the launchers decides. Other launchers that disagree are
/// suspicious.
fn first_detected(environment: &Environment) -> Choice {
    let mut detectors = DETECTORS.iter();
    if let Some(choice) = started(environment, detectors.clone()) {
        return choice;
    }
    let found = detectors.find_map(|detector| detector.detect(environment));
    // The last detector accepts every environment.
    let marker = found.unwrap_or(Marker { launcher: Launcher::Alone, variable: "" });
    Choice {
        marker,
        source: marker.display_variable(environment).into(),
        rest: detectors.collect(),
        is_of_context: false,
        starter: None,
    }
}

/// Among several launchers that may have started this process, selects the one whose own process is
/// the nearest ancestor. Returns `None` if no such process is visible.
fn started(
    environment: &Environment,
    candidates: impl Iterator<Item = &'static Detector>,
) -> Option<Choice> {
    let starters = |detector: &Detector| detector.launcher.spec().nested.starters;
    let candidates: Vec<&Detector> =
        candidates.filter(|detector| detector.detect(environment).is_some()).collect();
    let first = candidates.first()?;
    let is_other =
        |other: &&Detector| other.launcher != first.launcher && !starters(other).is_empty();
    // A launcher without known programs, such as torchrun, may be even nearer.
    if starters(first).is_empty() || !candidates.iter().any(is_other) {
        return None;
    }
    let programs: Vec<_> =
        candidates.iter().flat_map(|detector| starters(detector)).copied().collect();
    let starter = Starter::nearest(&programs, environment)?;
    let own = candidates.iter().find(|detector| starters(detector).contains(&starter))?;
    let marker = own.detect(environment)?;
    let source =
        format!("{}, and {starter} started this process", marker.display_variable(environment));
    let rest =
        candidates.iter().filter(|detector| detector.launcher != own.launcher).copied().collect();
    Some(Choice {
        marker,
        source: source.into(),
        rest,
        is_of_context: false,
        starter: Some(starter),
    })
}

/// Selects a launcher whose variables have changed since the context was written. If there is none,
/// this is the process that the context describes, or a child of it.
fn innermost(environment: &Environment, context: &Context) -> Result<Choice, Error> {
    let mut changed = changed(environment, context).into_iter();
    if let Some(choice) = started(environment, changed.clone()) {
        return Ok(choice);
    }
    if let Some(marker) = changed.next().and_then(|detector| detector.detect(environment)) {
        let source = format!(
            "{}, set since mpienv started the process around this one",
            marker.display_variable(environment)
        );
        return Ok(Choice {
            marker,
            source: source.into(),
            rest: changed.collect(),
            is_of_context: false,
            starter: None,
        });
    }
    // A program may have received only RANK and related variables, without the launcher's own.
    let marker = find(environment, context.launcher).or_else(|| find(environment, Launcher::User));
    let marker = marker.ok_or_else(|| {
        let remedy =
            format!("keep the variables that mpienv set for this process, or unset {CONTEXT} too");
        Error::new(Reason::LauncherAbsent(context.launcher), remedy).of(CONTEXT)
    })?;
    let source = marker.display_variable(environment);
    Ok(Choice {
        marker,
        source: source.into(),
        rest: Vec::new(),
        is_of_context: true,
        starter: None,
    })
}

fn detectors_of(launcher: Launcher) -> impl Iterator<Item = &'static Detector> {
    DETECTORS.iter().filter(move |detector| detector.launcher == launcher)
}

fn find(environment: &Environment, launcher: Launcher) -> Option<Marker> {
    detectors_of(launcher).find_map(|detector| detector.detect(environment))
}

/// Returns the detectors of launchers that may have started a process after the context was
/// written, likeliest first.
fn changed(environment: &Environment, context: &Context) -> Vec<&'static Detector> {
    let changes = DETECTORS
        .iter()
        .filter_map(|detector| Some((detector.change(environment, &context.seen)?, detector)));
    let changes: Vec<(Change, &Detector)> = changes.collect();
    // A launcher that also sets another launcher's variables is recognized by its own.
    let surest = changes.iter().map(|(change, _)| *change).min();
    if surest.is_none() && has_other_master(environment, context) {
        return detectors_of(context.launcher)
            .filter(|detector| detector.detect(environment).is_some())
            .take(1)
            .collect();
    }
    // If only shared variables changed, a launcher that always sets a new value of its own did not
    // change them.
    let can_be =
        |launcher: Launcher| surest == Some(Change::Own) || !launcher.spec().nested.is_always_seen;
    let likeliest = changes
        .into_iter()
        .filter(|(change, detector)| Some(*change) == surest && can_be(detector.launcher));
    likeliest.map(|(_, detector)| detector).collect()
}

/// Returns whether a worker's master differs from the one it was given. A script's ranks may have
/// the same numbers.
fn has_other_master(environment: &Environment, context: &Context) -> bool {
    let variables = [master::MASTER_ADDR, master::MASTER_PORT];
    context.launcher == Launcher::User
        && variables.iter().any(|name| context.seen.is_changed(environment, name))
}

impl Choice {
    /// Returns the environment without an outer job's master and nodes, if this process inherited
    /// them.
    pub(super) fn without_outer(
        &self,
        environment: &Environment,
        context: Option<&Context>,
    ) -> Option<Environment> {
        let outer = context.filter(|_| !self.is_of_context)?;
        let is_left = |name: &str| !outer.seen.is_changed(environment, name);
        let inherited = self.marker.launcher.spec().nested.may_inherit;
        let of_outer = |name: &str| match name {
            master::MASTER_ADDR => is_same(environment, name, &outer.master_addr),
            master::MASTER_PORT => is_same(environment, name, &outer.master_port),
            name => is_left(name),
        };
        let identities = LAUNCHERS.iter().filter_map(|spec| spec.nested.identity);
        let unchanged = identities.filter(|(identity, _)| is_left(identity));
        let of_its_job =
            unchanged.flat_map(|(identity, others)| others.iter().copied().chain([identity]));
        let left = inherited.iter().copied().filter(|name| of_outer(name)).chain(of_its_job);
        Some(environment.with(left.map(|name| (name, None))))
    }
}

fn is_same(environment: &Environment, name: &str, value: &Option<String>) -> bool {
    value.is_some() && environment.get_str(name).ok().flatten() == value.as_deref()
}
