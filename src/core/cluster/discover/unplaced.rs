//! mpienv never treats a process as alone silently: errors and findings if no launcher provides a
//! rank and a size.

use std::fs;

use super::{foreign, parents};
use crate::cluster::answer::PMIX_RANK;
use crate::cluster::{azure, overrides};
use crate::environment::Environment;
use crate::error::Error;
use crate::finding::{Finding, Severity};
use crate::launcher::alone::BY_ITSELF;
use crate::launcher::placement::Placement;
use crate::launcher::user::{COUNT, LOCAL_RANK, NODES};
use crate::launcher::{
    Launcher, MASTER, Marker, Starts, batch, flux, google_batch, jax, kubernetes, oneccl, pbs,
    slurm, user,
};
use crate::value::host::{Host, first_label};
use crate::value::sourced::value_of;

/// How the codes of findings end about a script that runs once, however many processes its job has.
const NOT_A_TASK: &str = "-not-a-task";

/// Returns whether a finding of this code is about a process that is probably one of several, and
/// does not know its place.
pub(crate) fn is_unplaced(code: &str) -> bool {
    is_script(code) || ["place-unknown", "variables-lost"].contains(&code)
}

/// Returns whether a finding of this code is about a script that runs once.
pub(super) fn is_script(code: &str) -> bool {
    code.ends_with(NOT_A_TASK)
}

/// Returns the error for a process that is one of several and does not know which.
pub(super) fn refuse(environment: &Environment) -> Option<Error> {
    let signs: [fn(&Environment) -> Option<Error>; 6] = [
        refuse_pod,
        refuse_rank_of_pmix,
        azure::refuse_subtask,
        oneccl::refuse,
        pbs::refuse_task,
        slurm::refuse_task,
    ];
    // A script that starts the nodes' processes itself may have a variable for their number.
    let is_script = || script(environment).as_ref().is_some_and(is_warning);
    let node = || user::refuse_node(environment).filter(|_| !is_script());
    signs.iter().find_map(|refuse| refuse(environment)).or_else(node)
}

/// Returns the error for a pod of an indexed job that does not know the number of pods.
fn refuse_pod(environment: &Environment) -> Option<Error> {
    let index = environment.first_set(&[kubernetes::INDEX])?;
    let remedy = format!(
        "set NNODES to the number of pods and MASTER_ADDR to JOB-0.SERVICE in the template of the job's pods, with \
         a headless Service and `subdomain: SERVICE`; or {BY_ITSELF}"
    );
    let marker = Marker { environment, launcher: Launcher::Kubernetes, variable: index };
    Some(marker.missing_with(COUNT, remedy))
}

/// Returns the error for a process of PMIx that does not know the number of processes.
fn refuse_rank_of_pmix(environment: &Environment) -> Option<Error> {
    let rank = environment.get(PMIX_RANK).filter(|_| environment.is_set(PMIX_RANK))?;
    let remedy = format!(
        "ask the launcher's PMIx server, or start the process with mpirun or `prterun --personality ompi`, which set the \
         size; or set RANK, WORLD_SIZE and MASTER_ADDR, or {BY_ITSELF}"
    );
    let reason = "a launcher with PMIx has set it, and no variable holds the number of processes";
    let error = Error::new(reason, remedy);
    Some(error.of(PMIX_RANK).found(rank.to_string_lossy()))
}

/// Returns the error for a process other than the node's first, if a platform gives the place of
/// the node: two processes would have one rank.
pub(super) fn refuse_worker(environment: &Environment, placement: &Placement) -> Option<Error> {
    let launcher = placement.launcher();
    let number = environment.digits::<u32>(LOCAL_RANK).filter(|&number| number > 0)?;
    let is_node = value_of(&placement.local_size) == Some(1);
    if launcher.spec().starts != Starts::OnePerNode || !is_node {
        return None;
    }
    let reason =
        "the other variables give the place of the node, and this process is not the node's first";
    let remedy = format!(
        "set RANK and WORLD_SIZE, or NODE_RANK, NUM_NODES and LOCAL_WORLD_SIZE, for each process; or unset {LOCAL_RANK} if it \
         is left from another job"
    );
    Some(Error::new(reason, remedy).by(launcher).of(LOCAL_RANK).found(number))
}

/// Reports signs of a job in which this process does not know its place. A process that mpienv has
/// started has been compared with its parents before.
pub(super) fn finding(environment: &Environment, is_known: bool) -> Option<Finding> {
    let sign = sign(environment);
    if is_known || sign.as_ref().is_some_and(is_warning) {
        return sign;
    }
    let parents = parents::finding(environment, Launcher::Alone);
    if parents.as_ref().is_some_and(is_warning) {
        return parents;
    }
    master_alone(environment).or(sign).or(parents)
}

/// Reports variables of a job in which this process does not know its place. Without them, it would
/// be the only one. Incomplete variables of a launcher count if they are new.
pub(super) fn beside_one_rank(environment: &Environment, are_new: bool) -> Option<Finding> {
    if let Some(error) = refuse(environment) {
        let what = match error.variable() {
            // The rest of the place was set aside.
            Some(name) if environment.is_set(name) => {
                format!("{} is set", environment.shown(name))
            }
            Some(name) => format!("{name} is {}", error.reason()),
            None => error.reason().to_string(),
        };
        return Some(Finding::warning(
            "place-unknown",
            what,
            foreign::ONE_OF_SEVERAL,
            error.remedy(),
        ));
    }
    if are_new {
        return sign(environment).filter(is_warning);
    }
    let of_launchers = of_launchers(environment).map(|(sign, _)| sign);
    of_launchers.filter(is_warning).or_else(|| foreign::finding(environment))
}

pub(crate) fn is_warning(finding: &Finding) -> bool {
    finding.severity > Severity::Note
}

/// Returns the first warning, or else the first note: a note must not hide that other variables
/// show several processes.
fn sign(environment: &Environment) -> Option<Finding> {
    let (known, explained) = of_launchers(environment).unzip();
    let known = match known {
        Some(known) if is_warning(&known) => return Some(known),
        note => note,
    };
    let known = match unexplained(environment, explained.flatten()) {
        Some(found) if is_warning(&found) => return Some(found),
        note => known.or(note),
    };
    foreign::finding(environment).or(known)
}

/// Reports a script or a task that some launcher's variables explain, and that launcher if it is one
/// of mpienv's.
fn of_launchers(environment: &Environment) -> Option<(Finding, Option<Launcher>)> {
    if let Some(script) = script(environment) {
        let name = script.code.strip_suffix(NOT_A_TASK);
        let launcher = name.and_then(|name| name.parse().ok());
        return Some((script, launcher));
    }
    let of_array = google_batch::task_of_array(environment);
    let of_array = of_array.map(|task| (task, Some(Launcher::GoogleBatch)));
    of_array.or_else(|| Some((oneccl::only_local(environment)?, None)))
}

/// Reports a script that runs once, however many processes its job has.
pub(super) fn script(environment: &Environment) -> Option<Finding> {
    slurm::outside_of_steps(environment)
        .or_else(|| flux::outside_of_jobs(environment))
        .or_else(|| batch::script(environment))
}

/// Returns whether a finding about a script that runs once does not concern a process that starts
/// the job's workers: the script's own node is the job's only one.
pub(crate) fn is_of_one_node(finding: &Finding, environment: &Environment) -> bool {
    match finding.code {
        "slurm-not-a-task" => slurm::is_on_one_node(environment),
        code => is_script(code) && batch::is_on_one_host(environment),
    }
}

/// Reports launcher variables without the variable that identifies the launcher, except those of
/// the launcher that is `explained`.
fn unexplained(environment: &Environment, explained: Option<Launcher>) -> Option<Finding> {
    let all = Launcher::ALL
        .iter()
        .filter(|launcher| Some(**launcher) != explained)
        .flat_map(|&launcher| launcher.variables().map(move |variable| (launcher, variable.name)));
    // First, because few are set.
    let is_set = |(_, name): &(Launcher, &str)| environment.is_set(name);
    let names = all.filter(is_set);
    let names = names.filter(|(launcher, name)| !launcher.spec().outside.contains(name));
    // Variables that users and many programs set do not indicate a launcher, although some
    // launchers set them too.
    let (of_users, of_launchers): (Vec<_>, Vec<_>) =
        names.partition(|(launcher, _)| *launcher == Launcher::User);
    let is_shared = |name: &str| of_users.iter().any(|(_, own)| *own == name);
    let mut of_launchers = of_launchers.into_iter().filter(|(_, name)| !is_shared(name));
    // Users set LOCAL_RANK=0 for programs that require it. A node's number or the number of nodes
    // indicates a job.
    let is_by_hand = |name: &str| {
        let value = environment.text(name);
        matches!((name, value), ("LOCAL_RANK", Some("0")) | ("LOCAL_WORLD_SIZE", Some("1")))
    };
    let of_user = || of_users.iter().find(|(_, name)| !is_by_hand(name)).or(of_users.first());
    let (launcher, name) = of_launchers.next().or_else(|| of_user().copied())?;
    let severity = if is_by_hand(name) { Severity::Note } else { Severity::Warning };
    Some(incomplete(environment, launcher, name, severity))
}

/// Reports the name of another host as the master of a process without a place: the other variables
/// may be lost. Programs of one process name their own host. Which host has an address is not known
/// here. A number of nodes is 1 here, because others are errors.
fn master_alone(environment: &Environment) -> Option<Finding> {
    if environment.first_set(&[NODES, COUNT, kubernetes::NODES]).is_some() {
        return None;
    }
    let masters = [(Launcher::User, MASTER[0]), (Launcher::Jax, jax::COORDINATOR)];
    let (launcher, variable) = masters
        .into_iter()
        .find(|(_, name)| names_another_host(environment, name) == Some(true))?;
    Some(incomplete(environment, launcher, variable, Severity::Warning))
}

/// Returns whether a variable holds the name of another host. `None` if it holds no name.
fn names_another_host(environment: &Environment, variable: &str) -> Option<bool> {
    let (host, _) = Host::parse_with_port(environment.text(variable)?).ok()?;
    let name = host.address().is_none().then(|| host.to_string().to_ascii_lowercase())?;
    let of_system =
        environment.is_current().then(|| fs::read_to_string("/proc/sys/kernel/hostname"));
    let own = [of_system.and_then(Result::ok), environment.text("HOSTNAME").map(str::to_owned)];
    let is_own = |own: &String| first_label(own.trim()).eq_ignore_ascii_case(first_label(&name));
    Some(!name.contains("localhost") && !own.iter().flatten().any(is_own))
}

/// Reports a variable of a launcher without those that identify it.
fn incomplete(
    environment: &Environment,
    launcher: Launcher,
    name: &str,
    severity: Severity,
) -> Finding {
    let is_missing = |name| launcher != Launcher::User && !environment.is_set(name);
    let missing = launcher.variables().find(|variable| is_missing(variable.name)).map_or_else(
        || format!("{} are", launcher.title()),
        |variable| format!("{} of {} is", variable.name, launcher.title()),
    );
    let shown = environment.shown(name);
    Finding::new(
        severity,
        "place-unknown",
        format!("{shown} is set, but {missing} not"),
        "mpienv treats this process as the only one; if the job has more, each of them becomes rank 0",
        format!(
            "{}; for a process by itself unset {name}, or set {}=alone",
            launcher.spec().start,
            overrides::LAUNCHER
        ),
    )
}
