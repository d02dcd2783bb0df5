//! How many threads the libraries of each rank start.

use crate::{ClusterInfo, Environment, Error, Finding, Launcher, Reason, Threads};
use clap::Args;

use crate::command::check::measurement::or_dash;
use mpienv_core::seam::{Plan, PlanOptions, ThreadCount};
use mpienv_launch::seam::{Share, share_of_rank};
use serde_json::{Value, json};

/// The option's name.
const OPTION: &str = "--threads";
/// The variable with the same meaning.
const VARIABLE: &str = "MPIENV_THREADS";
/// Why there is no share.
const UNKNOWN: &str = "the launcher does not provide the number of ranks on this node";
/// No host has as many cores.
const MOST: u32 = 1 << 16;

/// The number of threads of each rank.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct ThreadsOption {
    /// Set OMP_NUM_THREADS and RAYON_NUM_THREADS: a number, `share` or `keep` [env: MPIENV_THREADS]
    ///
    /// share: the cores that the ranks of this node may use, divided by the number of these ranks,
    /// at least 1, and no more than the cores to which the rank is bound. The cores are those of
    /// the affinity mask, within the cgroup's cpu.max; hardware threads of one core count once.
    /// keep: the variables stay as they are. A number and share replace values that are set.
    /// Without this option, exec and launch set each of the two that is not set to the share, as
    /// far as it is known. exec does not if there is no launcher, with --per-node, with --template
    /// for the only rank of a node, and if the command is itself a launcher; export does not.
    #[arg(long, value_name = "N", value_parser = parse)]
    threads: Option<Threads>,
}

/// Parses the value for clap.
fn parse(text: &str) -> Result<Threads, String> {
    match (text, text.parse()) {
        ("share", _) => Ok(Threads::Share),
        ("keep", _) => Ok(Threads::Keep),
        (_, Ok(number)) if (1..=MOST).contains(&number) => Ok(Threads::Number(number)),
        _ => Err(format!("expected a whole number from 1 to {MOST}, share or keep")),
    }
}

/// What the user asks for, and by which option or variable.
pub(super) type Chosen = Option<(Threads, &'static str)>;

/// What the number of threads depends on besides the place.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Runs {
    /// Whether the program keeps the launcher's binding to cores.
    pub keeps_binding: bool,
    /// Whether it starts other processes, which divide the node's cores by themselves.
    pub is_starter: bool,
}

impl ThreadsOption {
    /// Returns what the user asks for. Commands without the option read the variable.
    pub(super) fn chosen(self, environment: &Environment) -> Result<Chosen, Error> {
        if let Some(threads) = self.threads {
            return Ok(Some((threads, OPTION)));
        }
        let Some(text) = environment.get(VARIABLE).filter(|_| environment.is_set(VARIABLE)) else {
            return Ok(None);
        };
        let text = text.to_string_lossy();
        let wrong = |reason| {
            let remedy = format!("correct or unset {VARIABLE}");
            Error::new(Reason::Malformed(reason), remedy).of(VARIABLE).found(&*text)
        };
        parse(text.trim()).map(|threads| Some((threads, VARIABLE))).map_err(wrong)
    }

    /// Decides how many threads this rank's program gets.
    pub(super) fn share(self, info: &ClusterInfo, runs: Runs) -> Result<ThreadShare, Error> {
        let Runs { keeps_binding, is_starter } = runs;
        let chosen = self.chosen(info.environment())?;
        let share = share_of_rank(info, info.environment(), keeps_binding);
        if let (Some((Threads::Share, by)), None) = (chosen, &share) {
            let reason = Reason::Malformed(UNKNOWN.to_owned());
            let remedy = format!("give a number, as in {OPTION} 4, or keep");
            return Err(Error::new(reason, remedy).of(by).found("share"));
        }
        let is_shared = info.launcher() != Launcher::Alone && !is_starter;
        let number = share.as_ref().map(|share| share.threads);
        let number = number.filter(|_| is_shared || chosen.is_some());
        let count = Threads::count(chosen.map(|(threads, _)| threads), number);
        Ok(ThreadShare { chosen, count, users: info.users_threads(), share, is_starter })
    }

    /// Decides for a shell, which keeps its binding, and whose variables are set only by the option.
    pub(super) fn in_shell(self, info: &ClusterInfo) -> Result<Option<ThreadCount>, Error> {
        let runs = Runs { keeps_binding: true, is_starter: false };
        self.threads.map_or(Ok(None), |_| Ok(self.share(info, runs)?.count))
    }
}

/// How many threads this rank's program gets, and why.
#[derive(Debug)]
pub(super) struct ThreadShare {
    chosen: Chosen,
    pub(super) count: Option<ThreadCount>,
    /// The user's own `OMP_NUM_THREADS`.
    users: Option<usize>,
    /// `None` if the launcher does not provide the number of ranks on this node.
    share: Option<Share>,
    is_starter: bool,
}

impl ThreadShare {
    /// Returns the number that `exec` sets for a program that starts no others.
    fn set(&self, info: &ClusterInfo) -> Option<u32> {
        Plan::new(info, &PlanOptions { threads: self.count, ..PlanOptions::default() }).threads
    }

    /// Reports far more threads than cores, if the user chose their number.
    pub(super) fn finding(&self) -> Option<Finding> {
        let share = self.share.as_ref().filter(|_| !self.is_starter);
        too_many(self.chosen, self.users, share?)
    }

    /// Returns the row of a table: the number of threads and its source.
    pub(super) fn row(&self, info: &ClusterInfo) -> [String; 3] {
        let set = self.set(info);
        let number = set.map(|set| set as usize).or(self.users);
        ["threads".to_owned(), or_dash(number), self.source(set)]
    }

    /// Returns where the number comes from, of which `exec` sets `set`.
    fn source(&self, set: Option<u32>) -> String {
        match (self.chosen, set, &self.share) {
            (Some((Threads::Number(_), by)), ..) => by.to_owned(),
            (Some((Threads::Keep, by)), ..) => format!("{by}=keep"),
            (_, Some(set), Some(share)) if set == share.threads => share.to_string(),
            (_, Some(_), _) => "the share of the process that an outer mpienv started".to_owned(),
            (_, None, None) => UNKNOWN.to_owned(),
            (_, None, Some(share)) if self.count.is_some() => {
                format!("OMP_NUM_THREADS; the share is {} {share}", share.threads)
            }
            (_, None, Some(_)) => "set only under a launcher".to_owned(),
        }
    }

    /// Returns what `show --json` prints of the threads.
    pub(super) fn object(&self, info: &ClusterInfo) -> Value {
        let (set, share) = (self.set(info), self.share.as_ref());
        json!({
            // What `exec` sets `OMP_NUM_THREADS` to; null if it sets nothing.
            "number": set,
            // Where the number of the text output comes from.
            "source": self.source(set),
            // This rank's share of the cores that the ranks of this node may use together.
            "share": share.map(|share| share.threads),
            "cores": share.map(|share| share.allowed.cores),
            "ranks": share.map(|share| share.ranks),
            // The processors that the program may use under `exec`.
            "cpus": share.map(|share| share.cpus().iter().collect::<Vec<_>>()),
        })
    }
}

/// Reports that the ranks of this node start more than twice as many threads as they have cores, if
/// the user chose their number by an option or a variable.
pub(super) fn too_many(chosen: Chosen, users: Option<usize>, share: &Share) -> Option<Finding> {
    let (threads, source) = match chosen {
        Some((Threads::Number(number), by)) => (usize::try_from(number).ok()?, by),
        Some((Threads::Share, _)) => return None,
        _ => (users?, "OMP_NUM_THREADS"),
    };
    let (ranks, cores) = (share.ranks, share.allowed.at_once());
    let all = threads.saturating_mul(ranks as usize);
    if all <= 2 * cores as usize {
        return None;
    }
    Some(Finding::warning(
        "too-many-threads",
        format!(
            "{source} is {threads}: the {ranks} ranks of this node start {all} threads on {cores} cores"
        ),
        "threads that wait for each other's core make every rank several times slower",
        format!("use {}, which is a rank's share, or unset OMP_NUM_THREADS", share.threads),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_none_says_what_there_is() {
        assert_eq!(parse("share"), Ok(Threads::Share));
        assert_eq!(parse("keep"), Ok(Threads::Keep));
        assert_eq!(parse("3"), Ok(Threads::Number(3)));
        for bad in ["", "0", "-1", "1.5", "all", "Share", "65537", "99999999999"] {
            let expected = "expected a whole number from 1 to 65536, share or keep";
            assert_eq!(parse(bad), Err(expected.to_owned()), "{bad}");
            let environment = Environment::from_vars([(VARIABLE, bad)]);
            match ThreadsOption::default().chosen(&environment) {
                Ok(chosen) => assert_eq!((chosen, bad), (None, "")),
                Err(error) => assert_eq!(
                    error.to_string(),
                    format!("{VARIABLE}={bad:?}: {expected}; correct or unset {VARIABLE}")
                ),
            }
        }
    }
}
