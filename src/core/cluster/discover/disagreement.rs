//! Reports variables that give this process different places: those of two launchers, or a number
//! that contradicts the place.

use std::collections::HashSet;

use super::foreign::ONE_OF_SEVERAL;
use super::lints::is_same;
use super::{Place, foreign, parents, unplaced};
use crate::cluster::answer::PMIX_RANK;
use crate::cluster::context::{AROUND, CONTEXT, Context};
use crate::cluster::overrides;
use crate::environment::Environment;
use crate::finding::{Finding, Severity};
use crate::launcher::placement::Placement;
use crate::launcher::starter::{DAEMONS, Process, Starter};
use crate::launcher::user::{LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, RANK, WORLD_SIZE};
use crate::launcher::{
    Launcher, LauncherSpec, MASTER, Marker, Starts, is_shared, markers, open_mpi, user,
};
use crate::value::host::Host;
use crate::value::sourced::{Known, source_of, value_of};

/// The code of a finding about variables that give this process different places.
pub(crate) const DISAGREE: &str = "launchers-disagree";

/// Why a job on one node matters in a rank of another launcher.
const OWN_JOBS: &str =
    "each process of one launcher seems to have started a job of the other, on its own";

/// Variables that may number a process without the size of its job.
const LOOSE: [&str; 4] = [NODE_RANK, PMIX_RANK, "PMI_ID", "ALPS_APP_PE"];

/// Reports signs that this process is one of several, although its place says that it is the only
/// rank of the job, or of its node.
///
/// Beside a rank that was set by hand or exported, this is also what would be an error or a warning
/// for a process without a place. mpirun and srun say on purpose that a job has one rank.
///
/// Below a process that mpienv has placed, only what was set since counts.
pub(super) fn one_of_several(place: &Place<'_>, others: &[Other<'_>]) -> Option<Finding> {
    let Place { environment, placement, own, outer, .. } = place;
    let (launcher, Placement { rank, size, .. }) = (placement.launcher(), placement);
    let says = || {
        let place = format!("{} rank {} of {}", says(launcher), rank.value, size.value);
        match launcher {
            Launcher::User => place,
            _ => format!("{place} ({}, {})", rank.source, size.source),
        }
    };
    let by_hand = |names: &str| match launcher {
        Launcher::User => format!("set {names} for each process"),
        _ => {
            format!("set {names} for each process, and {}={}", overrides::LAUNCHER, Launcher::User)
        }
    };
    let is_one = size.value == 1;
    if let Some(name) = contradiction(place, others) {
        return Some(Finding::warning(
            DISAGREE,
            format!("{}, but {} is set", says(), environment.shown(name)),
            if is_one { ONE_OF_SEVERAL } else { ONE_OF_THE_NODE },
            format!(
                "unset {name} if it is left from another job; otherwise {}; or set {}={launcher} if that place is right",
                by_hand("RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_ADDR"),
                overrides::LAUNCHER,
            ),
        )
        .of_several(is_one));
    }
    if !is_one || launcher == Launcher::Alone {
        return None;
    }
    // DeepSpeed's launcher also sets these.
    let is_by_hand = launcher == Launcher::User
        && !environment.is_set(user::CROSS_SIZE)
        && others.iter().all(|(_, read)| read.is_none());
    // What `exec` has found before it became this program is found again.
    let is_said = own.as_ref().is_some_and(|own| own.is_one_of_several);
    let environment = place.since.as_ref().filter(|_| !is_said).unwrap_or(environment);
    // `exec` has given a process by itself its place, and a script has set more.
    let is_left = |outer: &Context| {
        let is_known = |name: &&str| outer.seen.is_known(place.whole, name);
        outer.launcher == Launcher::Alone && [RANK, WORLD_SIZE].iter().all(is_known)
    };
    let are_new = own.is_some() || outer.as_ref().is_some_and(is_left);
    // A process that mpienv has started has been compared with its parents before.
    let is_first = is_said || own.is_none() && outer.is_none();
    let lost = || is_first.then(|| parents::finding(environment, launcher)).flatten();
    let sign = match is_by_hand || own.is_some() {
        true => {
            let sign = unplaced::beside_one_rank(&without_place(environment), are_new);
            sign.or_else(lost).filter(unplaced::is_warning)
        }
        // A script may have set the place of a node for torchrun.
        false if launcher.spec().starts == Starts::OnePerNode => {
            let script = || unplaced::script(environment).filter(unplaced::is_warning);
            foreign::of_launched(environment).or_else(script)
        }
        // If a launcher's process is an ancestor of its ranks, another one is not nearer.
        false => foreign::of_launched(environment).or_else(|| {
            let can_see = !launcher.spec().starters.is_empty();
            can_see.then(lost).flatten().filter(unplaced::is_warning)
        }),
    }?;
    // What starts a script's tasks gives each of them the place that is set by hand for one.
    let start = match unplaced::is_script(sign.code) {
        true => sign.remedy,
        false => by_hand("RANK, WORLD_SIZE and MASTER_ADDR"),
    };
    let remedy =
        format!("{start}, or set {}={launcher} for a process by itself", overrides::LAUNCHER);
    Some(Finding::warning(sign.code, format!("{}; {}", says(), sign.what), sign.why, remedy))
}

/// Reports what an mpienv that has become this program has found, and may have said.
pub(super) fn found_before(launcher: Launcher) -> Finding {
    Finding::warning(
        DISAGREE,
        "mpienv has started this program in a process that is probably one of several",
        OWN_JOBS,
        format!(
            "leave out one of the launchers; for a job of its own in each process, set {}={launcher}",
            overrides::LAUNCHER
        ),
    )
    .of_several(true)
}

/// Returns a variable that numbers this process above 0, although its place, which no other launcher's
/// explains, says that it is the only one.
fn contradiction(place: &Place<'_>, others: &[Other<'_>]) -> Option<&'static str> {
    let Place { whole, environment, placement, choice, own, outer, .. } = place;
    let explains = |is_it: &dyn Fn(&Placement) -> bool| {
        others.iter().any(|(_, read)| read.as_ref().is_some_and(is_it))
    };
    // What was there when mpienv placed this process, or one around it, is not of a later job.
    let recorded = own.as_ref().or(outer.as_ref());
    let is_left = |name: &str| recorded.is_some_and(|context| context.seen.is_known(whole, name));
    let number = |name: &str| {
        let number = environment.digits::<u32>(name).filter(|&number| number > 0);
        number.filter(|_| !is_left(name))
    };
    let local = number(LOCAL_RANK).filter(|&local| {
        value_of(&placement.local_size) == Some(1)
            && !explains(&|other| value_of(&other.local_rank) == Some(local))
    });
    let local = local.map(|_| LOCAL_RANK);
    let is_by_hand = placement.launcher() == Launcher::User;
    if placement.size.value > 1 {
        let is_low = |name: &&str| is_by_hand && is_low(placement) && number(name).is_some();
        return local.or_else(|| [LOCAL_RANK, NODE_RANK].into_iter().find(is_low));
    }
    let mut loose = LOOSE.into_iter().filter(|name| {
        number(name).is_some_and(|rank| !explains(&|other| other.rank.value == rank))
    });
    // If the program that started this process is visible, an outer one left the variables. Pods
    // of an indexed job may each have a launcher of their own.
    let is_inner = |other: &LauncherSpec| {
        (choice.starter.is_none() || other.starters.is_empty())
            && (other.starts != Starts::OnePerNode || placement.launcher() == Launcher::User)
    };
    let unread = others.iter().filter(|(marker, read)| {
        read.is_none() && is_inner(marker.launcher.spec()) && marker.is_of_rank()
    });
    let mut unread =
        unread.map(|(marker, _)| marker.variable).filter(|name| number(name).is_some());
    let of_one = loose.next().or(local).or_else(|| unread.next());
    let of_absent = || {
        if choice.starter.is_some() {
            return None;
        }
        // The local rank or the node of a launcher whose rank is not set.
        let is_absent = |launcher: &&Launcher| {
            launcher.spec().starts == Starts::Processes
                && others.iter().all(|(marker, _)| marker.launcher != **launcher)
        };
        let is_place = |field| ["local_rank", "node_rank", "node_id"].contains(&field);
        let of_absent = Launcher::ALL.iter().filter(is_absent).flat_map(|other| other.variables());
        let places = of_absent.filter(|variable| is_place(variable.field));
        let mut names = places.map(|variable| variable.name);
        names.find(|name| number(name).is_some() && !is_shared(name))
    };
    let of_hosts = || {
        let is_size = |name: &&str| number(name).is_some_and(|size| size > 1);
        let size = [WORLD_SIZE, user::COUNT].into_iter().find(is_size);
        size.filter(|_| has_other_master(environment, placement))
    };
    of_one.or_else(of_absent).or_else(|| if is_by_hand { None } else { of_hosts() })
}

/// Returns whether the rank is lower than every order of nodes and ranks allows: each node before
/// this one has a rank, and this node has one for each local rank before.
pub(crate) fn is_low(placement: &Placement) -> bool {
    let [node, local] = [&placement.node_rank, &placement.local_rank].map(value_of);
    u64::from(placement.rank.value) < u64::from(node.unwrap_or(0)) + u64::from(local.unwrap_or(0))
}

/// Returns whether `MASTER_ADDR` is the name of another host than those on which the ranks are.
pub(super) fn has_other_master(environment: &Environment, placement: &Placement) -> bool {
    let master = environment.text(MASTER[0]).and_then(|text| text.parse::<Host>().ok());
    let is_other = |master: &Host, host: &Host| {
        let is_name = master.address().is_none() && host.address().is_none();
        is_name && !master.is_loopback() && !is_same(master, host)
    };
    let hosts = placement.hosts.value.as_deref();
    master
        .zip(hosts)
        .is_some_and(|(master, hosts)| hosts.iter().all(|host| is_other(&master, host)))
}

/// Why it matters that a node has several processes.
const ONE_OF_THE_NODE: &str = "this process seems to be one of several on its node, and mpienv gives each of them the same rank";

/// Returns the environment without the place of a process by itself, as `mpienv export` writes it.
pub(super) fn without_place(environment: &Environment) -> Environment {
    let names = [RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "MASTER_ADDR", "MASTER_PORT"];
    let of_first = [NODE_RANK, "JOB_COMPLETION_INDEX", PMIX_RANK].into_iter();
    let of_first = of_first.filter(|name| environment.text(name) == Some("0"));
    environment.with(names.into_iter().chain(of_first).map(|name| (name, None)))
}

/// Returns whether this process is the first of several on its node by any launcher's variables.
/// Those of the one that is selected may be left from another job.
pub(crate) fn is_first_by_any(environment: &Environment) -> bool {
    let places = markers(environment).filter_map(|marker| marker.placement().ok());
    let mut several =
        places.filter(|place| place.size.value > 1 && value_of(&place.local_size) != Some(1));
    several.any(|place| value_of(&place.local_rank).unwrap_or(place.rank.value) == 0)
}

/// A launcher that may have started this process, and the place that its variables give, if they
/// can be read.
pub(super) type Other<'a> = (Marker<'a>, Option<Placement>);

/// Returns the launchers other than the selected one.
pub(super) fn others<'a>(place: &Place<'a>) -> Vec<Other<'a>> {
    // Several markers may be of the same launcher.
    let mut known = HashSet::from([place.placement.launcher(), Launcher::Alone]);
    let rest = place.choice.rest.iter().filter(|marker| known.insert(marker.launcher));
    let read = |&marker: &Marker<'a>| (marker, marker.of(&place.environment).placement().ok());
    let mut others: Vec<Other<'_>> = rest.map(read).collect();
    if overrides::is_asked(&place.choice.source) {
        return others;
    }
    // A rank may have started a job of its own by mistake, whose launcher has replaced its variables.
    let launcher = place.placement.launcher();
    let is_replaced = |around: &Placement| match around.launcher() {
        Launcher::User => launcher == Launcher::Torchrun,
        other => launcher == other,
    };
    let around = match (&place.outer, &place.own) {
        (Some(outer), _) => outer.around(place.whole).filter(|around| {
            is_one_of(&place.placement, around) || is_on_one_of(&place.placement, around)
        }),
        // A process that mpienv has started has been compared before.
        (None, Some(_)) => None,
        (None, None) => {
            let is_near =
                value_of(&place.placement.node_count) == Some(1) || is_first(&place.placement);
            let around = is_near.then(|| parents::around(&place.environment, launcher));
            around.flatten().filter(|own| is_replaced(own) || known.insert(own.launcher()))
        }
    };
    let marker_of = |launcher| Marker { environment: place.whole, launcher, variable: CONTEXT };
    others.extend(around.map(|around| (marker_of(around.launcher()), Some(around))));
    others
}

fn says(launcher: Launcher) -> String {
    match launcher {
        Launcher::User => format!("{} say", launcher.title()),
        Launcher::Alone => format!("{}={launcher} says", overrides::LAUNCHER),
        _ => format!("{} says", launcher.title()),
    }
}

/// Reports other launchers whose complete variables contradict the selected one.
pub(super) fn disagreements(place: &Place<'_>, others: &[Other<'_>]) -> Vec<Finding> {
    let Place { whole, environment, placement, choice, .. } = place;
    // Incomplete variables do not indicate another launcher.
    let placements = others.iter().filter_map(|(_, read)| read.as_ref());
    let differing =
        placements.filter(|other| differ(placement, other) && !is_around(other, placement));
    let is_asked = choice.source == overrides::LAUNCHER;
    let known = |other: &Placement| match choice.starter {
        _ if is_asked => (!passes_on(whole, other.launcher())).then(|| {
            format!("{}={} is set for this process", overrides::LAUNCHER, placement.launcher())
        }),
        _ if is_of_daemon(environment, placement, other) => {
            Some("Slurm's variables belong to Open MPI's daemon on this node".to_owned())
        }
        // What started one process may itself be one of several: `srun -n 4 mpirun -n 1 PROGRAM`.
        _ if is_one_of(placement, other) => None,
        Some(starter) if !other.launcher().spec().starters.is_empty() => {
            let title = placement.launcher().title();
            Some(match placement.launcher().spec().starters {
                [] => format!("the variables of {title} were set below {starter}"),
                _ => format!(
                    "{starter} started this process, so the other variables are left from an outer or earlier job"
                ),
            })
        }
        _ => None,
    };
    differing
        .map(|other| disagreement(environment, placement, other, known(other), is_asked))
        .collect()
}

/// Returns whether a launcher has given its ranks the request to be alone, which a user has probably
/// set for another process. A rank's script may set it on purpose.
fn passes_on(environment: &Environment, launcher: Launcher) -> bool {
    let Some(Starter { program, process, child }) = Starter::of(launcher, environment) else {
        return false;
    };
    let has = |process: &Process| process.environment().is_set(overrides::LAUNCHER);
    // `mpirun -x MPIENV_LAUNCHER=alone`, `mpiexec -genv MPIENV_LAUNCHER alone`.
    let names_it = |words: &[String]| {
        let [option, variable] = words else { return false };
        let name = variable.split('=').next();
        ["-x", "-genv", "-env"].contains(&option.as_str()) && name == Some(overrides::LAUNCHER)
    };
    let asks = |process: &Process| process.words().windows(2).any(names_it);
    // A script that set it may have become this process, but a daemon has not the variables that it
    // gives to its ranks.
    let is_given = || has(&child) && (child.id != std::process::id() || DAEMONS.contains(&program));
    // Hydra's proxy does not get mpiexec's words.
    let is_asked = || asks(&process) || process.parent().is_some_and(|parent| asks(&parent));
    has(&process) || is_asked() || is_given()
}

/// Returns whether Slurm's variables belong to Open MPI's daemon, which mpirun starts on each other
/// node with srun.
fn is_of_daemon(environment: &Environment, placement: &Placement, other: &Placement) -> bool {
    let is_below = matches!(placement.launcher(), Launcher::OpenMpi | Launcher::Torchrun);
    (is_below && other.launcher() == Launcher::Slurm)
        && value_of(&other.local_size) == Some(1)
        && open_mpi::is_of_remote_daemon(environment)
}

/// Returns whether a rank of another launcher, other than its first, has started a job of its own:
/// of one process, on one node, or with this rank as the first. Other ranks of several nodes may be
/// below a daemon that is itself a task. Rank 0 may be a shell, as of `srun -n 4 --pty bash`. Numbers
/// by hand may be left, and pods may each have a launcher.
fn is_one_of(one: &Placement, other: &Placement) -> bool {
    let is_around = || {
        one.launcher() == Launcher::Torchrun
            || !other.launcher().spec().starters.is_empty()
            || one.launcher() != Launcher::User && *other.rank.source == *AROUND
    };
    let is_started = || (value_of(&one.node_count) == Some(1) || is_first(one)) && is_around();
    other.rank.value > 0 && (one.size.value == 1 || is_started())
}

/// Returns whether this is the first rank of a launcher whose rank 0 is where the launcher is.
fn is_first(placement: &Placement) -> bool {
    placement.rank.value == 0 && !placement.launcher().spec().starters.is_empty()
}

/// Returns whether one launcher has a node to itself, and the other one several nodes.
fn is_on_one_of(one: &Placement, other: &Placement) -> bool {
    value_of(&one.node_count) == Some(1)
        && value_of(&other.node_count).is_some_and(|count| count > 1)
}

/// Returns whether two launchers place this process differently, comparing only values that both
/// provide.
fn differ(one: &Placement, other: &Placement) -> bool {
    let both = |one: &Known<u32>, other: &Known<u32>| {
        value_of(one).zip(value_of(other)).is_some_and(|(one, other)| one != other)
    };
    one.world() != other.world()
        || both(&one.local_rank, &other.local_rank)
        || both(&one.local_size, &other.local_size)
}

/// Returns whether another launcher started one process on each node, and that process started this
/// node's ranks.
///
/// If the inner launcher does not number the nodes, they have equal blocks of ranks.
fn is_around(outer: &Placement, placement: &Placement) -> bool {
    let (nodes, size) = (outer.size.value, placement.size.value);
    let (node, per_node) = (value_of(&placement.node_rank), size / nodes);
    let in_block =
        || size > nodes && size % nodes == 0 && placement.rank.value / per_node == outer.rank.value;
    let is_inside = match value_of(&placement.node_count) {
        // torchrun numbers the nodes itself, and Open MPI 4 does not number them.
        Some(count) => {
            let is_numbered_anew = placement.launcher() == Launcher::Torchrun;
            let may_be = outer.rank.value == 0 || !is_first(placement);
            count == nodes
                && (is_numbered_anew || node.map_or(may_be, |node| node == outer.rank.value))
        }
        None => node.map_or_else(in_block, |node| node == outer.rank.value),
    };
    value_of(&outer.local_size) == Some(1) && is_inside
}

/// Returns a note if it is known to whom the other variables belong, and otherwise a warning.
fn disagreement(
    environment: &Environment,
    placement: &Placement,
    other: &Placement,
    known: Option<String>,
    is_asked: bool,
) -> Finding {
    let is_local = placement.world() == other.world();
    let shown = |known: &Known<u32>| value_of(known).map_or("?".into(), |n| n.to_string());
    let place = |p: &Placement| {
        let (what, rank, size) = match is_local {
            true => ("local rank", p.local_rank.clone(), p.local_size.clone()),
            false => ("rank", Some(p.rank.clone()), Some(p.size.clone())),
        };
        let said = format!("{} {what} {} of {}", says(p.launcher()), shown(&rank), shown(&size));
        match p.launcher() {
            Launcher::Alone => said,
            _ if source_of(&rank) == source_of(&size) => format!("{said} ({})", source_of(&rank)),
            _ => format!("{said} ({}, {})", source_of(&rank), source_of(&size)),
        }
    };
    // An elastic torchrun may have lost the other nodes.
    let is_elastic =
        || placement.launcher() == Launcher::Torchrun && parents::is_elastic(environment);
    let is_several = known.is_none() && !is_asked && is_one_of(placement, other) && !is_elastic();
    // Only a process that the other one has started has replaced its variables.
    let is_same = placement.launcher() == other.launcher();
    let nodes = [placement, other].map(|place| value_of(&place.node_count));
    let is_torchrun =
        placement.launcher() == Launcher::Torchrun && matches!(nodes, [Some(1), Some(2..) | None]);
    let is_left = match is_torchrun {
        _ if is_asked || is_several && placement.size.value == 1 => ONE_OF_SEVERAL,
        _ if is_several || is_same => OWN_JOBS,
        true => "if torchrun runs on each node without the others' number, each node trains alone",
        false => {
            "either the variables of one of them are left from an outer or earlier job, or each \
             process of one of them has started a job of the other"
        }
    };
    Finding::new(
        if known.is_some() { Severity::Note } else { Severity::Warning },
        DISAGREE,
        format!("{}; {}", place(placement), place(other)),
        format!(
            "{}; mpienv uses {}",
            known.as_deref().unwrap_or(is_left),
            placement.launcher().title()
        ),
        match is_asked {
            true => format!(
                "unset {}; for one process by itself, unset the variables of {} too",
                overrides::LAUNCHER,
                other.launcher().title()
            ),
            false if is_torchrun => format!(
                "give it the other nodes, as in `torchrun --nnodes N --node-rank R`; for a job of its own on each node, set {}={}",
                overrides::LAUNCHER,
                placement.launcher()
            ),
            false if is_several || is_same => format!(
                "leave out one of the launchers; for a job of its own in each process, set {}={}",
                overrides::LAUNCHER,
                placement.launcher()
            ),
            false => format!(
                "unset the variables of the launcher that did not start this process, or leave out one of the launchers, or set {} to {} or {}",
                overrides::LAUNCHER,
                placement.launcher(),
                other.launcher()
            ),
        },
    )
    .of_several(is_several || is_asked && placement.size.value == 1)
}
