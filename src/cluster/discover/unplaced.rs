//! No process is treated as alone in silence: what is seen if no launcher gives a rank and a size.

use crate::cluster::overrides;
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::finding::{Finding, Severity};
use crate::launcher::{LAUNCHERS, Launcher, display_variable};

/// An indexed job's pod number: only the job's template can give the number of pods.
const JOB_INDEX: &str = "JOB_COMPLETION_INDEX";

/// PMIx's rank, which `prterun` and `prun` set without a size.
const PMIX_RANK: &str = "PMIX_RANK";

/// PBS's number of a process that it has started, hexadecimal; the job's script is the first.
const PBS_TASK: &str = "PBS_TASKNUM";
const PBS_JOB: &str = "PBS_JOBID";

const FLUX_ENCLOSING: &str = "FLUX_ENCLOSING_ID";

/// The error of a process that is one of several and does not know which.
pub(super) fn refuse(environment: &Environment) -> Result<(), Error> {
    let by_itself = format!("{}=alone for a process by itself", overrides::LAUNCHER);
    if environment.is_set(JOB_INDEX) {
        let remedy = format!(
            "set WORLD_SIZE to the number of pods and MASTER_ADDR to JOB-0.SERVICE in the template of the job's pods, or \
             {by_itself}"
        );
        let beside = display_variable(environment, JOB_INDEX);
        return Err(Error::new(Reason::Missing { beside }, remedy).by(Launcher::Kubernetes).of("WORLD_SIZE"));
    }
    if environment.is_set(PMIX_RANK) {
        let remedy = format!(
            "start the process with mpirun, or with `prterun --personality ompi`, which tell the size; or set RANK, \
             WORLD_SIZE and MASTER_ADDR, or {by_itself}"
        );
        let reason = "a launcher with PMIx has set it, and no variable tells how many processes there are";
        return Err(of(environment, PMIX_RANK, reason, remedy));
    }
    let is_script = |number: &str| number.trim_start_matches('0') == "1";
    let is_task = matches!(environment.get_str(PBS_TASK), Ok(Some(number)) if !is_script(number));
    if environment.is_set(PBS_JOB) && is_task {
        let remedy = format!(
            "start the processes with mpiexec; or let pbsdsh set RANK, WORLD_SIZE and MASTER_ADDR for them, or {by_itself}"
        );
        let reason = "pbsdsh has started this process, and no variable tells how many processes there are";
        return Err(of(environment, PBS_TASK, reason, remedy));
    }
    Ok(())
}

fn of(environment: &Environment, variable: &'static str, reason: &str, remedy: String) -> Error {
    let value = environment.get(variable).map(|value| value.to_string_lossy().into_owned());
    Error::new(Reason::Malformed(reason.to_owned()), remedy).of(variable).found(value.unwrap_or_default())
}

/// What hints at a job in which this process does not know its place.
pub(super) fn finding(environment: &Environment) -> Option<Finding> {
    flux_script(environment).or_else(|| pbs_script(environment)).or_else(|| unexplained(environment))
}

fn flux_script(environment: &Environment) -> Option<Finding> {
    if !environment.is_set(FLUX_ENCLOSING) || environment.is_set("FLUX_JOB_ID") {
        return None;
    }
    Some(Finding {
        severity: Severity::Warning,
        code: "flux-not-a-task",
        what: format!("{} is set, and this is no task of a job", display_variable(environment, FLUX_ENCLOSING)),
        why:
            "a batch script of Flux runs once, whatever number of tasks it asks for: this process is taken to be alone"
                .into(),
        remedy: "start the program with `flux run`, which starts every task".into(),
    })
}

fn pbs_script(environment: &Environment) -> Option<Finding> {
    if !environment.is_set(PBS_JOB) {
        return None;
    }
    Some(Finding {
        severity: Severity::Note,
        code: "pbs-not-a-task",
        what: format!("{} is set, and no launcher's variables are", display_variable(environment, PBS_JOB)),
        why: "a job's script runs once, on the first of its hosts: this process is taken to be alone".into(),
        remedy: "for a job of several processes start the program with mpiexec".into(),
    })
}

/// A part of what a launcher sets, without what shows it.
fn unexplained(environment: &Environment) -> Option<Finding> {
    let names = LAUNCHERS.iter().flat_map(|spec| {
        let is_outside = |name: &str| spec.nested.outside.contains(&name);
        let read = spec.variables().map(|variable| variable.name).filter(move |name| !is_outside(name));
        read.map(move |name| (spec, name))
    });
    let (spec, name) = names.into_iter().find(|(_, name)| environment.is_set(name))?;
    // People set LOCAL_RANK=0 for a program that insists on it.
    let by_hand = spec.name == Launcher::User.name() && matches!(environment.get_str(name), Ok(Some("0" | "1")));
    Some(Finding {
        severity: if by_hand { Severity::Note } else { Severity::Warning },
        code: "place-unknown",
        what: format!("{} is set, without what else {} sets", display_variable(environment, name), spec.title),
        why: "this process is taken to be alone; in a job of several processes each would be rank 0".into(),
        remedy: format!(
            "{}; for a process by itself unset {name}, or set {}=alone",
            spec.advice.start,
            overrides::LAUNCHER
        ),
    })
}
