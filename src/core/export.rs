//! A [`ClusterInfo`] as variables for another program.

mod dialect;
mod set;
pub(crate) mod syntax;
mod template;

pub use dialect::{Dialect, Unrepresentable};
pub(crate) use set::Set;
pub use set::{Target, TargetFile, TargetVariable};
pub use template::{Placeholders, TemplateError};

use std::borrow::Cow;
use std::process::Command;

use crate::cluster::info::ClusterInfo;
use crate::error::Error;
use crate::plan::{self, Options};

impl ClusterInfo {
    /// Returns the variables that PyTorch and compatible programs read, in a fixed order.
    ///
    /// They are `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `NODE_RANK`, `MASTER_ADDR`,
    /// `MASTER_PORT` and `NCCL_SOCKET_IFNAME`, and those of the network interface that
    /// [`ClusterInfo::interface`] returns. Values that are unknown are left out. Variables that
    /// would mislead the program are marked to be unset.
    ///
    /// If a [`ClusterInfoBuilder`](crate::ClusterInfoBuilder) overrides a value, and for
    /// [`workers`](ClusterInfo::workers), the exports also contain `MPIENV_` variables, such as
    /// `MPIENV_CONTEXT`. Reading the exports again then gives the same result. Exporting twice
    /// changes nothing.
    ///
    /// # Errors
    /// Returns an error if the master is unknown: see [`ClusterInfo::master_addr`].
    pub fn exports(&self) -> Result<Exports, Error> {
        plan::of_rank(self, &Options::default())
    }

    /// Returns the variables that a program reads: those of [`exports`](ClusterInfo::exports), and
    /// its own.
    ///
    /// Inherited launcher variables that would mislead the program are unset, as listed in
    /// [`Target`].
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
    /// Same as [`ClusterInfo::exports`]. It also returns an error if the program needs a value that
    /// the launcher does not provide, such as the local rank or the hosts of all ranks, or a file:
    /// only `Launch` and `mpienv exec` write files.
    pub fn exports_for(&self, set: Target) -> Result<Exports, Error> {
        plan::of_program(self, set, &Options::default())
            .and_then(|known| plan::of_shell(set, known))
    }

    /// Returns the node's variables, for a `torchrun` that one process on each node starts.
    ///
    /// They are `NODE_RANK`, `NNODES`, `MASTER_ADDR`, `MASTER_PORT`, torchrun's own
    /// `PET_NODE_RANK`, `PET_NNODES`, `PET_MASTER_ADDR`, `PET_MASTER_PORT`, and
    /// `NCCL_SOCKET_IFNAME`. This process's rank and sizes are unset. `PET_NPROC_PER_NODE` is also
    /// set if the platform provides the number of workers ([`ClusterInfo::workers_per_node`]) and
    /// the user has not set it. `torchrun train.py` then needs no argument. Elsewhere,
    /// `torchrun --nproc-per-node 8 train.py` needs no other argument.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    ///
    /// let info = ClusterInfo::from_vars([
    ///     ("OMPI_COMM_WORLD_RANK", "1"),
    ///     ("OMPI_COMM_WORLD_SIZE", "2"),
    ///     ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    ///     ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ///     ("MASTER_ADDR", "node-0"),
    /// ])?;
    /// let exports = info.per_node_exports()?;
    /// assert_eq!(exports.get("PET_NODE_RANK"), Some("1"));
    /// assert_eq!(exports.get("RANK"), None);
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if this process is not known to be the only one on its node, or if the
    /// master is unknown.
    pub fn per_node_exports(&self) -> Result<Exports, Error> {
        plan::of_node(self, &Options::default())
    }
}

/// Variables to set and to unset, in a fixed order.
///
/// To pass them to a command, use [`Exports::apply_to`], because `Command::envs` cannot unset
/// variables.
///
/// ```
/// use std::process::Command;
///
/// use mpienv::{ClusterInfo, Exports};
///
/// let vars = [("RANK", "0"), ("WORLD_SIZE", "1"), ("TORCHELASTIC_USE_AGENT_STORE", "True")];
/// let exports: Exports = ClusterInfo::from_vars(vars)?.exports()?;
/// assert_eq!(exports.get("RANK"), Some("0"));
/// for (name, value) in exports.iter() {
///     println!("{name}: {}", value.unwrap_or("to be unset"));
/// }
/// let mut python = Command::new("python");
/// exports.apply_to(&mut python);
/// let is_unset = |(name, value): (&std::ffi::OsStr, Option<&std::ffi::OsStr>)| {
///     name == "TORCHELASTIC_USE_AGENT_STORE" && value.is_none()
/// };
/// assert!(python.get_envs().any(is_unset));
/// # Ok::<(), mpienv::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exports {
    variables: Vec<Variable>,
}

/// The name of a variable and its value. `None` if the variable is to be unset.
type Variable = (Cow<'static, str>, Option<String>);

impl Exports {
    /// Sets a variable, and replaces an earlier entry for it.
    #[doc(hidden)]
    pub fn set(&mut self, name: impl Into<Cow<'static, str>>, value: String) {
        self.put((name.into(), Some(value)));
    }

    /// Unsets a variable, and replaces an earlier entry for it.
    pub(crate) fn remove(&mut self, name: impl Into<Cow<'static, str>>) {
        self.put((name.into(), None));
    }

    /// Unsets a variable, unless it is set here.
    pub(crate) fn remove_unless_set(&mut self, name: &'static str) {
        if self.get(name).is_none() {
            self.remove(name);
        }
    }

    fn put(&mut self, variable: Variable) {
        match self.variables.iter_mut().find(|(name, _)| *name == variable.0) {
            Some(found) => *found = variable,
            None => self.variables.push(variable),
        }
    }

    /// Returns an iterator over all variables in order. The value is `None` if the variable is to
    /// be unset.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.variables.iter().map(|(name, value)| (&**name, value.as_deref()))
    }

    /// Returns the value to which a variable is set. `None` if it is to be unset or is not part of
    /// the exports.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(found, _)| *found == name)?.1
    }

    /// Returns the names of the variables to unset, because they would mislead the program.
    ///
    /// ```
    /// use mpienv::ClusterInfo;
    ///
    /// let vars = [("RANK", "0"), ("WORLD_SIZE", "1"), ("TORCHELASTIC_USE_AGENT_STORE", "True")];
    /// let exports = ClusterInfo::from_vars(vars)?.exports()?;
    /// assert_eq!(exports.removals().collect::<Vec<_>>(), ["TORCHELASTIC_USE_AGENT_STORE"]);
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    pub fn removals(&self) -> impl Iterator<Item = &str> {
        self.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| name)
    }

    /// Applies the variables to a command: sets those with a value and unsets the others.
    pub fn apply_to(&self, command: &mut Command) {
        for (name, value) in self.iter() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }

    /// Returns the text that sets and unsets all variables in a dialect.
    ///
    /// ```
    /// use mpienv::{ClusterInfo, Dialect};
    ///
    /// let vars = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")];
    /// let info = ClusterInfo::from_vars(vars)?;
    /// let text = info.exports()?.to_text(Dialect::Posix)?;
    /// assert!(text.starts_with("export RANK=1;\nexport WORLD_SIZE=2;\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the dialect cannot express a value or cannot unset a variable.
    pub fn to_text(&self, dialect: Dialect) -> Result<String, Unrepresentable> {
        let is_json = dialect == Dialect::Json;
        let line = |(name, value): (&str, Option<&str>)| {
            let line = match value {
                Some(value) if value.contains('\0') && !is_json => {
                    Err("an environment variable cannot hold a NUL")
                }
                Some(value) => syntax::set(dialect, name, value),
                None => syntax::unset(dialect, name),
            };
            line.map_err(|reason| Unrepresentable {
                name: name.to_owned(),
                value: value.map(str::to_owned),
                dialect: dialect.name(),
                reason,
            })
        };
        let lines: Vec<String> = self.iter().map(line).collect::<Result<_, _>>()?;
        Ok(match &lines[..] {
            [] if is_json => "{}\n".to_owned(),
            members if is_json => format!("{{{}\n}}\n", members.join(",")),
            lines => lines.concat(),
        })
    }
}
