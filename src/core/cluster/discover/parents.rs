//! Launchers among the parent processes of a process that seems to be the only one.

use super::unplaced;
use crate::cluster::context::CONTEXT;
use crate::cluster::info::ClusterInfo;
use crate::cluster::overrides;
use crate::environment::Environment;
use crate::finding::{Finding, Severity};
use crate::launcher::alone::BY_ITSELF;
use crate::launcher::placement::Placement;
use crate::launcher::starter::{Process, Starter, ancestors};
use crate::launcher::{Launcher, markers, slurm, specs};

/// Programs that start sessions, whose environments are new by design.
const SESSIONS: &[&str] = &[
    "sshd",
    "sshd-session",
    "dropbear",
    "tmux: server",
    "screen",
    "login",
    "cron",
    "crond",
    "atd",
];

/// Options of mpirun and its kin that say how many processes to start.
const COUNTS: &[&str] = &["-n", "-np", "--n", "--np", "-c"];

/// Programs that start workers on one node, each with the command in which they do so, if it has
/// several. Newer versions of torchrun change the name of their process.
const WORKER_STARTERS: &[(&str, &[&str])] =
    &[("mpienv", &["launch", "simulate"]), ("torchrun", &[]), ("pt_elastic", &[])];

/// Their options that say how many workers or nodes there are, without leading hyphens, and with
/// hyphens inside.
const SIZES: &[&str] = &["nproc-per-node", "nnodes", "ppn", "nodes"];

/// Reports a parent process that is one of several, or that starts several, if this process has no
/// variables of theirs, but at most those of `own` launcher.
pub(super) fn finding(environment: &Environment, own: Launcher) -> Option<Finding> {
    let mut parents = ancestors(environment).peekable();
    while let Some(parent) = parents.next() {
        if parent.runs(SESSIONS).is_some() || parent.runs(own.spec().starters).is_some() {
            return None;
        }
        let who = || format!("{} (process {})", parent.name, parent.id);
        let starts_several = match specs().find_map(|spec| parent.runs(spec.starters)) {
            Some(slurm::STARTER) => Some(slurm::starts_tasks(&parent.words())),
            Some(_) if starts_one(&parent.words()) => return None,
            Some(_) if parents.peek().is_some_and(mpiexec_starts_one) => return None,
            Some(_) => Some(true),
            None => starts_workers(&parent).then_some(true),
        };
        if let Some(several) = starts_several {
            let mut lost = lost(format!("{} started this process", who()));
            // A batch script of one process is as good as a task.
            if !several {
                lost.severity = Severity::Note;
            }
            return Some(lost);
        }
        let above = parent.environment();
        if let Some(place) = placed(&above) {
            let (rank, size) = (place.rank(), place.world_size());
            let title = place.launcher().title();
            // A script may have set this below the launcher.
            if size == 1 && place.launcher() == Launcher::User {
                continue;
            }
            let is_rank = || {
                format!("{}, a parent of this process, is rank {rank} of {size} ({title})", who())
            };
            return (size > 1).then(|| lost(is_rank()));
        }
        // On one node, a script may start the workers itself. Of other systems than Slurm, another
        // process's variables do not say how many nodes there are.
        let script = slurm::outside_of_steps(&above).filter(unplaced::is_warning);
        let is_alone = above.is_set(overrides::LAUNCHER) || slurm::is_on_one_node(&above);
        if script.is_some() && !is_alone {
            let what = format!("{}, a parent of this process, is in the script of a job", who());
            return Some(lost(what));
        }
    }
    None
}

/// Returns the place of the process that started the ranks on this node, if that is itself one of
/// several. Its variables need not be visible here, because `launcher` may have set the same ones.
pub(super) fn around(environment: &Environment, launcher: Launcher) -> Option<Placement> {
    let above = match launcher {
        Launcher::Torchrun => agent_of_torchrun(environment)?.environment(),
        _ => Starter::of(launcher, environment)?.process.environment(),
    };
    placed(&above).map(|place| place.placement).filter(|place| place.size.value > 1)
}

/// Returns whether the torchrun that started this worker takes a range of nodes, of which some may be
/// lost.
pub(super) fn is_elastic(environment: &Environment) -> bool {
    let words = agent_of_torchrun(environment).map(|agent| agent.words()).unwrap_or_default();
    let asked = options(&words).filter(|(name, _)| *name == "nnodes").map(|(_, nodes)| nodes);
    let mut nodes = asked.chain(environment.text("PET_NNODES"));
    nodes.any(|nodes| nodes.split_once(':').is_some_and(|(_, most)| most != "1"))
}

/// Returns the process that started torchrun's workers on this node.
fn agent_of_torchrun(environment: &Environment) -> Option<Process> {
    ancestors(environment).find(|parent| !parent.environment().is_set("TORCHELASTIC_RUN_ID"))
}

/// Returns whether the process is one that starts several workers.
fn starts_workers(parent: &Process) -> bool {
    let is_it = |(program, commands): &(&'static str, &[&str])| {
        parent.runs(&[program]).is_some() && asks_for_workers(&parent.words(), commands)
    };
    WORKER_STARTERS.iter().any(is_it)
}

/// Returns whether this is a command line of one of the commands, or of any, that asks for several
/// workers. A number that is not there is 1; one that has to be counted, such as `auto`, may be
/// any.
fn asks_for_workers(words: &[String], commands: &[&str]) -> bool {
    let command = words.iter().take_while(|word| *word != "--");
    let command = command.clone().position(|word| commands.contains(&word.as_str()));
    let rest = match command {
        None if !commands.is_empty() => return false,
        command => &words[command.map_or(0, |command| command + 1)..],
    };
    // torchrun's nodes may be a range.
    let is_several = |value: &str| !["1", "1:1"].contains(&value);
    options(rest)
        .any(|(name, value)| SIZES.contains(&&*name.replace('_', "-")) && is_several(value))
}

/// Returns the long options before `--`, each with its value or the word after it.
fn options(words: &[String]) -> impl Iterator<Item = (&str, &str)> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let words = &words[..end];
    words.iter().enumerate().filter_map(|(at, word)| {
        let option = word.strip_prefix("--")?;
        let after = || (option, words.get(at + 1).map_or("", String::as_str));
        Some(option.split_once('=').unwrap_or_else(after))
    })
}

/// Returns the place that these variables give, if any launcher does.
fn placed(environment: &Environment) -> Option<ClusterInfo> {
    // Most parents have no launcher's variables, and to read a place takes much longer than this.
    let detected = markers(environment).next()?;
    let settings = [overrides::LAUNCHER, CONTEXT];
    if detected.launcher == Launcher::Alone && !settings.iter().any(|name| environment.is_set(name))
    {
        return None;
    }
    // The place is all that is wanted: another process's secret is none of this one's business.
    let ignored = [overrides::TOKEN, overrides::TOKEN_FILE, overrides::REQUIRE_LAUNCHER];
    let environment = environment.with(ignored.map(|name| (name, None)));
    let info = ClusterInfo::from_environment(&environment).ok()?;
    (info.launcher() != Launcher::Alone).then_some(info)
}

/// Returns whether the process is an mpiexec that starts one process. On its own host, Hydra's
/// proxy is its child.
fn mpiexec_starts_one(above: &Process) -> bool {
    let programs = ["mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpirun_rsh"];
    above.runs(&programs).is_some() && starts_one(&above.words())
}

/// Returns whether a command line of mpirun asks for one process.
fn starts_one(words: &[String]) -> bool {
    let mut after_option = 0;
    for (index, word) in words.iter().enumerate().skip(1) {
        if COUNTS.contains(&word.as_str()) {
            let is_one = words.get(index + 1).is_some_and(|count| count == "1");
            // A colon begins another program of the same job.
            return is_one && !words.iter().any(|word| word == ":");
        }
        after_option = if word.starts_with('-') { 0 } else { after_option + 1 };
        // An option has at most two values. The words of the program come next.
        if index == 1 && after_option > 0 || after_option > 2 {
            return false;
        }
    }
    false
}

fn lost(what: String) -> Finding {
    Finding::warning(
        "variables-lost",
        format!("{what}, and no launcher's variables are set"),
        "something in between has cleared the environment: mpienv treats this process as the only one, and if the job \
              has more, each of them becomes rank 0",
        format!(
            "keep the launcher's variables: remove `env -i`, use `sudo -E` instead of `sudo`, run `apptainer exec` without \
             --cleanenv; or set {BY_ITSELF}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn only_a_command_line_that_asks_for_one_process_starts_one() {
        for (line, expected) in [
            ("mpirun -n 1 app", true),
            ("mpirun --mca btl self -np 1 app -n 4", true),
            ("mpiexec -H a --oversubscribe -n 1 app", true),
            ("mpirun -n 2 app", false),
            ("mpirun app -n 1", false),
            ("mpirun -n 1 a : -n 3 b", false),
            ("mpirun", false),
            ("mpirun -n", false),
            ("sh -c x", false),
        ] {
            assert_eq!(starts_one(&words(line)), expected, "{line}");
        }
    }

    #[test]
    fn a_command_line_that_asks_for_several_workers_starts_them() {
        for (line, expected) in [
            ("mpienv launch --nproc-per-node 2 -- a", true),
            ("mpienv launch --nproc_per_node=2 -- a", true),
            ("mpienv launch --nproc-per-node auto -- a", true),
            ("mpienv launch --nproc-per-node 1 --nnodes 2 --node-rank 1 -- a", true),
            ("mpienv simulate --ppn 2 -- a", true),
            ("python torchrun --standalone --nproc-per-node=2 train.py", true),
            ("python torchrun --nnodes 1:4 train.py", true),
            ("pt_elastic --nproc-per-node 2 train.py", true),
            ("mpienv launch --nproc-per-node 1 -- a --nproc-per-node 2", false),
            ("mpienv simulate -- a", false),
            ("mpienv exec --nnodes 2 -- a", false),
            ("mpienv launch --nproc-per-node=1", false),
            ("python torchrun --nnodes=1:1 --nproc-per-node 1 train.py", false),
            ("python torchrun train.py", false),
        ] {
            let mut starters = WORKER_STARTERS.iter();
            let (_, commands) = starters.find(|(program, _)| line.contains(program)).unwrap();
            assert_eq!(asks_for_workers(&words(line), commands), expected, "{line}");
        }
    }
}
