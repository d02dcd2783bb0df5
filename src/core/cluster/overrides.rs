//! Overrides: values that users request, which take precedence over everything else in the
//! environment.

use std::fmt;
use std::str::FromStr;

use crate::cluster::answer::Answer;
use crate::cluster::interface::Interface;
use crate::cluster::nccl::NcclIfname;
use crate::cluster::own_variables::mistakes;
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::launcher::Launcher;
use crate::launcher::meant_launcher;
use crate::value::host::Host;
use crate::value::port::{Port, PortError, PortRange};
use crate::value::rank::Rank;
use crate::value::sourced::{Sourced, by};
use crate::value::token::Token;

/// Selects a launcher: `open-mpi`, `user`, ...
pub(crate) const LAUNCHER: &str = "MPIENV_LAUNCHER";
/// Sets rank 0's host.
pub(crate) const MASTER_ADDR: &str = "MPIENV_MASTER_ADDR";
/// Sets the port on rank 0's host.
pub const MASTER_PORT: &str = "MPIENV_MASTER_PORT";
/// The source of a value that an option or the program sets.
pub const ASKED: &str = "asked for";

/// Returns whether a user or the program has selected the launcher that has this source.
pub(crate) fn is_asked(source: &str) -> bool {
    [LAUNCHER, ASKED].contains(&source)
}

/// Sets the range of ports from which the job's own is derived.
pub const PORT_RANGE: &str = "MPIENV_PORT_RANGE";
/// Sets the value of `NCCL_SOCKET_IFNAME`, or requests to `keep` or `unset` it.
pub(crate) const NCCL_IFNAME: &str = "MPIENV_NCCL_IFNAME";
/// Selects the network interface of the program's libraries.
pub const INTERFACE: &str = "MPIENV_INTERFACE";

pub(crate) use crate::environment::TOKEN;
/// How long the other ranks may take to ask the launcher too, in seconds; 0 does not ask.
pub const ASK: &str = "MPIENV_ASK";
/// Silences the warnings of every program.
pub(crate) const QUIET: &str = "MPIENV_QUIET";
/// Refuses a process that no launcher has started, in every program.
pub(crate) const REQUIRE_LAUNCHER: &str = "MPIENV_REQUIRE_LAUNCHER";
/// Names a file that holds the token.
pub(crate) const TOKEN_FILE: &str = "MPIENV_TOKEN_FILE";
/// How the ranks authenticate, other than by a token.
pub(crate) const AUTH: &str = "MPIENV_AUTH";

/// Marks the ranks that `mpienv simulate` starts. All of them run on one host, wherever the job
/// places them.
pub const SIMULATED: &str = "MPIENV_SIMULATED";

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
/// use mpienv::{MasterPort, Port};
///
/// assert_eq!("auto".parse(), Ok(MasterPort::FromJob));
/// assert_eq!("29500".parse(), Ok(MasterPort::from(Port::try_from(29500_u16)?)));
/// # Ok::<(), mpienv::PortError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MasterPort {
    /// A fixed port.
    Fixed(Port),
    /// A port derived from the job's identity, in the [`PortRange`], so that jobs and steps have
    /// different ports. If the launcher does not identify the job, the port in `MASTER_PORT`.
    FromJob,
}

impl From<Port> for MasterPort {
    fn from(port: Port) -> MasterPort {
        MasterPort::Fixed(port)
    }
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

/// The values that a program sets, each with its source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides {
    pub launcher: Option<Sourced<Launcher>>,
    pub master_addr: Option<Sourced<Host>>,
    pub master_port: Option<Sourced<MasterPort>>,
    pub port_range: Option<Sourced<PortRange>>,
    pub nccl_ifname: Option<Sourced<NcclIfname>>,
    pub interface: Option<Sourced<Interface>>,
    /// Whether this is the only process on its node, and its rank is the number of the node.
    pub one_per_node: bool,
    /// The number of this node and of all nodes.
    pub node: Option<Rank>,
    /// What the launcher's server has said.
    pub answer: Option<Answer>,
}

impl Overrides {
    /// Adds overrides from variables for values that the program does not set.
    pub(crate) fn or_inherited(&self, environment: &Environment) -> Result<Overrides, Error> {
        let text = |name| environment.setting_text(name);
        check_others(environment)?;
        let launcher = || Ok(by(LAUNCHER, text(LAUNCHER)?.map(known_launcher).transpose()?));
        let nccl_ifname = || Ok(by(NCCL_IFNAME, text(NCCL_IFNAME)?.map(NcclIfname::from)));
        Ok(Overrides {
            launcher: or_else(&self.launcher, launcher)?,
            master_addr: or_else(&self.master_addr, || environment.setting(MASTER_ADDR))?,
            master_port: or_else(&self.master_port, || environment.setting(MASTER_PORT))?,
            port_range: or_else(&self.port_range, || environment.setting(PORT_RANGE))?,
            nccl_ifname: or_else(&self.nccl_ifname, nccl_ifname)?,
            interface: or_else(&self.interface, || environment.setting(INTERFACE))?,
            ..self.clone()
        })
    }

    /// Returns the variables that request the same overrides, except those that place only this
    /// process.
    pub(crate) fn exported(&self) -> Vec<(&'static str, String)> {
        let ifname = self.nccl_ifname.iter().map(|own| (NCCL_IFNAME, own.value.to_string()));
        let range = self.port_range.iter().map(|own| (PORT_RANGE, own.value.to_string()));
        // The default is that of every process.
        let asked = self.interface.iter().filter(|own| own.value != Interface::Default);
        let interface = asked.map(|own| (INTERFACE, own.value.to_string()));
        ifname.chain(interface).chain(range).collect()
    }

    /// Returns the job's secret, if the launcher has passed it on.
    pub(crate) fn secret(&self) -> Option<&Token> {
        self.answer.as_ref()?.secret.as_ref()
    }

    /// Returns the launcher whose variables show the same place to processes that inherit the
    /// exports. `None` if no launcher, master or node is overridden: the exports then need no
    /// context.
    pub(crate) fn reader(&self, launcher: Launcher) -> Option<Launcher> {
        // No launcher's variables show that a process is the only one on its node.
        if self.node.is_some() || self.one_per_node {
            return Some(Launcher::User);
        }
        let places = self.launcher.is_some() || self.master_addr.is_some();
        let has_answer = self.answer.is_some();
        (places || has_answer || self.master_port.is_some()).then_some(launcher)
    }
}

/// Rejects values of variables that not every process reads, which would otherwise go unnoticed.
fn check_others(environment: &Environment) -> Result<(), Error> {
    environment.setting::<u32>(ASK)?;
    for (name, reason) in [
        (QUIET, "not 0 or 1 (silences warnings)"),
        (REQUIRE_LAUNCHER, "not 0 or 1 (refuses a process that no launcher has started)"),
    ] {
        if let Some(text) =
            environment.setting_text(name)?.filter(|text| !["0", "1"].contains(text))
        {
            return Err(Error::of_setting(reason, name, text));
        }
    }
    Ok(())
}

fn or_else<T: Clone>(
    own: &Option<T>,
    inherited: impl FnOnce() -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    own.clone().map_or_else(inherited, |own| Ok(Some(own)))
}

fn known_launcher(name: &str) -> Result<Launcher, Error> {
    name.parse().map_err(|_| {
        let names: Vec<_> = Launcher::ALL.iter().map(|launcher| launcher.name()).collect();
        let typed = name.to_ascii_lowercase();
        let most = (typed.len() / 2).min(2);
        let near = names.iter().map(|known| (mistakes(known, &typed), known)).min();
        let near = near.filter(|&(count, _)| count <= most);
        let remedy = match (meant_launcher(name), near) {
            (Some(meant), _) => meant.to_owned(),
            (None, Some((_, known))) => format!("did you mean {known}?"),
            _ => format!("unset {LAUNCHER} or set it to one of {}", names.join(", ")),
        };
        Error::new(Reason::UnknownLauncher, remedy).of(LAUNCHER).found(name)
    })
}
