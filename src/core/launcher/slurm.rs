//! Slurm's `srun`: a task of a job step.
//!
//! With `--mpi=pmi2`, srun also sets `PMI_RANK` and `PMI_SIZE`, to the same rank and size. A batch
//! script and the shell of `salloc` are not tasks, although they have some of these variables. A
//! task has `SLURM_STEP_` variables and the number of an ordinary step.

mod components;

use std::sync::OnceLock;

use self::components::with_components;
use crate::environment::Environment;
use crate::error::quote;
use crate::finding::{Finding, Severity};
use crate::hostlist::{Hostlist, HostlistError};
use crate::launcher::Launcher;
use crate::launcher::alone::BY_ITSELF;
use crate::launcher::prelude::*;
use crate::launcher::starter::Starter;
use crate::value::host::HostError;
use crate::value::job::Job;

variables! {
    /// The variables that srun sets for every task.
    pub struct SlurmVars {
        "[srun(1): output environment variables](https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES)" {
            RANK = "SLURM_PROCID" => rank: u32, "rank";
            STEP_SIZE = "SLURM_STEP_NUM_TASKS" => step_size: Option<u32>, "world size";
            SIZE = "SLURM_NTASKS" => size: Option<u32>, "the same in a step; in a batch script the job's, or nothing";
            LOCAL_RANK = "SLURM_LOCALID" => local_rank: Option<u32>, "rank on this node";
            RANKS_HERE = "SLURM_GTIDS" => ranks_here: Option<String>, "`0,1,4`: the ranks on this node";
            RANKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE" => ranks_per_node: Option<String>, "`2(x3),1`: ranks on each node of the step";
            NODE_ID = "SLURM_NODEID" => node_id: Option<u32>, "the node's number in the step";
            STEP_NODES = "SLURM_STEP_NUM_NODES" => step_nodes: Option<u32>, "nodes of the step";
            NODES = "SLURM_NNODES" => nodes: Option<u32>, "the same in a step";
            NODELIST = "SLURM_STEP_NODELIST" => nodelist: Option<String>, "`gpu[01-04]`: hosts of the step";
            DISTRIBUTION = "SLURM_DISTRIBUTION" => distribution: Option<String>, "`block`, `cyclic`, `arbitrary`, ...: how ranks are dealt to nodes";
            COMPONENTS = "SLURM_HET_SIZE" => components: Option<u32>, "components of a heterogeneous job";
            JOB_ID = "SLURM_JOB_ID" => job_id: Option<String>, "the job's number";
            STEP_ID = "SLURM_STEP_ID" => step_id: Option<String>, "the step's number";
            RESTARTS = "SLURM_RESTART_COUNT" => restarts: Option<u32>, "how often the job was restarted";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[SlurmVars::VARIABLES],
    marker: |environment| environment.first_set(&[RANK]).filter(|_| is_step(environment)),
    starts: Starts::Processes,
    start: "start the process with srun",
    programs: Some(Programs { names: "srun", verbs: "", options: "-n 2" }),
    // A script passes its number of tasks on to srun, which then ignores the number for each node.
    one_per_node: "`srun -n \"$SLURM_NNODES\" --ntasks-per-node=1`",
    unbind: Some(
        "srun and more --cpus-per-task (or --cpu-bind=none, on a node that is yours alone)",
    ),
    mpi: MpiFamily::PmiOrPmix,
    local: &[LOCAL_RANK, RANKS_HERE],
    also_sets: &["PMIX_NAMESPACE", "PMI_ID"],
    outside: &[SIZE, NODES, DISTRIBUTION, COMPONENTS, RESTARTS],
    starters: &[STARTER],
    samples: &[Sample::of(set)],
    ..LauncherSpec::plain(read)
};

fn set(process: &Process<'_>, vars: &mut Setter) {
    let Process { rank, size, local_rank, node, nodes, .. } = *process;
    let hosts = if nodes == 1 { process.name(0) } else { format!("node[0-{}]", nodes - 1) };
    let here = (0..size).zip(process.places).filter(|(_, place)| place.node == node);
    let here: Vec<_> = here.map(|(rank, _)| rank.to_string()).collect();
    vars.set(JOB_ID, 4711);
    vars.set(STEP_ID, 7 * process.job);
    vars.set_all([RANK, SIZE, STEP_SIZE, LOCAL_RANK], [rank, size, size, local_rank]);
    vars.set(RANKS_HERE, here.join(","));
    vars.set(RANKS_PER_NODE, tasks_per_node(process.counts));
    vars.set_all([NODE_ID, NODES, STEP_NODES], [node, nodes, nodes]);
    vars.set("SLURM_JOB_NODELIST", &hosts);
    vars.set(NODELIST, &hosts);
    vars.set(DISTRIBUTION, if process.is_cyclic { "cyclic" } else { "block" });
}

/// Formats counts as Slurm writes them: `2(x3),1`.
fn tasks_per_node(counts: &[u32]) -> String {
    let groups = counts.chunk_by(|a, b| a == b).map(|group| match group {
        [count] => count.to_string(),
        _ => format!("{}(x{})", group[0], group.len()),
    });
    groups.collect::<Vec<_>>().join(",")
}

/// Step numbers from this one on denote batch scripts, interactive shells and the like.
///
/// `slurm.h` uses 0xfffffffa to 0xfffffffd. This constant leaves room below.
const NO_STEP_FROM: u32 = 0xffff_fff0;

/// What sbatch and salloc set for `--ntasks-per-node`; some versions then set no number of tasks.
const PER_NODE: &str = "SLURM_NTASKS_PER_NODE";
/// What they set for every job: the tasks of each node, such as `2(x3),1`.
const JOB_TASKS: &str = "SLURM_TASKS_PER_NODE";

/// Which of an administrator's scripts Slurm runs: `prolog_slurmd`, `prolog_task`, and so on.
const CONTEXT: &str = "SLURM_SCRIPT_CONTEXT";
/// Those that run beside a job's tasks.
const BESIDE: [&str; 2] = ["prolog_slurm", "epilog_slurm"];

/// Further names of the job's size and hosts. A container or sudo may pass on only some names.
pub(crate) const OLD_JOB_ID: &str = "SLURM_JOBID";
const OLD_SIZE: &str = "SLURM_NPROCS";
const JOB_NODES: &str = "SLURM_JOB_NUM_NODES";
const JOB_LISTS: [&str; 2] = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"];

/// Slurm's program that starts the tasks of a step. Batch scripts and interactive shells have one
/// too.
pub(crate) const STARTER: &str = "slurmstepd";

/// Returns whether the command line of Slurm's program is that of a step with tasks:
/// `slurmstepd: [7.0]`, not `[7.batch]`.
pub(crate) fn starts_tasks(words: &[String]) -> bool {
    let title = words.join(" ");
    title.rsplit_once('.').is_some_and(|(_, step)| step.starts_with(|c: char| c.is_ascii_digit()))
}

/// Returns whether the variables of a step are those of an outer one, in which sbatch or salloc
/// ran: they pass them on to the script and to the shell, which are not tasks of any step.
fn is_of_outer_step(environment: &Environment) -> bool {
    /// What a script or a shell above this process was started with.
    static OUTSIDE: OnceLock<Option<Environment>> = OnceLock::new();
    let outside = || {
        let starter = Starter::nearest(&[STARTER, "salloc"], environment)?;
        let words = starter.process.words();
        let is_task = starter.program == STARTER && starts_tasks(&words);
        (!is_task && !words.is_empty()).then(|| starter.child.environment())
    };
    // Something in between, such as `mpienv simulate`, may have set them.
    let is_same = |then: &Environment| {
        [STEP_ID, STEP_SIZE].iter().all(|name| then.text(name) == environment.text(name))
    };
    environment.is_current() && OUTSIDE.get_or_init(outside).as_ref().is_some_and(is_same)
}

/// Returns whether this is an ordinary step, rather than a batch script or an interactive shell.
fn is_step(environment: &Environment) -> bool {
    match environment.get_str(STEP_ID) {
        // Older versions print the special numbers with a sign.
        Ok(Some(number)) => {
            number.parse().is_ok_and(|number: u32| number < NO_STEP_FROM)
                && !is_of_outer_step(environment)
        }
        // A batch script is always rank 0.
        Ok(None) => {
            [STEP_SIZE, NODELIST].iter().any(|name| environment.is_set(name))
                || environment.text(RANK).is_some_and(|rank| rank != "0")
        }
        Err(_) => true,
    }
}

/// Returns the error for a task of a step of several that has lost its rank: each would be rank 0
/// of 1.
pub(crate) fn refuse_task(environment: &Environment) -> Option<Error> {
    let size = environment.first_set(&[STEP_SIZE, SIZE]).filter(|_| is_step(environment));
    let variable = size.filter(|size| environment.get_str(size) != Ok(Some("1")))?;
    let marker = Marker { environment, launcher: Launcher::Slurm, variable };
    let remedy =
        format!("start the process with srun, and do not unset {RANK}; or set {BY_ITSELF}");
    Some(marker.missing_with(RANK, remedy))
}

/// Reports a batch script or the shell of an allocation. It has some of a task's variables but is
/// not a task.
pub(crate) fn outside_of_steps(environment: &Environment) -> Option<Finding> {
    let evidence = environment.first_set(&[RANK, JOB_ID, OLD_JOB_ID]);
    let evidence = evidence.filter(|_| !is_step(environment))?;
    // The number of tasks is that of the first component. A job that another job's script submits
    // inherits the number for each node.
    let per_node = Some(PER_NODE).filter(|_| environment.text(JOB_TASKS) != Some("1"));
    let sizes = [COMPONENTS, SIZE, OLD_SIZE, NODES, JOB_NODES].into_iter().chain(per_node);
    // Slurm tells every script the number of nodes, so some of this process's variables are lost.
    if evidence == RANK && !sizes.clone().any(|name| environment.is_set(name)) {
        return None;
    }
    let is_of_several = |name: &&str| !matches!(environment.get_str(name), Ok(None | Some("1")));
    let lists_several = |name: &&str| {
        let list = environment.text(name).map(Hostlist::parse);
        list.is_some_and(|list| list.is_ok_and(|hosts| hosts.len() > 1))
    };
    let several = sizes.clone().find(is_of_several);
    let several = several.or_else(|| JOB_LISTS.into_iter().find(lists_several));
    // A script runs on the first node.
    let is_elsewhere = |name: &&str| !matches!(environment.text(name), None | Some("0"));
    let several = several.or(Some(NODE_ID).filter(is_elsewhere));
    // If the job has one task, a script without srun is just as good. A prolog or an epilog runs on
    // each node, beside the tasks.
    let is_beside = environment
        .text(CONTEXT)
        .is_some_and(|it| BESIDE.iter().any(|beside| it.starts_with(beside)));
    let is_small = several.is_none() || is_beside;
    let shown = environment.shown(evidence);
    let shown = match several.or(environment.first_set(&[COMPONENTS, SIZE])) {
        Some(size) => format!("{shown} and {} are", environment.shown(size)),
        None => format!("{shown} is"),
    };
    Some(Finding::new(
        if is_small { Severity::Note } else { Severity::Warning },
        "slurm-not-a-task",
        format!("{shown} set, but srun did not start this process"),
        "a batch script or a shell of salloc runs once, however many tasks it requests: mpienv treats this process as the only one",
        "start the program with `srun`, which starts every task",
    ))
}

/// Returns whether the job is on one node. False if nothing shows it.
pub(crate) fn is_on_one_node(environment: &Environment) -> bool {
    let is_not_several = |name| matches!(environment.get_str(name), Ok(None | Some("1")));
    [NODES, JOB_NODES].into_iter().any(|name| environment.is_set(name))
        && [NODES, JOB_NODES, COMPONENTS].into_iter().all(is_not_several)
}

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let vars: SlurmVars = marker.read()?;
    let size = by(STEP_SIZE, vars.step_size).or(by(SIZE, vars.size));
    let size = size.ok_or_else(|| marker.missing(STEP_SIZE))?;
    let malformed = |variable: &str, form: &str, text: &str| {
        marker.refuse(format!("not of the form {form}"), variable, text)
    };
    let here = |text: &str| ranks_here(text).ok_or_else(|| malformed(RANKS_HERE, "0,1,4", text));
    let here = vars.ranks_here.as_deref().map(here).transpose()?;
    // In a step of several components, the text follows the sorted hosts, and the node's number
    // does not.
    let ranks_per_node = vars.ranks_per_node.as_ref().filter(|_| vars.components.is_none());
    let groups =
        |text: &String| groups(text).ok_or_else(|| malformed(RANKS_PER_NODE, "2(x3),1", text));
    let ranks_per_node = ranks_per_node.map(groups).transpose()?;
    let per_node = vars.node_id.and_then(|node| ranks_of_node(ranks_per_node.as_ref()?, node));
    let local_size = by(RANKS_HERE, here).or(by(RANKS_PER_NODE, per_node));
    let nodes = by(STEP_NODES, vars.step_nodes).or(by(NODES, vars.nodes));
    let may_be_several = nodes.as_ref().is_none_or(|nodes| nodes.value > 1);
    let mut placement = marker
        .place(by(RANK, vars.rank), size)?
        .with_local(by(LOCAL_RANK, vars.local_rank), local_size)?
        .with_nodes(by(NODE_ID, vars.node_id), nodes);
    let differ = here.zip(per_node).filter(|(here, per_node)| here != per_node);
    let doubt = differ.map(|(here, per_node)| local_sizes_differ(&vars, here, per_node));
    placement.findings.extend(doubt);
    let sizes = vars.step_size.zip(vars.size).filter(|_| vars.components.is_none());
    placement.findings.extend(sizes.filter(|(step, size)| step != size).map(sizes_differ));
    // Hosts and numbers of a step with several components do not follow one order.
    if vars.components.is_none() {
        check_step(&placement, &vars, here.or(per_node).filter(|_| differ.is_none()))?;
    }
    if let Some(list) = &vars.nodelist {
        placement = with_hosts(marker, placement, list)?;
        // Without an option, srun gives each node a block, too.
        let is_block = vars.distribution.as_deref().is_none_or(|dealt| dealt.starts_with("block"));
        placement.ranks_per_host = ranks_per_node.filter(|_| is_block);
        if let Some(components) = vars.components {
            placement = with_components(marker, placement, list, components)?;
        }
        if vars.distribution.as_deref() == Some("arbitrary") && may_be_several {
            placement.master_doubt = Some(arbitrary(list));
        }
    } else {
        let ranks = placement.size.value;
        placement.master_unknown = Some(format!(
            "the {ranks} ranks may be on several nodes, and no variable names rank 0's host: {NODELIST} is not set"
        ));
    }
    let (step, restarts) = (vars.step_id.unwrap_or_default(), vars.restarts.unwrap_or_default());
    let job = vars.job_id.map(|id| Job { id, step, restarts });
    placement.job = by(format!("hash of {JOB_ID}, {STEP_ID}, {RESTARTS}"), job);
    Ok(placement)
}

/// Rejects numbers that contradict each other however ranks are dealt to nodes. On every node, Slurm
/// numbers the tasks in the order of their ranks.
fn check_step(
    placement: &Placement,
    vars: &SlurmVars,
    local_size: Option<u32>,
) -> Result<(), Error> {
    let refuse = |variable: &str, value: u32, others: String| {
        let reason = format!("it contradicts {others}");
        Err(placement.launcher().refuse(reason, variable, value))
    };
    if let (Some(nodes), Some(list)) = (vars.step_nodes, &vars.nodelist)
        && Hostlist::parse(list).is_ok_and(|hosts| hosts.len() != u64::from(nodes))
    {
        return refuse(STEP_NODES, nodes, format!("{NODELIST}={}", quote(list)));
    }
    let Some(local) = vars.local_rank else { return Ok(()) };
    let rank = format!("{RANK}=\"{}\"", vars.rank);
    let Sourced { value: size, source } = &placement.size;
    if local > vars.rank {
        return refuse(LOCAL_RANK, local, rank);
    }
    if local_size.is_some_and(|here| here - local > size - vars.rank) {
        let here = by(RANKS_HERE, vars.ranks_here.as_deref());
        let here = here.or(by(RANKS_PER_NODE, vars.ranks_per_node.as_deref()));
        let here = here.map(|text| format!("{}={}", text.source, quote(text.value)));
        let others = format!("{rank} and {} and {source}=\"{size}\"", here.unwrap_or_default());
        return refuse(LOCAL_RANK, local, others);
    }
    Ok(())
}

/// Returns how many ranks a text such as `0,1,4` lists.
fn ranks_here(text: &str) -> Option<u32> {
    let ranks: Option<Vec<u32>> = text.split(',').map(|rank| rank.parse().ok()).collect();
    u32::try_from(ranks?.len()).ok()
}

/// Returns the groups of `2(x3),1`: a number of ranks, and how many nodes have it. `None` if the text
/// has another form.
fn groups(text: &str) -> Option<Vec<(u32, u32)>> {
    let group = |group: &str| {
        let (count, times) = group.split_once("(x").unwrap_or((group, "1)"));
        Some((count.parse().ok()?, times.strip_suffix(')')?.parse().ok()?))
    };
    text.split(',').map(group).collect()
}

/// Returns the number of ranks on the node with this number, if there is one.
fn ranks_of_node(groups: &[(u32, u32)], node: u32) -> Option<u32> {
    let mut nodes_before = 0u64;
    let is_after = |&&(_, times): &&(u32, u32)| {
        nodes_before += u64::from(times);
        u64::from(node) < nodes_before
    };
    groups.iter().find(is_after).map(|&(count, _)| count)
}

/// Adds the hosts of a step. The first one is rank 0's.
fn with_hosts(
    marker: Marker<'_>,
    mut placement: Placement,
    list: &str,
) -> Result<Placement, Error> {
    let malformed = |error: HostlistError| marker.refuse(error.to_string(), NODELIST, list);
    let parsed = Hostlist::parse(list).map_err(malformed)?;
    let not_a_host = |error: HostError| marker.refuse(error, NODELIST, list);
    let host = parsed.first().parse().map_err(not_a_host)?;
    placement.master_addr = Some(Sourced::new(host, format!("{NODELIST}: the first host")));
    Ok(placement.with_hosts(NODELIST, parsed.iter()))
}

fn local_sizes_differ(vars: &SlurmVars, here: u32, per_node: u32) -> Finding {
    let text = |value: &Option<String>| quote(value.as_deref().unwrap_or_default());
    let (ranks, all) = (text(&vars.ranks_here), text(&vars.ranks_per_node));
    Finding::warning(
        "slurm-local-sizes-differ",
        format!(
            "{RANKS_HERE}={ranks} lists {here} ranks, and {RANKS_PER_NODE}={all} has {per_node} for this node"
        ),
        format!("one of them is left from another step; mpienv uses {RANKS_HERE}"),
        "start the program with `srun`, and do not set SLURM_ variables yourself",
    )
}

/// Reports the size of another step than the one that started this process, whose variables a batch
/// script or the shell of salloc has inherited.
fn sizes_differ((step, size): (u32, u32)) -> Finding {
    Finding::warning(
        "slurm-sizes-differ",
        format!("{STEP_SIZE}={step}, but {SIZE}={size}"),
        format!(
            "in a step they are the same: sbatch or salloc ran in another step, whose variables are left; mpienv uses {STEP_SIZE}"
        ),
        "start the program with `srun`, or unset the variables that begin with SLURM_STEP_",
    )
}

fn arbitrary(list: &str) -> Finding {
    Finding::warning(
        "slurm-arbitrary-distribution",
        format!("{DISTRIBUTION}=arbitrary, and {NODELIST}={} is sorted", quote(list)),
        "the first host of the list may not be rank 0's; the ranks then wait for a master that never appears",
        "before srun, run `export MASTER_ADDR=HOST` with the first host of the host file ($SLURM_HOSTFILE, or the \
                 file given to srun -w)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_with_tasks_have_a_number() {
        for (title, expected) in [
            ("slurmstepd: [7.0]", true),
            ("slurmstepd: [7+1.12]", true),
            ("slurmstepd: [7.0+1] x", true),
            ("slurmstepd: [7.batch]", false),
            ("slurmstepd: [7.extern]", false),
            ("slurmstepd", false),
        ] {
            assert_eq!(starts_tasks(&[title.to_owned()]), expected, "{title}");
        }
    }

    #[test]
    fn equal_neighbours_are_counted_as_slurm_does() {
        assert_eq!(tasks_per_node(&[2, 2, 2, 1]), "2(x3),1");
        assert_eq!(tasks_per_node(&[3, 1]), "3,1");
        assert_eq!(tasks_per_node(&[4]), "4");
    }

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
            assert_eq!(ranks_of_node(&groups(text).unwrap(), node), expected, "{text} [{node}]");
        }
        for bad in ["", "x", "2(x)", "2(x3", "2(x3),", "-1", "2(3)", "2(x3)1"] {
            assert_eq!(groups(bad), None, "{bad}");
        }
    }

    #[test]
    fn ranks_on_this_node_are_counted() {
        assert_eq!(ranks_here("0,2,3"), Some(3));
        for bad in ["", "0,", "a", "0 1"] {
            assert_eq!(ranks_here(bad), None, "{bad}");
        }
    }

    /// Returns the placement of a task with these variables, besides its rank and the step.
    fn task(more: &[(&'static str, &'static str)]) -> Placement {
        let vars = [(RANK, "0"), (LOCAL_RANK, "0"), (STEP_ID, "0")]
            .into_iter()
            .chain(more.iter().copied());
        let environment = Environment::from_vars(vars);
        let marker =
            Marker { environment: &environment, launcher: Launcher::Slurm, variable: RANK };
        read(marker).unwrap()
    }

    #[test]
    fn the_local_size_is_that_of_the_ranks_here_or_else_of_the_node_in_the_list() {
        let listed = [(STEP_SIZE, "8"), (RANKS_PER_NODE, "2(x2),3"), (NODE_ID, "2")];
        let with = |here| task(&[&listed[..], &[(RANKS_HERE, here)]].concat());
        assert_eq!(task(&listed).local_size, by(RANKS_PER_NODE, Some(3)));
        assert_eq!(task(&listed[..2]).local_size, None);
        let equal = with("0,1,2");
        assert_eq!((equal.local_size, equal.findings), (by(RANKS_HERE, Some(3)), vec![]));
        let other = with("0,1");
        assert_eq!(other.local_size, by(RANKS_HERE, Some(2)));
        assert_eq!(other.findings[0].code, "slurm-local-sizes-differ");
    }

    #[test]
    fn the_steps_numbers_count_before_the_jobs() {
        let placement = task(&[(STEP_SIZE, "4"), (SIZE, "8"), (STEP_NODES, "2"), (NODES, "3")]);
        assert_eq!((placement.size.value, placement.node_count.unwrap().value), (4, 2));
        let placement = task(&[(SIZE, "8"), (NODES, "3")]);
        assert_eq!((placement.size.value, placement.node_count.unwrap().value), (8, 3));
    }

    #[test]
    fn the_first_host_is_doubted_only_where_ranks_are_dealt_at_will_to_several_nodes() {
        for (nodes, distribution, doubted) in [
            ("2", "arbitrary", true),
            ("1", "arbitrary", false),
            ("", "arbitrary", true),
            ("2", "block", false),
        ] {
            let vars = [
                (SIZE, "2"),
                (NODES, nodes),
                (NODELIST, "a,b"),
                ("SLURM_DISTRIBUTION", distribution),
            ];
            let doubt = task(&vars).master_doubt.map(|finding| finding.code);
            assert_eq!(
                doubt == Some("slurm-arbitrary-distribution"),
                doubted,
                "{nodes} {distribution}"
            );
        }
    }

    #[test]
    fn a_step_is_recognized_by_its_number_its_size_its_nodes_or_a_rank_above_0() {
        for (vars, expected) in [
            (&[(STEP_ID, "0")][..], true),
            (&[(STEP_ID, "4294967279")], true),
            (&[(STEP_ID, "4294967280")], false),
            (&[(STEP_ID, "-5")], false),
            (&[(STEP_SIZE, "2")], true),
            (&[(NODELIST, "a")], true),
            (&[(JOB_ID, "7")], false),
            (&[(JOB_ID, "7"), (RANK, "0")], false),
            (&[(JOB_ID, "7"), (RANK, "1")], true),
        ] {
            assert_eq!(
                is_step(&Environment::from_vars(vars.iter().copied())),
                expected,
                "{vars:?}"
            );
        }
    }
}
