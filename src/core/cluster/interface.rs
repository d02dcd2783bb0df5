//! Which network interface the libraries of a program use, as asked for, and the variables of it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::cluster::info::ClusterInfo;
use crate::cluster::nccl;
use crate::error::Error;
use crate::value::sourced::Sourced;
use crate::value::subnet::Subnet;

/// Which network interface the program's libraries use for connections to other hosts.
///
/// The text form, as for `--interface`, is `auto`, `default`, `keep`, a name such as `eth0`, or a
/// range of addresses such as `10.0.0.0/16`. `mpienv::ask::on_interface` finds the interface.
///
/// ```
/// use mpienv::{ClusterInfo, Interface, InterfaceError, OwnInterface, ask};
///
/// let local = ClusterInfo::builder().interface("127.0.0.0/8".parse()?);
/// let info = local.vars([("RANK", "0"), ("WORLD_SIZE", "1")]).read()?;
/// let info = ask::on_interface(&info)?;
/// let own: &OwnInterface = info.interface().expect("a host has a loopback interface");
/// assert_eq!(info.exports()?.get("GLOO_SOCKET_IFNAME"), Some(&*own.name));
/// assert_eq!("eth0".parse(), Ok(Interface::Name("eth0".to_owned())));
/// let error: InterfaceError = "^docker0".parse::<Interface>().unwrap_err();
/// assert!(error.to_string().starts_with("an interface is auto, default, keep, "));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interface {
    /// The interface with the route to rank 0's host, or from there to another host.
    Auto,
    /// The same interface, but only for gloo, and only if the job is known to be on several nodes
    /// and gloo would use a loopback address.
    Default,
    /// None: every library chooses by itself.
    Keep,
    /// The interface of this name.
    Name(String),
    /// The interface that has an address in this range.
    Within(Subnet),
}

impl FromStr for Interface {
    type Err = InterfaceError;

    fn from_str(text: &str) -> Result<Interface, InterfaceError> {
        if let Ok(subnet) = text.parse() {
            return Ok(Interface::Within(subnet));
        }
        // Interfaces' names have none of these characters, and other libraries' lists do.
        let is_name = !text.is_empty()
            && !text.contains(|c: char| "/,^=".contains(c) || c.is_whitespace() || c.is_control());
        match text {
            "auto" => Ok(Interface::Auto),
            "default" => Ok(Interface::Default),
            "keep" => Ok(Interface::Keep),
            name if is_name => Ok(Interface::Name(name.to_owned())),
            _ => Err(InterfaceError),
        }
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Interface::Auto => f.write_str("auto"),
            Interface::Default => f.write_str("default"),
            Interface::Keep => f.write_str("keep"),
            Interface::Name(name) => f.write_str(name),
            Interface::Within(subnet) => subnet.fmt(f),
        }
    }
}

/// The error of parsing a text that is not an [`Interface`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an interface is auto, default, keep, one complete name, or a range of addresses as in 10.0.0.0/16"
)]
#[non_exhaustive]
pub struct InterfaceError;

/// The source address of this host's packets to rank 0, as `mpienv::ask::own_addr` finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnAddr {
    /// The address, which the other ranks can reach if they reach rank 0 the same way.
    pub address: IpAddr,
    /// The name of the interface with this address, such as `eth0`. `None` if the system lists no
    /// such interface.
    pub interface: Option<String>,
}

impl OwnAddr {
    /// An address and its interface.
    #[doc(hidden)]
    #[must_use]
    pub fn new(address: IpAddr, interface: Option<String>) -> OwnAddr {
        OwnAddr { address, interface }
    }
}

/// The interface that was found, and the variables that name it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnInterface {
    /// The complete name, such as `eth0`.
    pub name: String,
    /// The address on it that other hosts connect to.
    pub address: IpAddr,
    /// What asked for it, and why it is this one.
    pub source: String,
    /// The variables that exports set to it.
    pub variables: Vec<(&'static str, String)>,
    /// The variables that have values already, which are kept.
    pub kept: Vec<&'static str>,
}

impl OwnInterface {
    /// An interface, and the variables that are to name it.
    #[doc(hidden)]
    #[must_use]
    pub fn new(
        name: String,
        address: IpAddr,
        source: String,
        variables: Vec<(&'static str, String)>,
        kept: Vec<&'static str>,
    ) -> OwnInterface {
        OwnInterface { name, address, source, variables, kept }
    }
}

impl ClusterInfo {
    /// Returns the interface that `mpienv::ask::on_interface` has found. `None` before that, and
    /// if there is nothing to set.
    #[must_use]
    pub fn interface(&self) -> Option<&OwnInterface> {
        self.surroundings.interface.as_ref()
    }

    /// Returns which interface an option or a variable asks for.
    #[doc(hidden)]
    pub fn asked_interface(&self) -> Option<&Sourced<Interface>> {
        self.surroundings.asked_interface.as_ref()
    }

    /// Returns the same place, whose exports name this interface.
    #[doc(hidden)]
    pub fn with_interface(&self, found: Option<OwnInterface>) -> ClusterInfo {
        let mut info = self.clone();
        let mut variables = found.iter().flat_map(|own| &own.variables);
        if let Some((_, value)) = variables.find(|(name, _)| *name == nccl::VARIABLE) {
            let asked = self.asked_interface().map_or(&Interface::Default, |asked| &asked.value);
            let source = format!("the interface {asked}");
            info.surroundings.nccl.ifname = Sourced::new(Some(value.clone()), source);
        }
        info.surroundings.interface = found;
        info
    }

    /// Returns the same place with this host's own address, or why it has none.
    #[doc(hidden)]
    pub fn with_own_addr(&self, own: Result<OwnAddr, Error>) -> ClusterInfo {
        let mut info = self.clone();
        info.surroundings.own_addr = Some(own);
        info
    }
}
