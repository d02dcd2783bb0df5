//! A [`ClusterInfo`] as variables for another program.

mod dialect;
mod per_node;
mod set;
pub(crate) mod syntax;
mod template;

pub use dialect::{Dialect, Unrepresentable};
pub use set::{Target, TargetFile, TargetVariable};
pub use template::{Placeholders, TemplateError};

use std::borrow::Cow;
use std::process::Command;

use crate::cluster::info::ClusterInfo;
use crate::cluster::meeting::{Meeting, Scope};
use crate::error::Error;
use crate::launcher::context::{CONTEXT, Context, Seen, Server};
use crate::launcher::{VARIABLES, seen};
use crate::value::launcher::Launcher;
use crate::value::rank::Rank;
use crate::value::sourced::Sourced;

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
        let number = |value: Option<u32>| value.map(|value| value.to_string());
        let set = [
            ("RANK", number(Some(self.rank().index()))),
            ("WORLD_SIZE", number(Some(self.world_size()))),
            ("LOCAL_RANK", number(self.local_rank())),
            ("LOCAL_WORLD_SIZE", number(self.local_world_size())),
            ("NODE_RANK", number(self.node_rank())),
            ("MASTER_ADDR", Some(self.master_addr()?.to_string())),
            ("MASTER_PORT", Some(self.master_port().to_string())),
            ("NCCL_SOCKET_IFNAME", self.nccl_socket_ifname().map(str::to_owned)),
        ];
        let set =
            set.into_iter().filter_map(|(name, value)| Some((Cow::Borrowed(name), Some(value?))));
        let overrides = self
            .passed_on
            .overrides
            .iter()
            .map(|(name, value)| (Cow::Borrowed(*name), Some(value.clone())));
        let mut variables: Vec<_> = set.chain(overrides).collect();
        variables.extend(self.passed_on.to_unset.iter().map(|&name| (Cow::Borrowed(name), None)));
        let mut exports = Exports { variables };
        let threads = self.passed_on.threads.set();
        threads.for_each(|(name, count)| exports.set(name, count));
        self.set_interface(&mut exports);
        if let Some(launcher) = self.passed_on.leaves_context {
            let context = self.context(launcher, seen(&self.inherited), &exports);
            exports.set(CONTEXT, context.to_text());
        }
        Ok(exports)
    }

    fn set_interface(&self, exports: &mut Exports) {
        for (name, value) in self.interface().iter().flat_map(|own| &own.variables) {
            exports.set(*name, value.clone());
        }
    }

    /// Returns the context that processes inherit together with these exports.
    fn context(&self, launcher: Launcher, mut seen: Seen, exports: &Exports) -> Context {
        for (name, value) in exports
            .iter()
            .filter(|(name, _)| VARIABLES.contains(*name) || name.starts_with("MASTER_"))
        {
            seen.put(name, value);
        }
        self.passed_on.threads.ours().for_each(|(name, count)| seen.put(name, Some(&count)));
        let Meeting { addr, addr_scope, port_scope, token_scope, .. } = &self.meeting;
        let addr = addr.as_ref().ok().filter(|_| *addr_scope == Scope::Job);
        let asked = addr.and_then(|addr| Server::of_master(&addr.source));
        let is_answer = |known: &Sourced<u32>| {
            launcher == self.launcher() && asked.is_some_and(|it| known.source == it.source())
        };
        let node = self.placement.node_rank.as_ref().filter(|node| is_answer(node));
        let node = node.zip(self.node_count());
        let node = node.and_then(|(node, count)| Rank::new(node.value, count).ok());
        // Flux gives the local rank alone.
        let size = self.placement.local_size.as_ref().filter(|size| is_answer(size));
        let local = self.local_rank().zip(size);
        let local = local.and_then(|(rank, size)| Rank::new(rank, size.value).ok());
        let token = Some(self.token().as_str()).filter(|token| !token.is_empty());
        Context {
            launcher,
            master_addr: addr.map(|addr| addr.value.to_string()),
            master_port: (*port_scope == Scope::Job).then(|| self.master_port().to_string()),
            token: token.filter(|_| *token_scope == Scope::Job).map(str::to_owned),
            asked,
            node,
            local,
            seen,
            said: self.passed_on.said.clone(),
            keeps_binding: self.passed_on.keeps_binding,
        }
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exports {
    variables: Vec<Variable>,
}

/// The name of a variable and its value. `None` if the variable is to be unset.
type Variable = (Cow<'static, str>, Option<String>);

impl Exports {
    /// Sets a variable, and replaces an earlier entry for it.
    pub(crate) fn set(&mut self, name: impl Into<Cow<'static, str>>, value: String) {
        self.put((name.into(), Some(value)));
    }

    /// Unsets a variable, and replaces an earlier entry for it.
    fn remove(&mut self, name: impl Into<Cow<'static, str>>) {
        self.put((name.into(), None));
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
        dialect.document(self)
    }
}
