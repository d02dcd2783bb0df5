//! Batch systems, which run a job's script once and leave starting its processes to the script.
//!
//! They give a process no place: only mpirun and the like do. What they do tell is whether the job has several
//! processes. [LSF](https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=variables-environment-variable-reference),
//! [Grid Engine](http://gridscheduler.sourceforge.net/htmlman/htmlman1/qsub.html) and
//! [Cobalt](https://www.alcf.anl.gov/user-guides/running-jobs-xc40) document their variables there; [`pbs`] has PBS's.

use crate::environment::Environment;
use crate::finding::{Finding, Severity};
use crate::launcher::{display_variable, first_set, pbs};

/// A batch system.
struct System {
    title: &'static str,
    code: &'static str,
    /// Variables that only a job of this system has.
    jobs: &'static [&'static str],
    /// Returns what shows how many processes the job has.
    size: fn(&Environment) -> Option<Size>,
    start: &'static str,
}

/// How many processes a job asked for, and where that was read.
pub(super) struct Size {
    pub processes: u64,
    /// The end of a sentence that begins with the job's variable.
    pub text: String,
}

static SYSTEMS: &[System] = &[
    System {
        title: "PBS",
        code: "pbs-not-a-task",
        jobs: &[pbs::JOB],
        size: pbs::size,
        start: "start the program with mpirun or mpiexec, which start every process",
    },
    System {
        title: "LSF",
        code: "lsf-not-a-task",
        jobs: &["LSB_JOBID"],
        size: |environment| {
            slots(environment, "LSB_MCPU_HOSTS").or_else(|| largest(environment, &["LSB_DJOB_NUMPROC"]))
        },
        start: "start the program with jsrun or mpirun, which start every process",
    },
    System {
        title: "Grid Engine",
        code: "grid-engine-not-a-task",
        // Users and other programs have a variable JOB_ID too.
        jobs: &["PE_HOSTFILE", "SGE_O_HOST"],
        size: |environment| largest(environment, &["NSLOTS", "NHOSTS"]),
        start: "start the program with mpirun, which starts every process",
    },
    System {
        title: "Cobalt",
        code: "cobalt-not-a-task",
        jobs: &["COBALT_JOBID"],
        size: |environment| largest(environment, &["COBALT_JOBSIZE"]),
        start: "start the program with aprun or mpirun, which start every process",
    },
];

/// Reports a batch script, which runs once, however many processes the job has.
pub(crate) fn script(environment: &Environment, by_itself: &str) -> Option<Finding> {
    let (system, job) = SYSTEMS.iter().find_map(|system| Some((system, first_set(environment, system.jobs)?)))?;
    let System { title, code, start, .. } = *system;
    let size = (system.size)(environment);
    let several = size.as_ref().is_none_or(|size| size.processes > 1);
    let size = size.map_or(String::new(), |size| format!(" and {}", size.text));
    let verb = if size.is_empty() { "is" } else { "are" };
    Some(Finding {
        // A script of one process is as good as a task.
        severity: if several { Severity::Warning } else { Severity::Note },
        code,
        what: format!("{}{size} {verb} set, and no launcher's variables are", display_variable(environment, job)),
        why: format!(
            "{title} runs a job's script once, on the first of its hosts, however many processes the job requests: mpienv \
             treats this process as the only one"
        ),
        remedy: format!("for a job of several processes, {start}; {by_itself}"),
    })
}

/// Returns the largest of these numbers.
pub(super) fn largest(environment: &Environment, names: &[&str]) -> Option<Size> {
    let number = |name: &&str| environment.get_str(name).ok().flatten()?.parse::<u64>().ok();
    let (processes, name) = names.iter().rev().filter_map(|name| Some((number(name)?, *name))).max_by_key(|of| of.0)?;
    Some(Size { processes, text: display_variable(environment, name) })
}

/// Returns the sum of the slots in `node1 42 node2 42`.
fn slots(environment: &Environment, name: &str) -> Option<Size> {
    let list = environment.get_str(name).ok().flatten()?;
    let counts = list.split_ascii_whitespace().skip(1).step_by(2);
    let processes = counts.map(|count| count.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(Size { processes, text: display_variable(environment, name) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_counts_and_the_first_of_equal_ones() {
        let of = |vars: &[(&str, &str)]| {
            let environment = Environment::from_vars(vars.iter().copied());
            largest(&environment, &["A", "B"]).map(|size| (size.processes, size.text))
        };
        assert_eq!(of(&[("A", "2"), ("B", "3")]), Some((3, "B=\"3\"".to_owned())));
        assert_eq!(of(&[("A", "2"), ("B", "2")]), Some((2, "A=\"2\"".to_owned())));
        assert_eq!(of(&[("A", "x"), ("B", "1")]), Some((1, "B=\"1\"".to_owned())));
        assert_eq!(of(&[("A", "x")]), None);
    }

    #[test]
    fn lsfs_slots_of_all_hosts_are_added() {
        let of = |list: &str| slots(&Environment::from_vars([("HOSTS", list)]), "HOSTS").map(|size| size.processes);
        assert_eq!(of("batch1 1 a 42 b 42"), Some(85));
        assert_eq!((of("a 1"), of("a"), of("a x")), (Some(1), Some(0), None));
    }
}
