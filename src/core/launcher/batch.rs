//! Batch systems, which run a job's script once and leave starting its processes to the script.
//!
//! They give a process no place: only mpirun and the like do. What they do tell is whether the job
//! has several processes.
//! [LSF](https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=variables-environment-variable-reference),
//! [Grid Engine](http://gridscheduler.sourceforge.net/htmlman/htmlman1/qsub.html) and
//! [Cobalt](https://www.alcf.anl.gov/user-guides/running-jobs-xc40) document their variables there;
//! [`pbs`] has PBS's, [`azure`] those of Azure Batch. [Kubeflow's MPI
//! operator](https://github.com/kubeflow/mpi-operator/blob/master/pkg/controller/mpi_job_controller.go)
//! has its variable in its source; those of blaunch and of Fujitsu's job manager are in users'
//! scripts. [OAR](https://oar.imag.fr/docs/latest/user/usage.html) lists the hosts in a file.

use crate::cluster::azure;
use crate::environment::Environment;
use crate::finding::{Finding, Severity};
use crate::launcher::alone::BY_ITSELF;
use crate::launcher::named_file::NodeFile;
use crate::launcher::pbs;

/// A batch system.
struct System {
    title: &'static str,
    code: &'static str,
    /// What it runs, and how often.
    runs: &'static str,
    /// Variables that only a job of this system has.
    jobs: &'static [&'static str],
    /// Returns what shows how large the job is.
    size: fn(&Environment) -> Option<Size>,
    start: &'static str,
}

/// Returns the variables that only a job of some system has.
pub(crate) fn jobs() -> impl Iterator<Item = &'static str> {
    SYSTEMS.iter().flat_map(|system| system.jobs).copied()
}

/// What a job asked for, and where that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// Whether the job probably has several processes. On one host, slots may be the cores of a
    /// multithreaded program just as well as processes, and are no sign of several.
    pub is_several: bool,
    /// `None` if nothing shows it.
    pub hosts: Option<u64>,
    /// The end of a sentence that begins with the job's variable.
    pub text: String,
}

impl Size {
    /// The size of a job of which only the number of hosts is known.
    pub(super) fn of_hosts(hosts: u64, text: String) -> Size {
        Size { is_several: hosts > 1, hosts: Some(hosts), text }
    }

    /// The size of a job of which only the number of slots is known: they may be on several hosts.
    pub(super) fn of_slots(slots: u64, text: String) -> Size {
        Size { is_several: slots > 1, hosts: (slots == 1).then_some(1), text }
    }
}

static SYSTEMS: &[System] = &[
    System {
        title: "PBS",
        code: "pbs-not-a-task",
        runs: SCRIPT,
        jobs: &[pbs::JOB],
        size: pbs::size,
        start: "start the program with mpirun or mpiexec, which start every process",
    },
    System {
        title: "LSF's blaunch",
        code: "lsf-not-a-task",
        runs: "a command once on each host that it is given, and sets no number of tasks",
        jobs: &[LSF_TASK],
        size: |environment| {
            let size = pairs(environment, LSF_HOSTS)?;
            let is_second = environment.digits::<u64>(LSF_TASK) > Some(1);
            Some(Size { is_several: size.is_several || is_second, ..size })
        },
        start: "start the program with jsrun or mpirun, which start every process",
    },
    System {
        title: "LSF",
        code: "lsf-not-a-task",
        runs: SCRIPT,
        jobs: &["LSB_JOBID"],
        size: |environment| {
            pairs(environment, LSF_HOSTS)
                .or_else(|| counted(environment, "LSB_DJOB_NUMPROC", Size::of_slots))
        },
        start: "start the program with jsrun or mpirun, which start every process",
    },
    System {
        title: "Kubeflow's MPI operator",
        code: "mpijob-not-a-task",
        runs: "the launcher's command once, and no other program than sshd in a worker",
        jobs: &["K_MPI_JOB_ROLE"],
        size: |_| None,
        start: "start the program with mpirun in the launcher's pod, which starts every process",
    },
    System {
        title: "Fujitsu's job manager",
        code: "pjm-not-a-task",
        runs: SCRIPT,
        jobs: &["PJM_JOBID"],
        size: |environment| {
            let of_hosts = counted(environment, "PJM_NODE", Size::of_hosts)?;
            let of_slots = counted(environment, "PJM_MPI_PROC", Size::of_slots);
            Some(match of_slots.filter(|size| size.is_several) {
                Some(several) => Size { hosts: of_hosts.hosts, ..several },
                None => of_hosts,
            })
        },
        start: "start the program with mpiexec, which starts every process",
    },
    System {
        title: "Grid Engine",
        code: "grid-engine-not-a-task",
        runs: SCRIPT,
        // Users and other programs have a variable JOB_ID too.
        jobs: &["PE_HOSTFILE", "SGE_O_HOST"],
        size: |environment| {
            let of_hosts = counted(environment, SGE_HOSTS, Size::of_hosts);
            of_hosts.or_else(|| counted(environment, SGE_SLOTS, Size::of_slots))
        },
        start: "start the program with mpirun, which starts every process",
    },
    System {
        title: "Cobalt",
        code: "cobalt-not-a-task",
        runs: SCRIPT,
        jobs: &["COBALT_JOBID"],
        size: |environment| counted(environment, "COBALT_JOBSIZE", Size::of_hosts),
        start: "start the program with aprun or mpirun, which start every process",
    },
    System {
        title: "OAR",
        code: "oar-not-a-task",
        runs: SCRIPT,
        jobs: &["OAR_JOB_ID", "OAR_JOBID", OAR_FILE],
        size: |environment| {
            let file = NodeFile::read(environment, OAR_FILE).filter(|file| file.hosts > 0)?;
            // The file has a line for each core.
            Some(Size::of_hosts(file.hosts as u64, file.shown(environment, OAR_FILE)))
        },
        start: "start the program with mpirun -machinefile $OAR_NODEFILE, which starts every process",
    },
    System {
        title: "Azure Batch",
        code: "azure-batch-not-a-task",
        runs: "a multi-instance task's command once, on the first of its hosts, however many processes the task \
               requests",
        jobs: &azure::OF_TASKS,
        size: |environment| {
            let (name, hosts) = azure::listed(environment)?;
            Some(Size::of_hosts(hosts, environment.shown(name)))
        },
        start: "start the program with mpirun in the task's command, which starts every process",
    },
];

/// How many hosts, and how many slots, Grid Engine has given a job.
pub(crate) const SGE_HOSTS: &str = "NHOSTS";
pub(crate) const SGE_SLOTS: &str = "NSLOTS";

/// LSF's hosts, each with its slots, and blaunch's number of a task, from 1.
const LSF_HOSTS: &str = "LSB_MCPU_HOSTS";
const LSF_TASK: &str = "LSF_PM_TASKID";

/// OAR's file of hosts.
const OAR_FILE: &str = "OAR_NODEFILE";

/// What most systems run.
const SCRIPT: &str =
    "a job's script once, on the first of its hosts, however many processes the job requests";

/// Reports a batch script, which runs once, however many processes the job has.
pub(crate) fn script(environment: &Environment) -> Option<Finding> {
    let (system, job) = of_job(environment)?;
    let System { title, code, runs, start, .. } = *system;
    let size = (system.size)(environment);
    let several = size.as_ref().is_none_or(|size| size.is_several);
    let shown = environment.shown(job);
    let size = size.filter(|size| size.text != shown);
    let size = size.map_or(String::new(), |size| format!(" and {}", size.text));
    let verb = if size.is_empty() { "is" } else { "are" };
    Some(Finding::new(
        // A script of one process is as good as a task.
        if several { Severity::Warning } else { Severity::Note },
        code,
        format!("{shown}{size} {verb} set, and no launcher's variables are"),
        format!("{title} runs {runs}: mpienv treats this process as the only one"),
        format!("for a job of several processes, {start}; or set {BY_ITSELF}"),
    ))
}

/// Returns whether this is a job on one host. False if nothing shows it.
pub(crate) fn is_on_one_host(environment: &Environment) -> bool {
    let size = of_job(environment).and_then(|(system, _)| (system.size)(environment));
    size.is_some_and(|size| size.hosts == Some(1))
}

/// Returns the system whose job this process is in, and the variable that shows it.
fn of_job(environment: &Environment) -> Option<(&'static System, &'static str)> {
    SYSTEMS.iter().find_map(|system| Some((system, environment.first_set(system.jobs)?)))
}

/// Returns the size that the number in a variable shows.
pub(super) fn counted(
    environment: &Environment,
    name: &str,
    size: fn(u64, String) -> Size,
) -> Option<Size> {
    Some(size(environment.digits(name)?, environment.shown(name)))
}

/// Returns the size that a list of hosts and slots shows, such as `node1 42 node2 42`.
fn pairs(environment: &Environment, name: &str) -> Option<Size> {
    let list = environment.text(name)?;
    let hosts = list.split_ascii_whitespace().step_by(2).count() as u64;
    Some(Size::of_hosts(hosts, environment.shown(name)))
}
