//! PBS: its batch scripts and the tasks of `pbsdsh`. PBS itself does not give a process its place; `mpiexec` does.
//!
//! `PBS_NODENUM` is the node's number, which is the same for all tasks on a node. `PBS_TASKNUM` is not a rank. No
//! variable contains a size. Recorded from OpenPBS 23.06.06.

use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::finding::{Finding, Severity};
use crate::launcher::{display_variable, first_set};

const JOB: &str = "PBS_JOBID";

/// The hexadecimal number of a process that PBS started. The job's script is the first process.
const TASK: &str = "PBS_TASKNUM";

/// Rejects a task of `pbsdsh`, which is one of several and cannot know which.
pub(crate) fn refuse_task(environment: &Environment, by_itself: &str) -> Result<(), Error> {
    let is_script = |number: &str| number.trim_start_matches('0') == "1";
    let Ok(Some(number)) = environment.get_str(TASK) else { return Ok(()) };
    if !environment.is_set(JOB) || is_script(number) {
        return Ok(());
    }
    let remedy = format!(
        "start the processes with mpiexec; or let pbsdsh set RANK, WORLD_SIZE and MASTER_ADDR for them, or {by_itself}"
    );
    let reason = "pbsdsh has started this process, and no variable tells how many processes there are";
    Err(Error::new(Reason::Malformed(reason.to_owned()), remedy).of(TASK).found(number))
}

/// Reports a job's script.
pub(crate) fn script(environment: &Environment) -> Option<Finding> {
    let job = first_set(environment, &[JOB])?;
    Some(Finding {
        severity: Severity::Note,
        code: "pbs-not-a-task",
        what: format!("{} is set, and no launcher's variables are", display_variable(environment, job)),
        why: "a job's script runs once, on the first of its hosts: this process is treated as a single process".into(),
        remedy: "for a job of several processes start the program with mpiexec".into(),
    })
}
