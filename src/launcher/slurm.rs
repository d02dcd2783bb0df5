//! Slurm's `srun`: a task of a job step.
//!
//! | variable | what it is | defined in |
//! | --- | --- | --- |
//! | `SLURM_PROCID` | rank | [srun(1): output environment variables] |
//! | `SLURM_STEP_NUM_TASKS`, else `SLURM_NTASKS` | world size | same |
//! | `SLURM_LOCALID` | rank on this node | same |
//! | `SLURM_GTIDS` | `0,1,4`: the ranks on this node | same |
//! | `SLURM_STEP_TASKS_PER_NODE` | `2(x3),1`: ranks on each node of the step | same |
//! | `SLURM_NODEID` | the node's number in the step | same |
//! | `SLURM_STEP_NUM_NODES`, else `SLURM_NNODES` | nodes of the step | same |
//! | `SLURM_STEP_NODELIST` | `gpu[01-04]`: hosts of the step | same |
//! | `SLURM_DISTRIBUTION` | `block`, `cyclic`, `arbitrary`, ... | same |
//! | `SLURM_JOB_ID`, `SLURM_STEP_ID`, `SLURM_RESTART_COUNT` | which step of which job this is | same |
//! | `PMI_RANK`, `PMI_SIZE` | the same rank and size again, with `--mpi=pmi2` | same |
//!
//! A batch script and the shell of `salloc` are no tasks, though they have some of these variables:
//! a task has `SLURM_STEP_` variables and the number of an ordinary step.
//!
//! [srun(1): output environment variables]: https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES

use serde::Deserialize;

use crate::environment::{Environment, ReadError, variable_names};
use crate::error::{Error, Reason, quote};
use crate::finding::{Finding, Severity};
use crate::hostlist::Hostlist;
use crate::launcher::{Evidence, display_variable, first_set, unreadable};
use crate::value::host::{Host, HostError};
use crate::value::job::Job;
use crate::value::placement::{Launcher, Placement, Sourced};

const RANK: &str = "SLURM_PROCID";
const STEP_SIZE: &str = "SLURM_STEP_NUM_TASKS";
const SIZE: &str = "SLURM_NTASKS";
const LOCAL_RANK: &str = "SLURM_LOCALID";
const RANKS_HERE: &str = "SLURM_GTIDS";
const RANKS_PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";
const NODE_ID: &str = "SLURM_NODEID";
const STEP_NODES: &str = "SLURM_STEP_NUM_NODES";
const NODES: &str = "SLURM_NNODES";
const NODELIST: &str = "SLURM_STEP_NODELIST";
const JOB_ID: &str = "SLURM_JOB_ID";
const STEP_ID: &str = "SLURM_STEP_ID";

/// From this number on steps are no steps but batch scripts, interactive shells and the like.
///
/// From `slurm.h`, where they are 0xfffffffa to 0xfffffffd, with room below.
const NO_STEP_FROM: u32 = 0xffff_fff0;

/// The variables that srun sets for every task.
///
/// ```
/// use mpienv::Environment;
/// use mpienv::launcher::slurm::SlurmVars;
///
/// let environment = Environment::from_vars([("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2")]);
/// let vars: SlurmVars = environment.read()?;
/// assert_eq!((vars.rank, vars.step_size), (1, Some(2)));
/// # Ok::<(), mpienv::ReadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct SlurmVars {
    /// `SLURM_PROCID`: the rank.
    #[serde(rename = "slurm_procid")]
    pub rank: u32,
    /// `SLURM_STEP_NUM_TASKS`: the step's number of tasks.
    #[serde(rename = "slurm_step_num_tasks")]
    pub step_size: Option<u32>,
    /// `SLURM_NTASKS`: the same in a step; in a batch script the job's, or nothing.
    #[serde(rename = "slurm_ntasks")]
    pub size: Option<u32>,
    /// `SLURM_LOCALID`: the rank on this node.
    #[serde(rename = "slurm_localid")]
    pub local_rank: Option<u32>,
    /// `SLURM_GTIDS`: the ranks on this node, separated by commas.
    #[serde(rename = "slurm_gtids")]
    pub ranks_here: Option<String>,
    /// `SLURM_STEP_TASKS_PER_NODE`: the number of ranks on each node, as in `2(x3),1`.
    #[serde(rename = "slurm_step_tasks_per_node")]
    pub ranks_per_node: Option<String>,
    /// `SLURM_NODEID`: the node's number in the step.
    #[serde(rename = "slurm_nodeid")]
    pub node_id: Option<u32>,
    /// `SLURM_STEP_NUM_NODES`: the step's number of nodes.
    #[serde(rename = "slurm_step_num_nodes")]
    pub step_nodes: Option<u32>,
    /// `SLURM_NNODES`: the same in a step.
    #[serde(rename = "slurm_nnodes")]
    pub nodes: Option<u32>,
    /// `SLURM_STEP_NODELIST`: the step's hosts.
    #[serde(rename = "slurm_step_nodelist")]
    pub nodelist: Option<String>,
    /// `SLURM_DISTRIBUTION`: how ranks are dealt to nodes.
    #[serde(rename = "slurm_distribution")]
    pub distribution: Option<String>,
    /// `SLURM_JOB_ID`: the job's number.
    #[serde(rename = "slurm_job_id")]
    pub job_id: Option<String>,
    /// `SLURM_STEP_ID`: the step's number.
    #[serde(rename = "slurm_step_id")]
    pub step_id: Option<String>,
    /// `SLURM_RESTART_COUNT`: how often the job was restarted.
    #[serde(rename = "slurm_restart_count")]
    pub restarts: Option<u32>,
}

pub(crate) fn variables() -> Vec<String> {
    variable_names::<SlurmVars>()
}

pub(crate) fn detect(environment: &Environment) -> Option<Evidence> {
    if is_step(environment) { first_set(environment, &[RANK]) } else { None }
}

/// Whether this is an ordinary step, and not a batch script or an interactive shell.
fn is_step(environment: &Environment) -> bool {
    match environment.get_str(STEP_ID) {
        // Older versions print the special numbers with a sign.
        Ok(Some(number)) => number.parse().is_ok_and(|number: u32| number < NO_STEP_FROM),
        Ok(None) => environment.is_set(STEP_SIZE) || environment.is_set(NODELIST),
        Err(_) => true,
    }
}

/// A batch script or the shell of an allocation: it has some of a task's variables, and is none.
pub(crate) fn outside_of_steps(environment: &Environment) -> Option<Finding> {
    let evidence = first_set(environment, &[RANK, JOB_ID]).filter(|_| !is_step(environment))?;
    let is_of_one = |name: &str| matches!(environment.get_str(name), Ok(None | Some("1")));
    // One task is what a script without srun is, too.
    let severity = if [SIZE, NODES].into_iter().all(is_of_one) { Severity::Note } else { Severity::Warning };
    let evidence = display_variable(environment, evidence);
    let size =
        if environment.is_set(SIZE) { format!(" and {}", display_variable(environment, SIZE)) } else { String::new() };
    Some(Finding {
        severity,
        code: "slurm-not-a-task",
        what: format!("{evidence}{size} are set, and this is no task of a step"),
        why: "a batch script and the shell of salloc run once, whatever number of tasks they ask for: this process is taken to be alone".into(),
        remedy: "start the program with `srun`, which starts every task".into(),
    })
}

pub(crate) fn read(environment: &Environment) -> Result<Placement, Error> {
    let launcher = Launcher::Slurm;
    let evidence = detect(environment);
    let blame = |error| unreadable(environment, launcher, error, evidence);
    let vars: SlurmVars = environment.read().map_err(blame)?;
    let size = match (vars.step_size, vars.size) {
        (Some(size), _) => (STEP_SIZE, size),
        (None, Some(size)) => (SIZE, size),
        (None, None) => return Err(blame(ReadError::Missing { name: STEP_SIZE.to_owned() })),
    };
    let here = vars.ranks_here.as_deref().map(ranks_here).transpose()?;
    let per_node = match (&vars.ranks_per_node, vars.node_id) {
        (Some(text), Some(node)) => ranks_of_node(text, node)?,
        _ => None,
    };
    let local_size = match here {
        Some(count) => (RANKS_HERE, Some(count)),
        None => (RANKS_PER_NODE, per_node),
    };
    let mut placement =
        Placement::new(launcher, (RANK, vars.rank), size)?.with_local((LOCAL_RANK, vars.local_rank), local_size)?;
    placement.node_rank = vars.node_id.map(|node| Sourced::new(node, NODE_ID));
    placement.node_count = match (vars.step_nodes, vars.nodes) {
        (Some(nodes), _) => Some(Sourced::new(nodes, STEP_NODES)),
        (None, nodes) => nodes.map(|nodes| Sourced::new(nodes, NODES)),
    };
    if let (Some(here), Some(per_node)) = (here, per_node)
        && here != per_node
    {
        placement.findings.push(local_sizes_differ(&vars, here, per_node));
    }
    if let Some(list) = &vars.nodelist {
        placement.master_addr = Some(first_host(list)?);
        if vars.distribution.as_deref() == Some("arbitrary")
            && placement.node_count.as_ref().is_none_or(|n| n.value > 1)
        {
            placement.master_doubt = Some(arbitrary(list));
        }
    }
    Ok(match vars.job_id {
        Some(id) => {
            let (step, restarts) = (vars.step_id.unwrap_or_default(), vars.restarts.unwrap_or_default());
            placement.with_job(Job { id, step, restarts }, "hash of SLURM_JOB_ID, SLURM_STEP_ID, SLURM_RESTART_COUNT")
        }
        None => placement,
    })
}

fn malformed(variable: &'static str, form: &str, text: &str) -> Error {
    Error::of_launcher(Launcher::Slurm, Reason::Malformed(format!("not of the form {form}")), variable).found(text)
}

/// How many ranks `0,1,4` lists.
fn ranks_here(text: &str) -> Result<u32, Error> {
    let bad = || malformed(RANKS_HERE, "0,1,4", text);
    text.split(',')
        .try_fold(0u32, |count, rank| rank.parse::<u32>().ok().and_then(|_| count.checked_add(1)))
        .ok_or_else(bad)
}

/// The number of ranks of the node with that number in `2(x3),1`.
fn ranks_of_node(text: &str, node: u32) -> Result<Option<u32>, Error> {
    let bad = || malformed(RANKS_PER_NODE, "2(x3),1", text);
    let mut nodes_before = 0u64;
    let mut found = None;
    for group in text.split(',') {
        let (count, times) = match group.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')').ok_or_else(bad)?),
            None => (group, "1"),
        };
        let count: u32 = count.parse().map_err(|_| bad())?;
        nodes_before += u64::from(times.parse::<u32>().map_err(|_| bad())?);
        if found.is_none() && u64::from(node) < nodes_before {
            found = Some(count);
        }
    }
    Ok(found)
}

fn first_host(list: &str) -> Result<Sourced<Host>, Error> {
    let left = |reason: Reason| Error::of_launcher(Launcher::Slurm, reason, NODELIST).found(list);
    let parsed = Hostlist::parse(list).map_err(|error| left(Reason::Malformed(error.to_string())))?;
    let host = parsed.first().parse().map_err(|error: HostError| left(error.into()))?;
    Ok(Sourced::new(host, "SLURM_STEP_NODELIST: the first host"))
}

fn local_sizes_differ(vars: &SlurmVars, here: u32, per_node: u32) -> Finding {
    let text = |value: &Option<String>| quote(value.as_deref().unwrap_or_default());
    Finding {
        severity: Severity::Warning,
        code: "slurm-local-sizes-differ",
        what: format!(
            "{RANKS_HERE}={} lists {here} ranks, and {RANKS_PER_NODE}={} has {per_node} for this node",
            text(&vars.ranks_here),
            text(&vars.ranks_per_node)
        ),
        why: format!("one of them is left from another step; {RANKS_HERE} is taken"),
        remedy: "start the program with `srun`, and export none of its variables by hand".into(),
    }
}

fn arbitrary(list: &str) -> Finding {
    Finding {
        severity: Severity::Warning,
        code: "slurm-arbitrary-distribution",
        what: format!("SLURM_DISTRIBUTION=arbitrary, and {NODELIST}={} is sorted", quote(list)),
        why: "the first host of the list need not be rank 0's, and then the ranks wait for a master that nobody is"
            .into(),
        remedy: "give rank 0's host to all ranks: `export MASTER_ADDR=$(head -n 1 $SLURM_HOSTFILE)` before srun".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_ranks_are_found_without_expanding() {
        for (text, node, expected) in [
            ("2(x3),1", 0, Some(2)),
            ("2(x3),1", 2, Some(2)),
            ("2(x3),1", 3, Some(1)),
            ("2(x3),1", 4, None),
            ("4", 0, Some(4)),
            ("1(x4294967295),7", 4_294_967_295, Some(7)),
        ] {
            assert_eq!(ranks_of_node(text, node), Ok(expected), "{text} [{node}]");
        }
        for bad in ["", "x", "2(x)", "2(x3", "2(x3),", "-1", "2(3)", "2(x3)1"] {
            assert_eq!(ranks_of_node(bad, 0).unwrap_err().value(), Some(bad));
        }
    }

    #[test]
    fn ranks_on_this_node_are_counted() {
        assert_eq!(ranks_here("0,2,3"), Ok(3));
        for bad in ["", "0,", "a", "0 1"] {
            assert_eq!(ranks_here(bad).unwrap_err().value(), Some(bad));
        }
    }

    /// What a task of a step is told by these variables, beside its rank and the step.
    fn task(more: &[(&'static str, &'static str)]) -> Placement {
        let vars = [(RANK, "0"), (LOCAL_RANK, "0"), (STEP_ID, "0")].into_iter().chain(more.iter().copied());
        read(&Environment::from_vars(vars)).unwrap()
    }

    #[test]
    fn the_local_size_is_that_of_the_ranks_here_or_else_of_the_node_in_the_list() {
        let size = (STEP_SIZE, "8");
        let listed = [size, (RANKS_PER_NODE, "2(x2),3"), (NODE_ID, "2")];
        let placement = task(&listed);
        assert_eq!((placement.local.size(), &*placement.local_size_source), (Some(3), RANKS_PER_NODE));
        let placement = task(&[&listed[..], &[(RANKS_HERE, "0,1,2")]].concat());
        assert_eq!((placement.local.size(), &*placement.local_size_source), (Some(3), RANKS_HERE));
        assert_eq!(placement.findings, []);
        let placement = task(&[&listed[..], &[(RANKS_HERE, "0,1")]].concat());
        assert_eq!(placement.local.size(), Some(2));
        let [finding] = &placement.findings[..] else { panic!("{:?}", placement.findings) };
        assert_eq!(finding.code, "slurm-local-sizes-differ");
        assert_eq!(
            finding.what,
            "SLURM_GTIDS=\"0,1\" lists 2 ranks, and SLURM_STEP_TASKS_PER_NODE=\"2(x2),3\" has 3 for this node"
        );
        assert_eq!(task(&listed[..2]).local.size(), None);
    }

    #[test]
    fn the_steps_numbers_count_before_the_jobs() {
        let placement = task(&[(STEP_SIZE, "4"), (SIZE, "8"), (STEP_NODES, "2"), (NODES, "3")]);
        assert_eq!((placement.rank.size(), placement.node_count.unwrap().value), (4, 2));
        let placement = task(&[(SIZE, "8"), (NODES, "3")]);
        assert_eq!((placement.rank.size(), placement.node_count.unwrap().value), (8, 3));
    }

    #[test]
    fn the_first_host_is_doubted_only_where_ranks_are_dealt_at_will_to_several_nodes() {
        for (nodes, distribution, doubted) in
            [("2", "arbitrary", true), ("1", "arbitrary", false), ("", "arbitrary", true), ("2", "block", false)]
        {
            let vars = [(SIZE, "2"), (NODES, nodes), (NODELIST, "a,b"), ("SLURM_DISTRIBUTION", distribution)];
            let doubt = task(&vars).master_doubt.map(|finding| finding.code);
            assert_eq!(doubt == Some("slurm-arbitrary-distribution"), doubted, "{nodes} {distribution}");
        }
    }

    #[test]
    fn what_is_no_step_has_the_numbers_from_the_top() {
        for (vars, expected) in [
            (&[(STEP_ID, "0")][..], true),
            (&[(STEP_ID, "4294967279")], true),
            (&[(STEP_ID, "4294967280")], false),
            (&[(STEP_ID, "-5")], false),
            (&[(STEP_SIZE, "2")], true),
            (&[(NODELIST, "a")], true),
            (&[(JOB_ID, "7")], false),
        ] {
            assert_eq!(is_step(&Environment::from_vars(vars.iter().copied())), expected, "{vars:?}");
        }
    }
}
