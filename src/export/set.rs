//! The variables that a program reads: PyTorch's, and those of other programs.

mod jax;
mod mindspore;

use std::str::FromStr;

use crate::cluster::info::ClusterInfo;
use crate::cluster::overrides::LAUNCHER;
use crate::environment::Environment;
use crate::error::Error;
use crate::export::Exports;
use crate::launcher::context::CONTEXT;
use crate::launcher::seen;
use crate::value::name::{self, UnknownName};
use crate::value::placement::Launcher;

/// The programs whose variables can be exported.
///
/// | set | sets, in addition to PyTorch's variables | unsets if inherited |
/// | --- | --- | --- |
/// | [`Torch`](Target::Torch) | - | - |
/// | [`MindSpore`](Target::MindSpore) | `MS_WORKER_NUM`, `MS_SCHED_HOST`, `MS_SCHED_PORT`, `MS_NODE_ID`, `MS_ROLE=MS_WORKER` | `OMPI_*`, `PMIX_*`, `PMI_*` |
/// | [`Jax`](Target::Jax) | `JAX_COORDINATOR_ADDRESS`; `OMPI_COMM_WORLD_SIZE`, `_RANK`, `_LOCAL_RANK`, `_LOCAL_SIZE` and `OMPI_MCA_orte_hnp_uri`, if JAX could not find this process's place | - |
///
/// ```
/// use mpienv::Target;
///
/// for &set in Target::ALL {
///     assert_eq!(set.name().parse(), Ok(set));
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Target {
    /// PyTorch and programs that read its variables: [`ClusterInfo::exports`].
    #[default]
    Torch,
    /// Programs written for MindSpore's `msrun`.
    ///
    /// They also need a scheduler: a second process of rank 0's program, with `MS_ROLE=MS_SCHED`.
    /// [`Launch`](crate::Launch) starts it.
    MindSpore,
    /// `jax.distributed.initialize()` without arguments. JAX reads the number of processes and its own number from Open MPI 4
    /// or Slurm. Under other launchers, and in workers, it reads them from Open MPI's variables, which mpienv sets.
    Jax,
}

/// What a set has beside PyTorch's variables.
struct Additions {
    variables: &'static [Addition],
    /// The variables by which the program detects a launcher and reads this process's place, in this environment.
    place: Option<Placing>,
    /// Inherited variables whose names begin so are unset.
    unset: &'static [&'static str],
}

/// A variable's name and its value.
type Addition = (&'static str, fn(&ClusterInfo) -> Result<String, Error>);

/// The launcher variables by which a program reads the place of an info, in an environment.
type Placing = fn(&ClusterInfo, &Environment) -> Result<Variables, Error>;

/// Names with their values.
type Variables = Vec<(&'static str, String)>;

impl Target {
    /// Every set.
    pub const ALL: &'static [Target] = &[Target::Torch, Target::MindSpore, Target::Jax];

    /// The name, as `--for` takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Target::Torch => "torch",
            Target::MindSpore => "mindspore",
            Target::Jax => "jax",
        }
    }

    fn additions(self) -> Additions {
        match self {
            Target::Torch => Additions { variables: &[], place: None, unset: &[] },
            Target::MindSpore => mindspore::ADDITIONS,
            Target::Jax => jax::ADDITIONS,
        }
    }

    /// Returns the variables by which the scheduler differs from rank 0. `None` if the program needs no scheduler.
    pub(crate) fn scheduler(self) -> Option<&'static [(&'static str, Option<&'static str>)]> {
        (self == Target::MindSpore).then_some(mindspore::SCHEDULER)
    }
}

/// By [`name`](Target::name).
impl FromStr for Target {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Target, UnknownName> {
        name::find("program", Target::ALL, Target::name, name)
    }
}

impl ClusterInfo {
    /// Returns the variables that a program reads: those of [`exports`](ClusterInfo::exports), and its own.
    ///
    /// Inherited launcher variables that would mislead the program are unset, as listed in [`Target`].
    ///
    /// ```
    /// use mpienv::{ClusterInfo, Target};
    ///
    /// let info = ClusterInfo::from_vars([
    ///     ("RANK", "1"),
    ///     ("WORLD_SIZE", "2"),
    ///     ("LOCAL_RANK", "0"),
    ///     ("LOCAL_WORLD_SIZE", "1"),
    ///     ("MASTER_ADDR", "fe::1"),
    /// ])?;
    /// let exports = info.exports_for(Target::Jax)?;
    /// assert_eq!(exports.get("JAX_COORDINATOR_ADDRESS"), Some("[fe::1]:6105"));
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`ClusterInfo::exports`]. For [`Target::Jax`] it also returns an error if JAX needs the local rank and
    /// the launcher does not provide it.
    pub fn exports_for(&self, set: Target) -> Result<Exports, Error> {
        let inherited: &Environment = &self.inherited;
        let mut exports = self.exports()?;
        let Additions { variables, place, unset } = set.additions();
        for (name, value) in variables {
            exports.set(*name, value(self)?);
        }
        let place = place.map(|place| place(self, &inherited.with(exports.iter()))).transpose()?.unwrap_or_default();
        let is_placed = !place.is_empty();
        place.into_iter().for_each(|(name, value)| exports.set(name, value));
        let wanted = |name: &&str| unset.iter().any(|prefix| name.starts_with(prefix)) && is_plain(name);
        let names: Vec<_> = inherited.names().filter(wanted).map(str::to_owned).collect();
        // mpienv in a child process cannot detect the launcher by variables that were unset.
        let is_gone = !names.is_empty();
        if is_gone && inherited.is_set(LAUNCHER) && self.leaves_context.is_none() {
            exports.set(LAUNCHER, Launcher::User.name().to_owned());
        }
        names.into_iter().for_each(|name| exports.remove(name));
        // A launcher's variables that are meant for the program only do not reach other processes.
        if let Some(launcher) = self.leaves_context.or(is_placed.then_some(self.launcher)) {
            let launcher = if is_gone { Launcher::User } else { launcher };
            let context = self.context(launcher, seen(&inherited.with(exports.iter())), &exports);
            exports.set(CONTEXT, context.to_text());
        }
        Ok(exports)
    }
}

/// Returns whether every dialect can express this name. Programs do not read variables with other names.
fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
