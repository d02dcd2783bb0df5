//! PBS: its batch scripts and the tasks of `pbsdsh`. PBS itself does not give a process its place; `mpiexec` does.
//!
//! `PBS_NODENUM` is the node's number, which is the same for all tasks on a node. `PBS_TASKNUM` is not a rank. Only
//! Torque has variables that contain a size. OpenPBS (recorded from 23.06.06) lists the processes in a file.

use std::fs::{self, File};
use std::io::Read;

use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::launcher::batch::{Size, largest};
use crate::launcher::display_variable;

pub(super) const JOB: &str = "PBS_JOBID";

/// The file with one line for each process. It exists on the script's host only.
const NODE_FILE: &str = "PBS_NODEFILE";

/// How much of that file is read: enough to see that there are several lines.
const MOST: u64 = 1 << 20;

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

/// Returns how many processes the job requests: as the file of nodes or Torque's variables say.
pub(super) fn size(environment: &Environment) -> Option<Size> {
    lines(environment).or_else(|| largest(environment, &["PBS_NP", "PBS_NUM_NODES", "PBS_NUM_PPN"]))
}

/// Counts the lines of the file of nodes. It belongs to the host on which this process runs, so the environment must
/// be this process's.
fn lines(environment: &Environment) -> Option<Size> {
    let path = environment.get(NODE_FILE).filter(|_| environment.is_current())?;
    // Opening a named pipe would block until it has a writer.
    fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let mut text = String::new();
    File::open(path).ok()?.take(MOST).read_to_string(&mut text).ok()?;
    let processes = text.lines().filter(|line| !line.trim().is_empty()).count() as u64;
    let noun = if processes == 1 { "line" } else { "lines" };
    let text = format!("{} with {processes} {noun}", display_variable(environment, NODE_FILE));
    (processes > 0).then_some(Size { processes, text })
}
