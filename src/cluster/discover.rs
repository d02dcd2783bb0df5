//! Chooses the launcher, fills in master and interface, checks the whole: gives a [`ClusterInfo`].

mod builder;
mod by_hand;
mod choice;
mod hosts;
mod lints;
mod nodes;
#[cfg(feature = "pmix")]
mod pmix;
mod surroundings;
mod unplaced;

use std::ffi::OsString;

use once_cell::sync::OnceCell;

use crate::cluster::azure::AzureVars;
use crate::cluster::device;
use crate::cluster::info::{ClusterInfo, Inherited, Provenance};
use crate::cluster::master::{self, Naming, PortRule};
use crate::cluster::nccl;
use crate::cluster::overrides::{self, Overrides};
use crate::environment::Environment;
use crate::error::Error;
use crate::launcher::context::Context;
use crate::launcher::starter::Starter;
use crate::launcher::{Marker, display_variable};
use crate::value::placement::{LaunchStyle, Launcher, NOT_PROVIDED, Placement, Source, Sourced};
use crate::value::token::Token;

use self::choice::choose;

impl ClusterInfo {
    /// Reads this process's environment.
    ///
    /// A process that no launcher started is rank 0 of 1.
    ///
    /// # Errors
    /// Returns an error if the variables contradict each other or are incomplete: see [`Reason`](crate::Reason).
    pub fn from_env() -> Result<ClusterInfo, Error> {
        ClusterInfoBuilder::default().from_env()
    }

    /// Reads these variables instead of the process's: for tests, and for other processes.
    ///
    /// # Errors
    /// As [`ClusterInfo::from_env`].
    pub fn from_vars<N, V>(vars: impl IntoIterator<Item = (N, V)>) -> Result<ClusterInfo, Error>
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        ClusterInfoBuilder::default().from_vars(vars)
    }

    /// Like [`ClusterInfo::from_env`], but reads the environment only once. Later calls return the first success.
    ///
    /// ```
    /// let info = mpienv::ClusterInfo::current()?;
    /// assert!(std::ptr::eq(info, mpienv::ClusterInfo::current()?));
    /// # Ok::<(), mpienv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`ClusterInfo::from_env`]; a failure is not remembered.
    pub fn current() -> Result<&'static ClusterInfo, Error> {
        // std's OnceLock cannot yet be filled by a function that may fail.
        static CURRENT: OnceCell<ClusterInfo> = OnceCell::new();
        CURRENT.get_or_try_init(ClusterInfo::from_env)
    }

    /// As [`ClusterInfo::from_env`], and asks the launcher's PMIx server for rank 0's host and for the
    /// nodes, which it knows in every layout.
    ///
    /// ```no_run
    /// use mpienv::ClusterInfo;
    ///
    /// let info = ClusterInfo::ask_pmix()?;
    /// println!("rank 0 runs on {}", info.master_addr()?);
    /// // The same, beside another override.
    /// let info = ClusterInfo::builder().master_port("29500".parse()?).ask_pmix().from_env()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`ClusterInfo::from_env`]; also if the process has no PMIx server, or no library to ask it.
    #[cfg(feature = "pmix")]
    pub fn ask_pmix() -> Result<ClusterInfo, Error> {
        ClusterInfo::builder().ask_pmix().from_env()
    }

    /// Reads with overrides: a launcher, a master, an interface.
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
    #[cfg(feature = "pmix")]
    ask_pmix: bool,
}

#[cfg(feature = "cli")]
impl From<Overrides> for ClusterInfoBuilder {
    fn from(overrides: Overrides) -> ClusterInfoBuilder {
        ClusterInfoBuilder { overrides, ..ClusterInfoBuilder::default() }
    }
}

impl ClusterInfoBuilder {
    /// Asks the launcher's PMIx server for rank 0's host and for the nodes: see [`pmix`](crate::pmix)
    /// for what that costs.
    ///
    /// The answer takes precedence over values derived from the launcher's variables, but not over a setting that
    /// names the master.
    #[cfg(feature = "pmix")]
    pub fn ask_pmix(mut self) -> ClusterInfoBuilder {
        self.ask_pmix = true;
        self
    }

    /// Reads this process's environment.
    ///
    /// # Errors
    /// As [`ClusterInfo::from_env`].
    pub fn from_env(&self) -> Result<ClusterInfo, Error> {
        self.from_environment(&Environment::current())
    }

    /// Reads these variables.
    ///
    /// # Errors
    /// As [`ClusterInfo::from_env`].
    pub fn from_vars<N, V>(&self, vars: impl IntoIterator<Item = (N, V)>) -> Result<ClusterInfo, Error>
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        self.from_environment(&Environment::from_vars(vars))
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    /// As [`ClusterInfo::from_env`].
    pub fn from_environment(&self, environment: &Environment) -> Result<ClusterInfo, Error> {
        let overrides = self.overrides.or_inherited(environment)?;
        let context = Context::find(environment)?;
        let choice = choose(environment, overrides.launcher.as_ref(), context.as_ref())?;
        let inner = choice.without_outer(environment, context.as_ref());
        let whole = environment;
        let environment = inner.as_ref().unwrap_or(environment);
        // A process is alone if that is asked for, by name or by an exported place.
        let is_unplaced =
            choice.marker.launcher == Launcher::Alone && overrides.launcher.is_none() && !choice.is_of_context;
        let placement = self.placement(environment, choice.marker, is_unplaced);
        let (mut placement, choice) = match self.overrides.node {
            Some(node) => (by_hand::node(node, placement)?, by_hand::choice()),
            None => (placement?, choice),
        };
        if self.overrides.one_per_node {
            placement = by_hand::one_per_node(placement)?;
        }
        identify(&mut placement, whole);
        let azure = AzureVars::find(environment)?;
        nodes::complete(&mut placement, azure.is_some())?;
        let outer = context.as_ref().filter(|_| !choice.is_of_context && self.overrides.node.is_none());
        let left = outer.map(|outer| lints::left_by_outer(whole, &placement, outer)).unwrap_or_default();
        let partly_inherited = outer.and_then(|outer| lints::partly_inherited(environment, &placement, outer));
        // What the process around this one chose, where no other launcher has started this one.
        let context = context.filter(|_| choice.is_of_context);

        let mut findings = std::mem::take(&mut placement.findings);
        if is_unplaced && placement.launcher == Launcher::Alone && findings.is_empty() && self.overrides.node.is_none()
        {
            findings.extend(unplaced::finding(environment));
        }
        findings.extend(partly_inherited);
        findings.extend(lints::disagreements(environment, &placement, &choice));
        findings.extend(lints::local_rank_order(&placement));
        findings.extend(lints::stale_agent_store(environment, &placement));
        findings.extend(lints::pyxis_port(environment, &placement));
        let naming =
            Naming { azure: azure.as_ref(), explicit: overrides.master_addr, inherited_first: choice.is_of_context };
        let master_addr = master::addr(environment, &placement, naming, &mut findings)?;
        let hosts = hosts::hosts(&placement, master_addr.as_ref());
        let derived = placement.master_addr.as_ref().map(|derived| &derived.value);
        if derived.is_some() && master_addr.as_ref().map(|master| &master.value) == derived {
            findings.extend(placement.master_doubt.take());
        }
        let rule = PortRule { on_azure: azure.is_some(), range: overrides.port_range };
        let (master_port, port_is_default) = master::port(environment, &placement, rule, overrides.master_port)?;
        let nccl = nccl::ifname(environment, azure.is_some(), overrides.nccl_ifname)?;
        let unwanted = nccl.value.is_none().then_some(nccl::VARIABLE);
        let stale = (placement.launcher != Launcher::Torchrun).then_some(lints::AGENT_STORE);
        let to_unset = unwanted.into_iter().chain(stale).filter(|name| environment.get(name).is_some());
        let to_unset = to_unset.chain(left).collect();

        // With RANK and WORLD_SIZE comes the master of that job.
        let sets_master = placement.launcher.spec().sets_master();
        let is_own = |value: &str, source: &str, [plain, asked]: [&str; 2], of_context: Option<&String>| {
            (source != plain || sets_master || of_context.is_some_and(|own| own == value)) && source != asked
        };
        let addr_is_own = master_addr.as_ref().is_some_and(|host| {
            let of_context = context.as_ref().and_then(|context| context.master_addr.as_ref());
            is_own(&host.value.to_string(), &host.source, [master::MASTER_ADDR, overrides::MASTER_ADDR], of_context)
        });
        let of_context = context.as_ref().and_then(|context| context.master_port.as_ref());
        let inherited = [master::MASTER_PORT, overrides::MASTER_PORT];
        let port_is_own = is_own(&master_port.value.to_string(), &master_port.source, inherited, of_context);

        let (master_addr, master_addr_source) = match master_addr {
            Some(Sourced { value, source }) => (Ok(value), source),
            None => {
                let error = master::unknown(&placement);
                findings.push(master::unknown_finding(&error));
                (Err(error), Source::from("not named by anything"))
            }
        };
        let set_token = environment.get_str(overrides::TOKEN).map_err(Error::reading_setting)?;
        let token = match (set_token, context.and_then(|context| context.token)) {
            (Some(text), _) => Token::new(text),
            (None, Some(text)) => Token::new(text),
            (None, None) => placement.job.as_ref().map(|job| Token::of_job(&job.value)).unwrap_or_default(),
        };
        let device = device::index(whole, placement.local);
        let platform = surroundings::platform(whole, &placement, &choice.source);
        let restarts = surroundings::restart_count(whole, placement.launcher)?;
        let default_port = master::default_port(&placement, rule).value;
        let default_port_is_own = master::default_is_own(&placement, azure.is_some());
        let launch_style = placement.style();
        let provenance = Provenance {
            launcher: if placement.launcher == choice.marker.launcher {
                choice.source
            } else {
                display_variable(whole, &placement.rank_source).into()
            },
            rank: placement.rank_source,
            world_size: placement.world_size_source,
            local_rank: placement.local_rank_source,
            local_world_size: placement.local_size_source,
            node_rank: source_of(&placement.node_rank),
            node_count: source_of(&placement.node_count),
            launch_style: source_of_style(launch_style).into(),
            master_addr: master_addr_source,
            master_port: master_port.source,
            nccl_socket_ifname: nccl.source,
            hosts: hosts.source,
            device_index: device.source,
            restart_count: restarts.as_ref().map_or(NOT_PROVIDED.into(), |restarts| restarts.source.clone()),
            platform: platform.source,
        };
        Ok(ClusterInfo {
            launcher: placement.launcher,
            rank: placement.rank,
            local: placement.local,
            node_rank: placement.node_rank.map(|node| node.value),
            node_count: placement.node_count.map(|nodes| nodes.value),
            launch_style,
            master_addr,
            master_port: master_port.value,
            workers: placement.workers,
            nccl_socket_ifname: nccl.value,
            hosts: hosts.value,
            device_index: device.value,
            restart_count: restarts.map(|restarts| restarts.value),
            platform: platform.value,
            provenance,
            findings,
            token,
            port_is_default,
            port_range: rule.range(),
            default_port,
            default_port_is_own,
            overrides: self.overrides.exported(),
            to_unset,
            // Reading it again must give what was asked for.
            leaves_context: self.overrides.place_this_process().then(|| self.overrides.reader(placement.launcher)),
            endpoints: None,
            inherited: Inherited::new(whole),
            addr_is_own,
            port_is_own,
            token_is_own: set_token.is_none(),
        })
    }
}

impl ClusterInfoBuilder {
    /// What the launcher says of this process.
    fn placement(&self, environment: &Environment, marker: Marker, is_unplaced: bool) -> Result<Placement, Error> {
        #[cfg(feature = "pmix")]
        if self.ask_pmix {
            return self::pmix::placement(environment, marker, is_unplaced);
        }
        read(environment, marker, is_unplaced)
    }
}

/// What the launcher's variables say; an error if they show a job without this process's place in it.
fn read(environment: &Environment, marker: Marker, is_unplaced: bool) -> Result<Placement, Error> {
    if is_unplaced {
        unplaced::refuse(environment)?;
    }
    (marker.launcher.spec().read)(environment, marker)
}

/// If the variables do not identify the job, the process that started all its ranks does.
fn identify(placement: &mut Placement, environment: &Environment) {
    let is_open = placement.job.is_none() && placement.rank.size() > 1 && placement.is_one_node();
    if is_open && let Some(starter) = Starter::of(placement.launcher, environment) {
        placement.job = Some(starter.job());
    }
}

fn source_of(value: &Option<Sourced<u32>>) -> Source {
    value.as_ref().map_or(Source::Borrowed(NOT_PROVIDED), |value| value.source.clone())
}

fn source_of_style(style: LaunchStyle) -> &'static str {
    match style {
        LaunchStyle::Alone => "the world size is 1",
        LaunchStyle::SingleNode => "the local size is the world size",
        LaunchStyle::PerNode => "the local size is 1",
        LaunchStyle::PerProcess => "the local size is below the world size",
        LaunchStyle::Unknown => NOT_PROVIDED,
    }
}
