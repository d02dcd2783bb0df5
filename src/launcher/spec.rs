//! What there is to say of a launcher, besides how its variables are read.

use crate::environment::{Environment, ReadError, Variable, Variables};
use crate::error::{Error, Reason, quote};
use crate::launcher::Launcher;
use crate::launcher::sample::Sample;
use crate::value::host::{Host, HostError};
use crate::value::placement::Placement;

/// The master's variables: most launchers leave them to the person who starts the job.
pub(crate) const MASTER: &[&str] = &["MASTER_ADDR", "MASTER_PORT"];

/// One launcher: everything that the rest of the crate says about it is derived from here.
#[cfg_attr(
    not(any(feature = "cli", feature = "testing")),
    expect(dead_code, reason = "only simulate reads the samples")
)]
pub(crate) struct LauncherSpec {
    /// The name for machines: in JSON, in `MPIENV_LAUNCHER`.
    pub name: &'static str,
    /// The name for people.
    pub title: &'static str,
    /// The variables that are read, one table for each struct.
    pub variables: &'static [&'static [Variable]],
    /// The variable that shows this launcher. Half of a pair is enough: reading it is then the error.
    pub marker: fn(&Environment) -> Option<&'static str>,
    /// One that other launchers set too: it counts once none of them has been found.
    pub shared_marker: Option<fn(&Environment) -> Option<&'static str>>,
    pub read: fn(&Environment, Marker) -> Result<Placement, Error>,
    pub starts: Starts,
    pub advice: Advice,
    pub mpi: MpiFamily,
    pub nested: Nested,
    /// A job of each version that sets other variables.
    pub samples: &'static [Sample],
}

/// What remedies say of a launcher's command.
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "only doctor reads some of the fields"))]
pub(crate) struct Advice {
    /// How to start a process.
    pub start: &'static str,
    /// How to start one process on each node.
    pub one_per_node: &'static str,
    /// How to give rank 0's host to all ranks.
    pub give_master: &'static str,
    /// How to start processes that are not bound to cores; `None` if the launcher binds none.
    pub unbind: Option<&'static str>,
    /// How to start processes that each see a device; `None` if the launcher does not assign devices.
    pub devices: Option<&'static str>,
}

impl Advice {
    /// That of a platform, which has no command.
    pub(crate) const PLAIN: Advice = Advice {
        start: "start the process by itself",
        one_per_node: "one container or pod with one process on each",
        give_master: "MASTER_ADDR=HOST",
        unbind: None,
        devices: None,
    };
}

/// How many processes a launcher starts, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Starts {
    /// Any number on each node, by a command that any process can run.
    Processes,
    /// One on each node, before anything else runs there: a platform.
    OnePerNode,
    /// Any number, on one node.
    OneNode,
    /// One in all.
    One,
}

/// Which MPI's programs a launcher starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MpiFamily {
    /// Open MPI's.
    OpenMpi,
    /// Those of IBM Spectrum MPI, which is made of Open MPI.
    Spectrum,
    /// Those of MPICH and its kin.
    Mpich,
    /// As a rule Cray's MPICH; others meet the launcher too.
    CrayMpich,
    /// Any whose PMI the launcher was asked to serve.
    Pmi,
    /// The same; `SLURM_MPI_TYPE` says whether it is PMIx.
    PmiOrPmix,
    /// None.
    None,
}

/// What tells one job from another that is started inside it.
pub(crate) struct Nested {
    /// Variables that tell a process's place on its node, which the workers that it starts must not inherit.
    pub local: &'static [&'static str],
    /// Variables of other launchers that this one may set too, and that are not read here.
    pub also_sets: &'static [&'static str],
    /// A variable that differs in every job, and those that come with it, none of which another version sets.
    pub identity: Option<(&'static str, &'static [&'static str])>,
    /// What a process may have inherited from an outer job because this launcher does not always set it.
    pub may_inherit: &'static [&'static str],
    /// Whether each process gets a new value of a variable that no other launcher sets.
    pub is_always_seen: bool,
    /// What is also set where this launcher has started nothing: settings of people, and names of the surroundings.
    pub outside: &'static [&'static str],
    /// The programs that start all of a job's processes on one node, by their files' names; none where they are not known.
    pub starters: &'static [&'static str],
}

impl Nested {
    /// A launcher that sets only variables of its own, and not the master's.
    pub(crate) const PLAIN: Nested = Nested {
        local: &[],
        also_sets: &[],
        identity: None,
        may_inherit: MASTER,
        is_always_seen: false,
        outside: &[],
        starters: &[],
    };
}

impl LauncherSpec {
    /// The variables that are read.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &'static Variable> + use<> {
        self.variables.iter().copied().flatten()
    }

    /// Whether the master's variables are this launcher's own, and not an outer job's.
    pub(crate) fn sets_master(&self) -> bool {
        !MASTER.iter().any(|name| self.nested.may_inherit.contains(name))
    }
}

/// The variable that showed which launcher started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    pub launcher: Launcher,
    pub variable: &'static str,
}

impl Marker {
    /// The launcher's variables.
    pub(crate) fn read<T: Variables>(self, environment: &Environment) -> Result<T, Error> {
        environment.read().map_err(|error| self.unreadable(environment, error))
    }

    /// The error of a variable that is missing besides the marker.
    pub(crate) fn missing(self, environment: &Environment, name: &str) -> Error {
        self.unreadable(environment, ReadError::Missing { name: name.to_owned() })
    }

    /// The same, with what to do about it.
    pub(crate) fn missing_with(self, environment: &Environment, name: &'static str, remedy: &'static str) -> Error {
        let beside = self.display_variable(environment);
        Error::new(Reason::Missing { beside }, remedy).by(self.launcher).of(name)
    }

    /// The error of a process whose rank does not follow from what its platform tells.
    pub(crate) fn cannot_place(self, why: &str, variable: &'static str, value: &str) -> Error {
        let reason = Reason::Malformed(format!("the rank does not follow from it: {why}"));
        let remedy = "set RANK, WORLD_SIZE and MASTER_ADDR, or MPIENV_LAUNCHER=alone for a process by itself";
        Error::new(reason, remedy).by(self.launcher).of(variable).found(value)
    }

    fn unreadable(self, environment: &Environment, error: ReadError) -> Error {
        Error::read(self, error, || self.display_variable(environment))
    }

    /// The error of a value that its variable cannot have.
    pub(crate) fn refuse(self, reason: impl Into<Reason>, variable: &str, value: &str) -> Error {
        Error::of_launcher(self.launcher, reason, variable).found(value)
    }

    /// The host that a variable names.
    pub(crate) fn host(self, variable: &str, text: &str) -> Result<Host, Error> {
        text.parse().map_err(|error: HostError| self.refuse(error, variable, text))
    }

    /// The marker with its value, as the source of the choice.
    pub(crate) fn display_variable(self, environment: &Environment) -> String {
        match self.launcher {
            Launcher::Alone => self.variable.to_owned(),
            _ => display_variable(environment, self.variable),
        }
    }
}

/// The first of these variables that is set.
pub(crate) fn first_set(environment: &Environment, names: &[&'static str]) -> Option<&'static str> {
    names.iter().copied().find(|name| environment.is_set(name))
}

/// A variable with its value: `OMPI_COMM_WORLD_RANK="3"`.
pub(crate) fn display_variable(environment: &Environment, name: &str) -> String {
    let value = environment.get(name).map(std::ffi::OsStr::to_string_lossy).unwrap_or_default();
    format!("{name}={}", quote(value.trim()))
}
