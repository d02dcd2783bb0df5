//! Selects the launcher, adds the master and the interface, checks the result, and returns a
//! [`ClusterInfo`].

mod builder;
mod by_hand;
mod choice;
mod hosts;
mod lints;
mod nodes;
mod own;
mod parents;
#[cfg(feature = "pmix")]
mod pmix;
mod surroundings;
mod token_file;
pub(crate) mod unplaced;

use std::ffi::OsString;

use once_cell::sync::OnceCell;

use crate::cluster::azure::AzureVars;
use crate::cluster::device;
use crate::cluster::info::{ClusterInfo, Inherited};
use crate::cluster::master::{self, Naming, PortRule};
use crate::cluster::nccl;
use crate::cluster::overrides::Overrides;
use crate::environment::Environment;
use crate::error::Error;
use crate::launcher::context::Context;
use crate::launcher::starter::Starter;
use crate::launcher::{Marker, display_variable};
use crate::value::placement::{Launcher, Placement};

use self::choice::{Choice, choose};
use self::own::Own;

impl ClusterInfo {
    /// Reads this process's environment.
    ///
    /// A process that no launcher started is rank 0 of 1.
    ///
    /// # Errors
    /// Returns an error if the variables contradict each other or are incomplete: see
    /// [`Reason`](crate::Reason).
    pub fn from_env() -> Result<ClusterInfo, Error> {
        ClusterInfoBuilder::default().from_env()
    }

    /// Reads the given variables instead of this process's environment, for tests and for other
    /// processes.
    ///
    /// # Errors
    /// Same as [`ClusterInfo::from_env`].
    pub fn from_vars<N, V>(vars: impl IntoIterator<Item = (N, V)>) -> Result<ClusterInfo, Error>
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        ClusterInfoBuilder::default().from_vars(vars)
    }

    /// Like [`ClusterInfo::from_env`], but reads the environment only once. Later calls return the
    /// first success.
    ///
    /// ```
    /// let info = mpienv::ClusterInfo::current()?;
    /// assert!(std::ptr::eq(info, mpienv::ClusterInfo::current()?));
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`ClusterInfo::from_env`]. A failure is not remembered.
    pub fn current() -> Result<&'static ClusterInfo, Error> {
        // The standard library's OnceLock has no stable way to initialize with a function that may
        // fail.
        static CURRENT: OnceCell<ClusterInfo> = OnceCell::new();
        CURRENT.get_or_try_init(ClusterInfo::from_env)
    }

    /// Like [`ClusterInfo::from_env`], but also asks the launcher's PMIx server for rank 0's host
    /// and for the nodes, which the server knows in every layout.
    ///
    /// ```no_run
    /// use mpienv::ClusterInfo;
    ///
    /// let info = ClusterInfo::ask_pmix()?;
    /// println!("rank 0 runs on {}", info.master_addr()?);
    /// // The same with another override:
    /// let info = ClusterInfo::builder().master_port("29500".parse()?).ask_pmix().from_env()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`ClusterInfo::from_env`]. Also returns an error if the process has no PMIx server,
    /// if no PMIx library can be loaded, or if the server does not answer.
    #[cfg(feature = "pmix")]
    pub fn ask_pmix() -> Result<ClusterInfo, Error> {
        ClusterInfo::builder().ask_pmix().from_env()
    }

    /// Returns a builder that overrides values such as the launcher, the master or the interface.
    pub fn builder() -> ClusterInfoBuilder {
        ClusterInfoBuilder::default()
    }
}

/// Reads a [`ClusterInfo`] with overrides, which take precedence over the environment.
///
/// ```
/// use mpienv::{ClusterInfo, ClusterInfoBuilder, Environment, Launcher, NcclIfname};
///
/// let builder: ClusterInfoBuilder = ClusterInfo::builder()
///     .launcher(Launcher::OpenMpi)
///     .master_addr("node-0".parse()?)
///     .master_port("29500".parse()?)
///     .port_range("1400-1999".parse()?)
///     .nccl_ifname(NcclIfname::Unset);
/// let vars = [
///     ("OMPI_COMM_WORLD_RANK", "5"),
///     ("OMPI_COMM_WORLD_SIZE", "8"),
///     ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
///     ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
/// ];
/// let info = builder.from_vars(vars)?;
/// assert_eq!(info.master_addr()?.with_port(info.master_port()), "node-0:29500");
/// // The same, for a program that reads other variables as well.
/// assert_eq!(builder.from_environment(&Environment::from_vars(vars))?, info);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ClusterInfoBuilder {
    overrides: Overrides,
}

#[cfg(feature = "cli")]
impl From<Overrides> for ClusterInfoBuilder {
    fn from(overrides: Overrides) -> ClusterInfoBuilder {
        ClusterInfoBuilder { overrides }
    }
}

impl ClusterInfoBuilder {
    /// Reads this process's environment.
    ///
    /// # Errors
    /// Same as [`ClusterInfo::from_env`].
    pub fn from_env(&self) -> Result<ClusterInfo, Error> {
        self.from_environment(&Environment::current())
    }

    /// Reads the given variables.
    ///
    /// # Errors
    /// Same as [`ClusterInfo::from_env`].
    pub fn from_vars<N, V>(
        &self,
        vars: impl IntoIterator<Item = (N, V)>,
    ) -> Result<ClusterInfo, Error>
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        self.from_environment(&Environment::from_vars(vars))
    }

    /// Reads a snapshot of an environment.
    ///
    /// # Errors
    /// Same as [`ClusterInfo::from_env`].
    pub fn from_environment(&self, environment: &Environment) -> Result<ClusterInfo, Error> {
        let overrides = self.overrides.or_inherited(environment)?;
        let context = Context::find(environment)?;
        let choice = choose(environment, overrides.launcher.as_ref(), context.as_ref())?;
        let inner = choice.without_outer(environment, context.as_ref());
        let whole = environment;
        let environment = inner.as_ref().unwrap_or(environment);
        // A process is deliberately alone if an override or an exported context says so.
        let is_unplaced = choice.marker.launcher == Launcher::Alone
            && overrides.launcher.is_none()
            && !choice.is_of_context;
        let (mut placement, choice) = self.place(environment, choice, is_unplaced)?;
        identify(&mut placement, whole);
        let azure = AzureVars::find(environment)?;
        nodes::complete(&mut placement, azure.is_some())?;

        let mut findings = std::mem::take(&mut placement.findings);
        if is_unplaced
            && placement.launcher == Launcher::Alone
            && findings.is_empty()
            && self.overrides.node_rank.is_none()
        {
            findings.extend(unplaced::finding(environment));
        }
        let outer = context
            .as_ref()
            .filter(|_| !choice.is_of_context && self.overrides.node_rank.is_none());
        findings.extend(lints::findings(environment, &placement, &choice, outer));

        let naming = Naming {
            azure: azure.as_ref(),
            explicit: overrides.master_addr,
            inherited_first: choice.is_of_context,
        };
        let master_addr = master::addr(environment, &placement, naming, &mut findings)?;
        let hosts = hosts::hosts(&placement, master_addr.as_ref());
        let derived = placement.master_addr.as_ref().map(|derived| &derived.value);
        if derived.is_some() && master_addr.as_ref().map(|master| &master.value) == derived {
            findings.extend(placement.master_doubt.take());
        }
        let range = overrides.port_range.map(|range| range.value);
        let rule = PortRule { on_azure: azure.is_some(), range };
        let (master_port, port_is_default) =
            master::port(environment, &placement, rule, overrides.master_port)?;
        let nccl = nccl::ifname(environment, azure.is_some(), overrides.nccl_ifname)?;
        let to_unset = lints::to_unset(whole, environment, &placement, &nccl, outer);

        // The context applies only if no other launcher has started this process since.
        let context = context.filter(|_| choice.is_of_context);
        let own = Own::of(&placement, context.as_ref(), master_addr.as_ref(), &master_port);
        let said = context.as_ref().map(|context| context.said.clone()).unwrap_or_default();
        let munge = own::munge(environment)?;
        let (token, token_is_own) = own::token(environment, &placement, context)?;
        let master_addr = master_addr.ok_or_else(|| master::unknown(&placement));
        findings.extend(master_addr.as_ref().err().map(master::unknown_finding));
        let launcher_source = match placement.launcher == choice.marker.launcher {
            true => choice.source,
            false => display_variable(whole, &placement.rank_source).into(),
        };
        Ok(ClusterInfo {
            device_index: device::index(whole, placement.local),
            restart_count: surroundings::restart_count(whole, placement.launcher)?,
            platform: surroundings::platform(whole, &placement, &launcher_source),
            default_port: master::default_port(&placement, rule).value,
            default_port_is_own: master::default_is_own(&placement, rule.on_azure),
            // A process that reads the exports must get the overridden place again.
            leaves_context: self
                .overrides
                .place_this_process()
                .then(|| self.overrides.reader(placement.launcher)),
            placement,
            launcher_source,
            master_addr,
            master_port,
            nccl_socket_ifname: nccl,
            hosts,
            findings,
            said,
            token,
            munge,
            port_is_default,
            port_range: rule.range(),
            overrides: self.overrides.exported(),
            to_unset,
            endpoints: None,
            inherited: Inherited::new(whole),
            addr_is_own: own.addr,
            port_is_own: own.port,
            token_is_own,
        })
    }
}

impl ClusterInfoBuilder {
    /// Returns this process's place, from the selected launcher's variables or from the overrides.
    fn place(
        &self,
        environment: &Environment,
        choice: Choice,
        is_unplaced: bool,
    ) -> Result<(Placement, Choice), Error> {
        let placement = self.read(environment, choice.marker, is_unplaced);
        let (placement, choice) = match self.overrides.node()? {
            Some(node) => (by_hand::node(node, placement)?, by_hand::choice()),
            None => (placement?, choice),
        };
        let placement =
            if self.overrides.one_per_node { by_hand::one_per_node(placement)? } else { placement };
        Ok((placement, choice))
    }

    /// Reads what the launcher provides about this process.
    fn read(
        &self,
        environment: &Environment,
        marker: Marker,
        is_unplaced: bool,
    ) -> Result<Placement, Error> {
        #[cfg(feature = "pmix")]
        if self.overrides.ask_pmix {
            return self::pmix::placement(environment, marker, is_unplaced);
        }
        read(environment, marker, is_unplaced)
    }
}

/// Reads the launcher's variables. Fails if they show a job but not this process's place in it.
fn read(environment: &Environment, marker: Marker, is_unplaced: bool) -> Result<Placement, Error> {
    if is_unplaced {
        unplaced::refuse(environment)?;
    }
    (marker.launcher.spec().read)(environment, marker)
}

/// If the variables do not identify the job, identifies it by the process that started all its
/// ranks.
fn identify(placement: &mut Placement, environment: &Environment) {
    let is_open = placement.job.is_none() && placement.rank.size() > 1 && placement.is_one_node();
    if is_open && let Some(starter) = Starter::of(placement.launcher, environment) {
        placement.job = Some(starter.job());
    }
}
