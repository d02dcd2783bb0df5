//! Google Cloud's Batch: the tasks of a job with a file of hosts (`requireHostsFile`).
//!
//! The tasks of a job without that file cannot find each other: they are independent, as those of a
//! job array are. Several tasks may share a machine (`taskCountPerNode`). The file does not say
//! which task is on which host. Based on documentation.

use crate::finding::Finding;
use crate::launcher::alone::BY_ITSELF;
use crate::launcher::named_file::NodeFile;
use crate::launcher::prelude::*;

variables! {
    /// The variables of a task.
    pub struct GoogleBatchVars {
        "[Batch: TaskGroup](https://cloud.google.com/batch/docs/reference/rest/v1/projects.locations.jobs#taskgroup)" {
            INDEX = "BATCH_TASK_INDEX" => index: u32, "the task's number";
            COUNT = "BATCH_TASK_COUNT" => count: u32, "tasks of the job";
            HOSTS = "BATCH_HOSTS_FILE" => hosts: Option<String>, "a file with the job's hosts; shows that the tasks belong together";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[GoogleBatchVars::VARIABLES],
    marker: |environment| {
        environment.first_set(&[INDEX, COUNT]).filter(|_| environment.is_set(HOSTS))
    },
    starts: Starts::Slots,
    start: "start the process in a task of a job with requireHostsFile",
    one_per_node: "`taskCountPerNode: 1`",
    give_master: "MASTER_ADDR=HOST, where HOST has task 0",
    // The tasks of a job array have the first two.
    outside: &[INDEX, COUNT],
    samples: &[Sample::of(|process, vars| {
        vars.set_all([INDEX, COUNT], [process.rank, process.size]);
        vars.set(HOSTS, "/etc/cloudbatch-taskgroup-hosts");
    })],
    ..LauncherSpec::plain(read)
};

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: GoogleBatchVars = marker.read()?;
    let (index, count) = (by(INDEX, vars.index), by(COUNT, vars.count));
    let hosts = NodeFile::read(marker.environment, HOSTS).map(|file| file.hosts as u64);
    match hosts == Some(vars.count.into()) {
        // As many hosts as tasks: each has one.
        true => marker.node(index, count),
        false => marker.place(index, count),
    }
}

/// Reports a task of a job array. Its tasks are usually independent, so this is only a note.
pub(crate) fn task_of_array(environment: &Environment) -> Option<Finding> {
    if environment.text(COUNT).is_some_and(|count| count.trim() == "1") {
        return None;
    }
    let present = environment.first_set(&[INDEX, COUNT])?;
    let present = environment.shown(present);
    Some(Finding::note(
        "place-unknown",
        format!("{present} is set, but {HOSTS} is not"),
        "without a file of hosts, the tasks of a Google Batch job are independent: mpienv treats this process as the only one",
        format!("if the tasks are one job, set requireHostsFile for them; or set {BY_ITSELF}"),
    ))
}
