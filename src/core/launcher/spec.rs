//! The description of a launcher, except how its variables are read.

use std::borrow::Cow;

use crate::environment::{Environment, ReadError, Variable, Variables};
use crate::error::{Error, Reason};
use crate::launcher::Launcher;
use crate::launcher::alone::BY_ITSELF;
use crate::launcher::placement::Placement;
use crate::launcher::sample::Sample;
use crate::value::host::{Host, HostError};
use crate::value::sourced::Sourced;

/// The master's variables: most launchers leave them to the user who starts the job.
pub(crate) const MASTER: [&str; 2] = ["MASTER_ADDR", "MASTER_PORT"];

/// One launcher. Everything that the rest of the crate says about the launcher is derived from this
/// description.
#[derive(Debug)]
pub struct LauncherSpec {
    /// The variables that are read, one table for each struct.
    pub(crate) variables: &'static [&'static [Variable]],
    /// Returns the variable that identifies this launcher. Half of a pair is enough: reading then
    /// reports the error.
    pub(crate) marker: MarkerOf,
    pub(crate) read: fn(Marker<'_>) -> Result<Placement, Error>,
    /// How many processes it starts, and from where.
    pub starts: Starts,
    /// How to start a process.
    pub start: &'static str,
    /// The programs that start a job's processes on all nodes; `None` if no command does.
    pub programs: Option<Programs>,
    /// How to start one process on each node.
    pub one_per_node: &'static str,
    /// How to give rank 0's host to all ranks.
    pub give_master: &'static str,
    /// How to start processes that are not bound to cores; `None` if the launcher binds none.
    pub unbind: Option<&'static str>,
    /// How to start processes that each see a device; `None` if the launcher does not assign
    /// devices.
    pub devices: Option<&'static str>,
    /// The MPI whose programs it starts.
    pub mpi: MpiFamily,
    /// Variables that hold a process's place on its node, which the workers that it starts must not
    /// inherit.
    pub(crate) local: &'static [&'static str],
    /// Variables of other launchers that this one may set too, and that are not read here.
    pub(crate) also_sets: &'static [&'static str],
    /// A variable that differs between jobs, and its companions. No other version of the launcher
    /// sets any of these.
    pub(crate) identity: Option<(&'static str, &'static [&'static str])>,
    /// Variables that a process may have inherited from an outer job, because this launcher does
    /// not always set them.
    pub(crate) may_inherit: &'static [&'static str],
    /// Whether each process gets a new value of a variable that no other launcher sets.
    pub(crate) is_always_seen: bool,
    /// Variables that are set even if this launcher has started nothing: settings of users, names
    /// of the surroundings.
    pub(crate) outside: &'static [&'static str],
    /// The file names of the programs that start all of a job's processes on one node. Empty if
    /// they are not known.
    pub(crate) starters: &'static [&'static str],
    /// A sample job of each version that sets different variables.
    pub(crate) samples: &'static [Sample],
}

/// Returns the variable that identifies a launcher, if it is set.
pub(crate) type MarkerOf = fn(&Environment) -> Option<&'static str>;

/// Programs that start a job's processes on all nodes.
#[derive(Clone, Copy, Debug)]
pub struct Programs {
    /// Their file names, with blanks between them.
    pub names: &'static str,
    /// The subcommands that start processes; empty if the programs always do.
    pub verbs: &'static str,
    /// An example of their options.
    pub options: &'static str,
}

/// How many processes a launcher starts, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starts {
    /// Any number on each node, with a command that any process can run.
    Processes,
    /// One on each node, before anything else runs there: a platform.
    OnePerNode,
    /// Any number on each node, before anything else runs there.
    Slots,
    /// Any number, on one node only.
    OneNode,
    /// One in total.
    One,
}

/// The MPI family whose programs a launcher starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpiFamily {
    /// Open MPI.
    OpenMpi,
    /// IBM Spectrum MPI, which is based on Open MPI.
    Spectrum,
    /// MPICH and related libraries.
    Mpich,
    /// Usually Cray MPICH, but others also find the launcher.
    CrayMpich,
    /// Any library that uses the PMI-1 that the launcher serves unless a user turns it off.
    Pmi,
    /// Any library that uses the PMI or PMIx that the launcher was asked to serve. `SLURM_MPI_TYPE`
    /// shows which.
    PmiOrPmix,
    /// No MPI.
    None,
}

impl LauncherSpec {
    /// A launcher that is read by this function: one that has no command, and sets only its own
    /// variables, and not the master's, as most platforms.
    pub(crate) const fn plain(read: fn(Marker<'_>) -> Result<Placement, Error>) -> LauncherSpec {
        LauncherSpec {
            variables: &[],
            marker: |_| None,
            read,
            starts: Starts::OnePerNode,
            start: "start the process by itself",
            programs: None,
            one_per_node: "one container or pod with one process on each",
            give_master: "MASTER_ADDR=HOST",
            unbind: None,
            devices: None,
            mpi: MpiFamily::None,
            local: &[],
            also_sets: &[],
            identity: None,
            may_inherit: &MASTER,
            is_always_seen: false,
            outside: &[],
            starters: &[],
            samples: &[],
        }
    }

    /// Returns whether the master's variables are this launcher's own, rather than an outer job's.
    pub(crate) fn sets_master(&self) -> bool {
        !MASTER.iter().any(|name| self.may_inherit.contains(name))
    }
}

impl Launcher {
    /// Returns the error for a value that a variable of this launcher cannot have.
    #[doc(hidden)]
    pub fn refuse(self, reason: impl Into<Reason>, variable: &str, value: impl ToString) -> Error {
        let start = self.spec().start;
        let remedy = format!("{start}, or unset {variable} if it is left from another job");
        Error::new(reason, remedy).by(self).of(variable.to_owned()).found(value)
    }

    /// Parses the host that a variable names.
    pub(crate) fn host(self, variable: &str, text: &str) -> Result<Host, Error> {
        text.parse().map_err(|error: HostError| self.refuse(error, variable, text))
    }
}

/// The variable that showed which launcher started the process of an environment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marker<'a> {
    pub environment: &'a Environment,
    pub launcher: Launcher,
    pub variable: &'static str,
}

impl<'a> Marker<'a> {
    /// Returns the same marker of another environment.
    pub(crate) fn of<'b>(self, environment: &'b Environment) -> Marker<'b> {
        Marker { environment, ..self }
    }

    /// Reads what the launcher provides.
    pub(crate) fn placement(self) -> Result<Placement, Error> {
        (self.launcher.spec().read)(self)
    }

    /// Returns whether the variable numbers a process or a node, rather than counting them.
    pub(crate) fn is_of_rank(self) -> bool {
        let mut variables = self.launcher.variables();
        let own = variables.find(|variable| variable.name == self.variable);
        let counts =
            |field: &str| field.contains("size") || ["nodes", "count", "workers"].contains(&field);
        own.is_some_and(|variable| !counts(variable.field))
    }

    /// Creates a placement from a rank and a world size.
    pub(crate) fn place(self, rank: Sourced<u32>, size: Sourced<u32>) -> Result<Placement, Error> {
        Placement::new(self.launcher, rank, size)
    }

    /// Creates the placement of the only process on its node, from the number of the node.
    pub(crate) fn node(self, rank: Sourced<u32>, size: Sourced<u32>) -> Result<Placement, Error> {
        Placement::one_per_node(self.launcher, rank, size)
    }

    /// Reads the launcher's variables.
    pub(crate) fn read<T: Variables>(self) -> Result<T, Error> {
        let launcher = self.launcher;
        T::read(self.environment).map_err(|error| match error {
            ReadError::Missing { name } => self.missing(&name),
            ReadError::NotUnicode { name, value } => self.refuse(Reason::NotUnicode, &name, value),
            ReadError::Invalid { name, value, .. } => self.refuse(Reason::NotANumber, &name, value),
            ReadError::Other(text) => Error::new(text, launcher.spec().start).by(launcher),
        })
    }

    /// Returns the error for a value that a variable of the launcher cannot have.
    pub(crate) fn refuse(self, why: impl Into<Reason>, name: &str, value: impl ToString) -> Error {
        self.launcher.refuse(why, name, value)
    }

    /// Returns the error for a variable that is missing although the marker is set.
    pub(crate) fn missing(self, name: &str) -> Error {
        let start = self.launcher.spec().start;
        let remedy = format!("{start}, or unset {}", self.variable);
        self.missing_with(name.to_owned(), remedy)
    }

    /// Returns the same error with its own remedy.
    pub(crate) fn missing_with(
        self,
        name: impl Into<Cow<'static, str>>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Error {
        let present = self.shown();
        Error::new(Reason::Missing { present }, remedy).by(self.launcher).of(name)
    }

    /// Returns the error for a process whose rank does not follow from its platform's variables.
    pub(crate) fn cannot_place(self, why: &str, variable: &'static str, value: &str) -> Error {
        let remedy = format!("set RANK, WORLD_SIZE and MASTER_ADDR, or {BY_ITSELF}");
        self.unplaced(why, variable, value, remedy)
    }

    /// Returns the error for a process of another role than a rank's.
    pub(crate) fn not_a_rank(self, role: &str, variable: &'static str, value: &str) -> Error {
        let remedy =
            "start processes of this role without mpienv, or set MPIENV_LAUNCHER=alone for them";
        self.unplaced(role, variable, value, remedy.to_owned())
    }

    fn unplaced(self, why: &str, variable: &'static str, value: &str, remedy: String) -> Error {
        let reason = format!("it does not determine the rank: {why}");
        Error::new(reason, remedy).by(self.launcher).of(variable).found(value)
    }

    /// Returns the marker with its value, as the source of the choice.
    pub(crate) fn shown(self) -> String {
        match self.launcher {
            Launcher::Alone => self.variable.to_owned(),
            _ => self.environment.shown(self.variable),
        }
    }
}
