//! What mpienv leaves in the environment of the programs that it starts. It shows a process whether
//! another launcher has started it since.
//!
//! `MPIENV_CONTEXT` names the selected launcher, and holds a hash of every variable that may number
//! a process or a job at that moment. If a variable has another value now, a launcher in between has
//! set it, and that launcher is the innermost.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::answer::{Answer, PMIX_RANK};
use crate::cluster::discover::foreign;
use crate::environment::Environment;
use crate::error::Error;
use crate::launcher::placement::Placement;
use crate::launcher::starter::Starter;
use crate::launcher::{Launcher, VARIABLES, batch, flux, is_shared, markers, pbs, slurm};
use crate::value::job::fnv_1a;
use crate::value::port::Port;
use crate::value::rank::Rank;
use crate::value::sourced::by;

/// The variable's name. Only mpienv writes it.
pub(crate) const CONTEXT: &str = "MPIENV_CONTEXT";

/// Which of the launcher's servers has named the master, here or in an outer process of this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// The one of MPICH, Intel MPI, MVAPICH and Flux.
    Pmi,
    /// The one of Open MPI, PRRTE and Slurm.
    Pmix,
}

impl Server {
    const ALL: [Server; 2] = [Server::Pmi, Server::Pmix];

    /// The source of what the server has said.
    pub(crate) fn source(self) -> &'static str {
        match self {
            Server::Pmi => "PMI",
            Server::Pmix => "the launcher's PMIx server",
        }
    }

    /// The source of the master.
    pub(crate) fn master(self) -> String {
        format!("{}: rank 0's host", self.source())
    }

    /// Returns the server that has named a master of this source.
    pub(crate) fn of_master(source: &str) -> Option<Server> {
        Server::ALL.into_iter().find(|server| server.master() == source)
    }

    /// How the text of a context names it, and a command line of mpienv's own.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Server::Pmi => "pmi",
            Server::Pmix => "pmix",
        }
    }
}

/// The version of the format. Other versions of mpienv may write another one.
const FORM: &str = "1";

/// The source of the place of a process around this one.
pub(crate) const AROUND: &str = "mpienv, around this process";
/// The word before a rank that shares its node, or may, and before one that has a node to itself.
const ONE_OF_RANKS: &str = "rank";
const ONE_OF_NODES: &str = "node-rank";
/// The value of `binding` for a program that keeps the launcher's binding to cores.
const KEPT: &str = "kept";
/// The value of `chosen` for a port that mpienv has chosen.
const PORT: &str = "port";
/// The value of `several` for a process that is probably one of several.
const PROBABLY: &str = "probably";
/// The value of `alone` for a process by itself that a user asked for.
const ASKED: &str = "asked";

/// Variables as they were at one moment: name -> hash of the value. Unset variables are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen(BTreeMap<String, u64>);

impl Seen {
    /// Records every variable that may number a process or a job, as they are now.
    pub(crate) fn now(environment: &Environment) -> Seen {
        let hashed = |name: &str| Some((name.to_owned(), current(environment, name)?));
        Seen(may_number(environment).filter_map(hashed).collect())
    }

    /// Records that the variable is set to this value, or unset.
    pub(crate) fn put(&mut self, name: &str, value: Option<&str>) {
        match value {
            Some(value) => drop(self.0.insert(name.to_owned(), hash(value.as_bytes()))),
            None => drop(self.0.remove(name)),
        }
    }

    /// Records the process that started each launcher's ranks on this node. MPICH gives the ranks of
    /// two jobs the same variables.
    pub(crate) fn put_starters(&mut self, environment: &Environment) {
        for marker in markers(environment) {
            let starter = Starter::of(marker.launcher, environment);
            self.0.extend(starter.map(|starter| (starter_of(marker.launcher), starter.born())));
        }
    }

    /// Returns whether another process than the recorded one has started the launcher's ranks, and
    /// not before it: a process whose parents have exited may be below an outer launcher.
    pub(crate) fn has_newer_starter(&self, launcher: Launcher, environment: &Environment) -> bool {
        let starter = || Starter::of(launcher, environment);
        let recorded = self.0.get(&starter_of(launcher));
        recorded.is_some_and(|&born| starter().is_some_and(|starter| starter.born() > born))
    }

    /// Returns whether a variable is recorded and has the same value now.
    pub(crate) fn is_known(&self, environment: &Environment, name: &str) -> bool {
        current(environment, name).is_some_and(|hash| self.0.get(name) == Some(&hash))
    }

    /// Returns the environment without what was there before: the variables with the first word of one
    /// that is recorded and has the same value. Empty if none was set or changed since.
    ///
    /// The variables of one launcher have their first word in common. If one of them is new, the
    /// others are its own too, although they may have the values that they had.
    pub(crate) fn since(&self, environment: &Environment) -> Environment {
        // Users set some of Slurm's variables for a later srun.
        let is_input = |name: &str| Launcher::Slurm.spec().outside.contains(&name);
        let is_new = |name: &&str| self.is_changed(environment, name) && !is_input(name);
        let new: Vec<&str> = may_number(environment).filter(is_new).collect();
        if new.is_empty() {
            return Environment::default();
        }
        let words: BTreeSet<&str> = new.iter().map(|name| first_word(name)).collect();
        // A number in other words, such as `MPI_RANK`, is not of the launcher whose variables have
        // the same first word.
        let of_launchers = new.iter().filter(|name| is_of_launcher(name));
        let of_launchers: BTreeSet<&str> = of_launchers.map(|name| first_word(name)).collect();
        // What several launchers set, such as `NODE_RANK`, shows nothing about other names.
        let known = self.0.keys().filter(|name| !is_shared(name));
        let known: BTreeSet<&str> = known.map(|name| first_word(name)).collect();
        let is_left = |name: &&str| {
            let word = first_word(name);
            let new = if is_of_launcher(name) { &of_launchers } else { &words };
            !new.contains(word) && (known.contains(word) || self.is_known(environment, name))
        };
        let left: Vec<&str> = environment.names().filter(is_left).collect();
        environment.with(left.into_iter().map(|name| (name, None)))
    }

    /// Returns whether a variable was set or changed since. A variable that is merely gone proves
    /// nothing.
    pub(crate) fn is_changed(&self, environment: &Environment, name: &str) -> bool {
        current(environment, name).is_some_and(|hash| self.0.get(name) != Some(&hash))
    }
}

/// Variables that number a process or its job, besides those of launchers and batch systems.
const OTHERS: [&str; 6] =
    [PMIX_RANK, flux::ENCLOSING, pbs::TASK, slurm::OLD_JOB_ID, batch::SGE_HOSTS, batch::SGE_SLOTS];

/// The variables that may number a process or a job.
fn may_number<'a>(environment: &'a Environment) -> impl Iterator<Item = &'a str> {
    let jobs = batch::jobs().map(|job| -> &'a str { job });
    VARIABLES.iter().copied().chain(OTHERS).chain(jobs).chain(foreign::names(environment))
}

/// The name under which the process that started a launcher's ranks is recorded. No variable has it.
fn starter_of(launcher: Launcher) -> String {
    format!("starter-of-{launcher}")
}

fn is_of_launcher(name: &str) -> bool {
    VARIABLES.contains(name) || OTHERS.contains(&name) || batch::jobs().any(|job| job == name)
}

fn first_word(name: &str) -> &str {
    match name.split('_').next().unwrap_or_default() {
        // Grid Engine's, besides `PE_HOSTFILE`.
        "PE" | batch::SGE_HOSTS | batch::SGE_SLOTS => "SGE",
        word => word,
    }
}

fn current(environment: &Environment, name: &str) -> Option<u64> {
    environment
        .get(name)
        .filter(|_| environment.is_set(name))
        .map(|value| hash(value.as_encoded_bytes()))
}

fn hash(value: &[u8]) -> u64 {
    // Half of the digits suffice to detect a change.
    fnv_1a(value.trim_ascii()) & 0xffff_ffff
}

/// What mpienv chose in the process that started this one, that started a parent of it, or that
/// became it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub launcher: Launcher,
    /// The `MASTER_ADDR` that it set, if that belongs to its job alone.
    pub master_addr: Option<String>,
    /// The same for `MASTER_PORT`.
    pub master_port: Option<String>,
    /// Whether no user and no platform has chosen that port.
    pub is_port_chosen: bool,
    /// The job's token, if no variable holds it.
    pub token: Option<String>,
    /// Which of the launcher's servers it has asked for the `MASTER_ADDR`.
    pub server: Option<Server>,
    /// The rank, if there are several, and whether each of several nodes has one.
    pub place: Option<(Rank, bool)>,
    /// The number of the node and the number of nodes, if it has asked for them.
    pub node: Option<Rank>,
    /// The same for the local rank and the local size.
    pub local: Option<Rank>,
    pub seen: Seen,
    /// The codes of the warnings that it printed.
    pub said: Vec<String>,
    /// Whether this process is probably one of several that each belong to a job of their own.
    pub is_one_of_several: bool,
    /// Whether the program keeps the launcher's binding to cores.
    pub keeps_binding: bool,
    /// Whether a user asked for a process by itself.
    pub is_asked_alone: bool,
}

impl Context {
    pub(crate) fn find(environment: &Environment) -> Result<Option<Context>, Error> {
        let Some(text) = environment.setting_text(CONTEXT)? else { return Ok(None) };
        let unreadable = || {
            let reason = "not in the form that this version of mpienv writes";
            let remedy = format!("unset {CONTEXT}; mpienv sets it, and nothing else should");
            Error::new(reason, remedy).of(CONTEXT).found(text)
        };
        Context::parse(text).map(Some).ok_or_else(unreadable)
    }

    /// Returns where it placed the process around this one, if that was one of several, and no batch
    /// job was submitted since.
    pub(super) fn around(&self, environment: &Environment) -> Option<Placement> {
        let mut jobs = batch::jobs().chain(["SLURM_JOB_ID"]);
        let (rank, is_node) = self.place?;
        if jobs.any(|job| self.seen.is_changed(environment, job)) {
            return None;
        }
        let mut placement =
            Placement::new(self.launcher, by(AROUND, rank.index()), by(AROUND, rank.size()))
                .ok()?;
        if is_node {
            placement.local_rank = by(AROUND, Some(0));
            placement.local_size = by(AROUND, Some(1));
            placement.node_count = by(AROUND, Some(rank.size()));
        }
        Some(placement)
    }

    /// Returns what the launcher's server has said about the node and the place on it.
    pub(super) fn answer(&self) -> Option<Answer> {
        Some(Answer {
            node_rank: self.node.map(Rank::index),
            node_count: self.node.map(Rank::size),
            local_rank: self.local.map(Rank::index),
            local_size: self.local.map(Rank::size),
            ..Answer::of(self.server?)
        })
    }

    /// Returns whether mpienv has chosen this port, and not a user or a platform.
    pub(super) fn has_chosen_port(&self, port: Port) -> bool {
        self.is_port_chosen && self.master_port == Some(port.to_string())
    }

    pub(crate) fn parse(text: &str) -> Option<Context> {
        let (text, token) = match text.split_once(" token=") {
            Some((text, token)) => (text, Some(token.to_owned())),
            None => (text, None),
        };
        let mut words = text.split(' ');
        if words.next()? != FORM {
            return None;
        }
        let mut context = Context {
            launcher: words.next()?.parse().ok()?,
            master_addr: None,
            master_port: None,
            is_port_chosen: false,
            token,
            server: None,
            place: None,
            node: None,
            local: None,
            seen: Seen::default(),
            said: Vec::new(),
            is_one_of_several: false,
            keeps_binding: false,
            is_asked_alone: false,
        };
        for word in words {
            match word.split_once('=') {
                Some(("addr", host)) => context.master_addr = Some(host.to_owned()),
                Some(("port", port)) => context.master_port = Some(port.to_owned()),
                Some(("chosen", PORT)) => context.is_port_chosen = true,
                Some(("from", from)) => {
                    context.server = Server::ALL.into_iter().find(|server| server.word() == from);
                }
                Some((ONE_OF_RANKS, rank)) => context.place = Some((rank_of(rank)?, false)),
                Some((ONE_OF_NODES, rank)) => context.place = Some((rank_of(rank)?, true)),
                Some(("node", node)) => context.node = Some(rank_of(node)?),
                Some(("local", local)) => context.local = Some(rank_of(local)?),
                Some(("said", codes)) => {
                    context.said = codes.split(',').map(str::to_owned).collect()
                }
                Some(("several", PROBABLY)) => context.is_one_of_several = true,
                Some(("binding", KEPT)) => context.keeps_binding = true,
                Some(("alone", ASKED)) => context.is_asked_alone = true,
                _ => {
                    let (name, hash) = word.split_once(':')?;
                    context.seen.0.insert(name.to_owned(), u64::from_str_radix(hash, 16).ok()?);
                }
            }
        }
        Some(context)
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = format!("{FORM} {}", self.launcher);
        let numbers = |rank: Rank| format!("{}/{}", rank.index(), rank.size());
        for (name, value) in [
            ("addr", self.master_addr.clone()),
            ("port", self.master_port.clone()),
            ("chosen", self.is_port_chosen.then(|| PORT.to_owned())),
            ("from", self.server.map(|server| server.word().to_owned())),
            (
                if self.place.is_some_and(|(_, is_node)| is_node) {
                    ONE_OF_NODES
                } else {
                    ONE_OF_RANKS
                },
                self.place.map(|(rank, _)| numbers(rank)),
            ),
            ("node", self.node.map(numbers)),
            ("local", self.local.map(numbers)),
            ("said", Some(self.said.join(",")).filter(|said| !said.is_empty())),
            ("several", self.is_one_of_several.then(|| PROBABLY.to_owned())),
            ("binding", self.keeps_binding.then(|| KEPT.to_owned())),
            ("alone", self.is_asked_alone.then(|| ASKED.to_owned())),
        ] {
            text += &value.map(|value| format!(" {name}={value}")).unwrap_or_default();
        }
        for (name, hash) in &self.seen.0 {
            text += &format!(" {name}:{hash:08x}");
        }
        // The token comes last, because it may contain anything.
        text += &self.token.as_ref().map(|token| format!(" token={token}")).unwrap_or_default();
        text
    }
}

/// Parses a number and the number of its kind: `1/4`.
fn rank_of(text: &str) -> Option<Rank> {
    let (index, size) = text.split_once('/')?;
    Rank::new(index.parse().ok()?, size.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_read_as_it_was_written() {
        let environment =
            Environment::from_vars([("PMI_RANK", " 1 "), ("PMI_SIZE", "2"), ("PMI_ID", " ")]);
        let seen = Seen::now(&environment);
        assert_eq!(seen.0.keys().collect::<Vec<_>>(), ["PMI_RANK", "PMI_SIZE"]);
        let (master_addr, master_port) =
            (Some("fe80::1%eth0".to_owned()), Some("29500".to_owned()));
        let token = Some("ƒ2 x token=y".to_owned());
        let said = vec!["master-not-here".to_owned(), "port-in-use".to_owned()];
        let context = Context {
            launcher: Launcher::Hydra,
            master_addr,
            master_port,
            is_port_chosen: true,
            token,
            server: Some(Server::Pmix),
            place: Rank::new(3, 4).ok().map(|rank| (rank, true)),
            node: Rank::new(1, 2).ok(),
            local: Rank::new(3, 4).ok(),
            seen,
            said,
            is_one_of_several: true,
            keeps_binding: true,
            is_asked_alone: true,
        };
        assert_eq!(Context::parse(&context.to_text()), Some(context));
        for bad in ["1", "2 user", "1 nobody", "1 user RANK", "1 user RANK:x", "user", "1  user"] {
            assert_eq!(Context::parse(bad), None, "{bad}");
        }
    }
}
