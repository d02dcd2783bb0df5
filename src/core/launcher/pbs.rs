//! PBS: its batch scripts and the tasks of `pbsdsh`. PBS itself does not give a process its place;
//! `mpiexec` does.
//!
//! `PBS_NODENUM` is the node's number, which is the same for all tasks on a node. `PBS_TASKNUM` is
//! not a rank. Only Torque has variables that contain a size. OpenPBS (recorded from 23.06.06)
//! lists the processes in a file.

use crate::environment::Environment;
use crate::error::Error;
use crate::launcher::alone::BY_ITSELF;
use crate::launcher::batch::{Size, counted};
use crate::launcher::named_file::NodeFile;

pub(super) const JOB: &str = "PBS_JOBID";

/// The file with one line for each process, or for each of Torque's cores. It exists on the
/// script's host only.
const NODE_FILE: &str = "PBS_NODEFILE";

/// Torque's number of cores on each node. OpenPBS does not set it.
const PER_NODE: &str = "PBS_NUM_PPN";

/// The hexadecimal number of a process that PBS started. The job's script is the first process.
pub(crate) const TASK: &str = "PBS_TASKNUM";

/// Returns the error for a task of `pbsdsh`, which is one of several and cannot know which.
pub(crate) fn refuse_task(environment: &Environment) -> Option<Error> {
    let is_script = |number: &str| number.trim_start_matches('0') == "1";
    let is_task = |number: &&str| environment.is_set(JOB) && !is_script(number);
    let number = environment.text(TASK).filter(is_task)?;
    let remedy = format!(
        "start the processes with mpiexec; or let pbsdsh set RANK, WORLD_SIZE and MASTER_ADDR for them, or {BY_ITSELF}"
    );
    let reason =
        "pbsdsh has started this process, and no variable tells how many processes there are";
    Some(Error::new(reason, remedy).of(TASK).found(number))
}

/// Returns what the file of nodes or Torque's variables say about the job's size.
pub(super) fn size(environment: &Environment) -> Option<Size> {
    let file = NodeFile::read(environment, NODE_FILE);
    let of_file = file.as_ref().and_then(|file| of_file(environment, file));
    let unread =
        || environment.get(NODE_FILE).filter(|_| file.is_none()).map(|_| unread(environment));
    of_file.or_else(|| torque(environment)).or_else(unread)
}

/// Returns the size that the file of nodes shows.
fn of_file(environment: &Environment, file: &NodeFile) -> Option<Size> {
    // OpenPBS has a line for each process that was asked for (`mpiprocs`), Torque one for each
    // core.
    let is_several = file.hosts > 1 || file.lines > 1 && !environment.is_set(PER_NODE);
    let text = file.shown(environment, NODE_FILE);
    (file.lines > 0).then_some(Size { is_several, hosts: Some(file.hosts as u64), text })
}

/// Returns what Torque's variables say. All of a job's slots are on one node if no more are on each
/// node.
fn torque(environment: &Environment) -> Option<Size> {
    let nodes = counted(environment, "PBS_NUM_NODES", Size::of_hosts);
    let per_node = environment.digits(PER_NODE);
    if nodes.as_ref().is_some_and(|nodes| nodes.is_several) {
        return nodes;
    }
    let slots = environment.digits::<u64>("PBS_NP");
    let fits = slots.is_some_and(|slots| slots <= per_node.unwrap_or(1));
    let size = if fits { |_, text| Size::of_hosts(1, text) } else { Size::of_slots };
    counted(environment, "PBS_NP", size).or(nodes)
}

/// The size of a job whose file of nodes is not there, as in a container: it may have several
/// processes. The file of another process's environment is not looked for.
fn unread(environment: &Environment) -> Size {
    let text = format!("{}, which cannot be read,", environment.shown(NODE_FILE));
    Size { is_several: environment.is_current(), hosts: None, text }
}
