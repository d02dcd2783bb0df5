//! Overrides: values that users request, which take precedence over everything else in the
//! environment.

use std::fmt;
use std::str::FromStr;

#[cfg(feature = "cli")]
use clap::builder::TypedValueParser;

use crate::cluster::nccl::NcclIfname;
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::value::host::{Host, HostError};
#[cfg(feature = "cli")]
use crate::value::name::named;
use crate::value::placement::{Launcher, Sourced};
use crate::value::port::{Port, PortError};
use crate::value::port_range::PortRange;
use crate::value::rank::Rank;

/// Selects a launcher: `open-mpi`, `user`, ...
pub(crate) const LAUNCHER: &str = "MPIENV_LAUNCHER";
/// Sets rank 0's host.
pub(crate) const MASTER_ADDR: &str = "MPIENV_MASTER_ADDR";
/// Sets the port on rank 0's host.
pub(crate) const MASTER_PORT: &str = "MPIENV_MASTER_PORT";
/// The source of a value that an option or the program sets.
pub(crate) const ASKED: &str = "asked for";
/// Sets the range of ports from which the job's own is derived.
pub(crate) const PORT_RANGE: &str = "MPIENV_PORT_RANGE";
/// Sets the value of `NCCL_SOCKET_IFNAME`, or requests to `keep` or `unset` it.
pub(crate) const NCCL_IFNAME: &str = "MPIENV_NCCL_IFNAME";

pub(crate) use crate::environment::TOKEN;
/// Names a file that holds the token.
pub(crate) const TOKEN_FILE: &str = "MPIENV_TOKEN_FILE";
/// How the ranks authenticate, other than by a token.
pub(crate) const AUTH: &str = "MPIENV_AUTH";

/// How often the job was restarted, as `mpienv launch` counts it for its workers.
pub(crate) const RESTART_COUNT: &str = "MPIENV_RESTART_COUNT";
/// The same count, as torchrun's workers read it.
pub(crate) const TORCH_RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";

/// Variables that `mpienv launch` sets for its workers and that must not reach another job.
#[cfg(any(feature = "cli", feature = "testing"))]
pub(crate) const OF_WORKERS: [&str; 6] =
    [LAUNCHER, MASTER_ADDR, MASTER_PORT, TOKEN, TOKEN_FILE, RESTART_COUNT];

/// The requested port on rank 0's host. Its text form is a number or `auto`.
///
/// ```
/// use mpienv::{ClusterInfo, MasterPort};
///
/// let builder = ClusterInfo::builder().master_port("29500".parse::<MasterPort>()?);
/// let info = builder.from_vars([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node0")])?;
/// assert_eq!(info.master_port().get(), 29500);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MasterPort {
    /// A fixed port.
    Fixed(Port),
    /// A port derived from the job's identity, in the [`PortRange`], so that jobs and steps have
    /// different ports.
    FromJob,
}

impl FromStr for MasterPort {
    type Err = PortError;

    fn from_str(text: &str) -> Result<MasterPort, PortError> {
        if text == "auto" { Ok(MasterPort::FromJob) } else { text.parse().map(MasterPort::Fixed) }
    }
}

impl fmt::Display for MasterPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MasterPort::Fixed(port) => port.fmt(f),
            MasterPort::FromJob => f.write_str("auto"),
        }
    }
}

/// The values that a program or a command line sets, each with its source. The documentation of
/// each field is the help of its option.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
pub(crate) struct Overrides {
    /// Use this launcher instead of detecting one [env: MPIENV_LAUNCHER]
    #[cfg_attr(feature = "cli", arg(long, value_name = "NAME", value_parser = named(Launcher::ALL, Launcher::name).map(asked)))]
    pub launcher: Option<Sourced<Launcher>>,
    /// The host of rank 0 [env: MPIENV_MASTER_ADDR]
    #[cfg_attr(feature = "cli", arg(long, value_name = "HOST", value_parser = parse::<Host>))]
    pub master_addr: Option<Sourced<Host>>,
    /// The port at the host of rank 0, or `auto` to derive one from the job [env:
    /// MPIENV_MASTER_PORT]
    #[cfg_attr(feature = "cli", arg(long, value_name = "PORT", value_parser = parse::<MasterPort>))]
    pub master_port: Option<Sourced<MasterPort>>,
    /// Derive ports from this range, 20000-29999 by default; the same on all ranks [env:
    /// MPIENV_PORT_RANGE]
    #[cfg_attr(feature = "cli", arg(long, value_name = "LOW-HIGH", value_parser = parse::<PortRange>))]
    pub port_range: Option<Sourced<PortRange>>,
    /// NCCL_SOCKET_IFNAME: a value, `keep` or `unset` [env: MPIENV_NCCL_IFNAME]
    #[cfg_attr(feature = "cli", arg(long, value_name = "VALUE", value_parser = ifname))]
    pub nccl_ifname: Option<Sourced<NcclIfname>>,
    /// This is the only process on its node, and its rank is the number of the node
    #[cfg_attr(feature = "cli", arg(long, conflicts_with_all = ["node_rank", "nnodes"]))]
    pub one_per_node: bool,
    /// The number of this node, from 0, if the platform does not set it; needs --nnodes
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "R",
            alias = "node_rank",
            requires = "nnodes",
            conflicts_with = "launcher"
        )
    )]
    pub node_rank: Option<u32>,
    /// The number of nodes, each with one process; needs --node-rank and, if above 1, a master such
    /// as --master-addr
    #[cfg_attr(feature = "cli", arg(long, value_name = "N", requires = "node_rank"))]
    pub nnodes: Option<u32>,
    /// Ask the launcher's PMIx server for the host of rank 0; `mpienv export --help` has its limits
    #[cfg(feature = "pmix")]
    #[cfg_attr(feature = "cli", arg(long))]
    pub ask_pmix: bool,
}

/// Parses the value of `--nccl-ifname`, which may be any text.
#[cfg(feature = "cli")]
fn ifname(text: &str) -> Result<Sourced<NcclIfname>, std::convert::Infallible> {
    Ok(asked(text.into()))
}

/// Parses the value of an option.
#[cfg(feature = "cli")]
fn parse<T: FromStr>(text: &str) -> Result<Sourced<T>, T::Err> {
    text.parse().map(asked)
}

/// Returns a value that an option or the program sets.
pub(crate) fn asked<T>(value: T) -> Sourced<T> {
    Sourced::new(value, ASKED)
}

impl Overrides {
    /// Returns these overrides, with those of variables for values that the program does not set.
    pub(crate) fn or_inherited(&self, environment: &Environment) -> Result<Overrides, Error> {
        let mut all = self.clone();
        inherit(&mut all.launcher, environment, LAUNCHER, |name| {
            name.parse().map_err(|_| unknown_launcher(name))
        })?;
        inherit(&mut all.master_addr, environment, MASTER_ADDR, |text| {
            text.parse().map_err(|error: HostError| Error::of_setting(error, MASTER_ADDR, text))
        })?;
        inherit(&mut all.master_port, environment, MASTER_PORT, |text| {
            text.parse().map_err(|_| Error::of_setting(Reason::NotAPort, MASTER_PORT, text))
        })?;
        inherit(&mut all.port_range, environment, PORT_RANGE, |text| {
            text.parse().map_err(|_| Error::of_setting(Reason::NotAPortRange, PORT_RANGE, text))
        })?;
        inherit(&mut all.nccl_ifname, environment, NCCL_IFNAME, |text| Ok(text.into()))?;
        Ok(all)
    }

    /// Returns the number of this node and of all nodes.
    pub(crate) fn node(&self) -> Result<Option<Rank>, Error> {
        let Some((rank, nodes)) = self.node_rank.zip(self.nnodes) else { return Ok(None) };
        let outside = |error| {
            let remedy = "give a number below --nnodes";
            Error::new(error, remedy).of("--node-rank").found(rank.to_string())
        };
        Rank::new(rank, nodes).map(Some).map_err(outside)
    }

    /// Returns the variables that request the same overrides, except those that place only this
    /// process.
    pub(crate) fn exported(&self) -> Vec<(&'static str, String)> {
        let ifname = self.nccl_ifname.iter().map(|one| (NCCL_IFNAME, one.value.to_string()));
        let range = self.port_range.iter().map(|one| (PORT_RANGE, one.value.to_string()));
        ifname.chain(range).collect()
    }

    /// Returns whether a launcher, master or node is overridden. Such overrides do not apply to
    /// jobs that this process starts.
    pub(crate) fn place_this_process(&self) -> bool {
        self.launcher.is_some()
            || self.master_addr.is_some()
            || self.master_port.is_some()
            || self.give_node()
    }

    /// Returns the launcher whose variables show the same place to processes that inherit the
    /// exports.
    pub(crate) fn reader(&self, launcher: Launcher) -> Launcher {
        if self.give_node() { Launcher::User } else { launcher }
    }

    /// Returns whether an override makes this process the only one on its node, which no launcher's
    /// variables show.
    pub(crate) fn give_node(&self) -> bool {
        self.node_rank.is_some() || self.one_per_node
    }
}

/// Sets a value from its variable, if nothing else has set it.
fn inherit<T>(
    value: &mut Option<Sourced<T>>,
    environment: &Environment,
    variable: &'static str,
    parse: impl FnOnce(&str) -> Result<T, Error>,
) -> Result<(), Error> {
    if value.is_none() {
        let text = environment.get_str(variable).map_err(Error::reading_setting)?;
        *value = text.map(parse).transpose()?.map(|value| Sourced::new(value, variable));
    }
    Ok(())
}

fn unknown_launcher(name: &str) -> Error {
    let names: Vec<_> = Launcher::ALL.iter().map(|launcher| launcher.name()).collect();
    let remedy = format!("unset {LAUNCHER} or set it to one of {}", names.join(", "));
    Error::new(Reason::UnknownLauncher, remedy).of(LAUNCHER).found(name)
}
