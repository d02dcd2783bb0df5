//! Overrides: values that users request, which take precedence over everything else in the
//! environment.

use std::fmt;
use std::str::FromStr;

use crate::cluster::nccl::NcclIfname;
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::value::host::{Host, HostError};
use crate::value::placement::{Launcher, Sourced};
use crate::value::port::{Port, PortError};
use crate::value::port_range::PortRange;
use crate::value::rank::Rank;

/// Selects a launcher: `open-mpi`, `user`, ...
pub(crate) const LAUNCHER: &str = "MPIENV_LAUNCHER";
/// Sets rank 0's host.
pub(crate) const MASTER_ADDR: &str = "MPIENV_MASTER_ADDR";
/// Sets the port on rank 0's host.
pub const MASTER_PORT: &str = "MPIENV_MASTER_PORT";
/// The source of a value that an option or the program sets.
pub const ASKED: &str = "asked for";
/// Sets the range of ports from which the job's own is derived.
pub const PORT_RANGE: &str = "MPIENV_PORT_RANGE";
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

/// The overrides that a program or a command line sets.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    pub launcher: Option<Launcher>,
    pub master_addr: Option<Host>,
    pub master_port: Option<MasterPort>,
    pub port_range: Option<PortRange>,
    pub nccl_ifname: Option<NcclIfname>,
    pub node: Option<Rank>,
    pub one_per_node: bool,
}

/// The same overrides, supplemented by variables, each with its source.
pub(crate) struct SourcedOverrides {
    pub launcher: Option<Sourced<Launcher>>,
    pub master_addr: Option<Sourced<Host>>,
    pub master_port: Option<Sourced<MasterPort>>,
    pub port_range: Option<PortRange>,
    pub nccl_ifname: Option<Sourced<NcclIfname>>,
}

impl Overrides {
    /// Adds overrides from variables for values that the program does not set.
    pub(crate) fn or_inherited(
        &self,
        environment: &Environment,
    ) -> Result<SourcedOverrides, Error> {
        Ok(SourcedOverrides {
            launcher: explicit(&self.launcher, environment, LAUNCHER, |name| {
                name.parse().map_err(|_| unknown_launcher(name))
            })?,
            master_addr: explicit(&self.master_addr, environment, MASTER_ADDR, |text| {
                text.parse().map_err(|error: HostError| Error::of_setting(error, MASTER_ADDR, text))
            })?,
            master_port: explicit(&self.master_port, environment, MASTER_PORT, |text| {
                text.parse().map_err(|_| Error::of_setting(Reason::NotAPort, MASTER_PORT, text))
            })?,
            port_range: explicit(&self.port_range, environment, PORT_RANGE, |text| {
                text.parse().map_err(|_| Error::of_setting(Reason::NotAPortRange, PORT_RANGE, text))
            })?
            .map(|range| range.value),
            nccl_ifname: explicit(&self.nccl_ifname, environment, NCCL_IFNAME, |text| {
                Ok(NcclIfname::from(text))
            })?,
        })
    }

    /// Returns the variables that request the same overrides, except those that place only this
    /// process.
    pub(crate) fn exported(&self) -> Vec<(&'static str, String)> {
        let ifname = self.nccl_ifname.iter().map(|ifname| (NCCL_IFNAME, ifname.to_string()));
        ifname.chain(self.port_range.map(|range| (PORT_RANGE, range.to_string()))).collect()
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
        self.node.is_some() || self.one_per_node
    }
}

fn explicit<T: Clone>(
    value: &Option<T>,
    environment: &Environment,
    variable: &'static str,
    parse: impl FnOnce(&str) -> Result<T, Error>,
) -> Result<Option<Sourced<T>>, Error> {
    if let Some(value) = value {
        return Ok(Some(Sourced::new(value.clone(), ASKED)));
    }
    let text = environment.get_str(variable).map_err(Error::reading_setting)?;
    let value = text.map(parse).transpose()?;
    Ok(value.map(|value| Sourced::new(value, variable)))
}

fn unknown_launcher(name: &str) -> Error {
    let names: Vec<_> = Launcher::ALL.iter().map(|launcher| launcher.name()).collect();
    let remedy = format!("unset {LAUNCHER} or set it to one of {}", names.join(", "));
    Error::new(Reason::UnknownLauncher, remedy).of(LAUNCHER).found(name)
}
