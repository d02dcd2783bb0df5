//! A TCP port that can be connected to.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::Serialize;

/// The lowest port that every user may open, unless a host is set up otherwise.
pub const UNPRIVILEGED: u16 = 1024;

/// A TCP port, 1 to 65535.
///
/// ```
/// use mpienv::{Port, PortError};
///
/// assert_eq!("6105".parse(), Ok(Port::SEVERAL_NODES));
/// assert_eq!(Port::new(54965), Some(Port::ONE_NODE));
/// assert_eq!(u16::from(Port::ONE_NODE), 54965);
/// assert!(Port::try_from(0).is_err());
/// let error: PortError = "65536".parse::<Port>().unwrap_err();
/// assert_eq!(error.to_string(), "a port is a number from 1 to 65535");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Port(NonZeroU16);

impl Port {
    /// The master's port on several nodes, as in Azure's published helper.
    pub const SEVERAL_NODES: Port = Port::new(6105).unwrap();
    /// The master's port on one node, as in Azure's published helper.
    pub const ONE_NODE: Port = Port::new(54965).unwrap();

    /// The ends of the range from which ports are derived by default.
    pub(crate) const LOWEST_DERIVED: Port = Port::new(20_000).unwrap();
    pub(crate) const HIGHEST_DERIVED: Port = Port::new(29_999).unwrap();

    /// Creates a port. Returns `None` if `number` is 0.
    #[must_use]
    pub const fn new(number: u16) -> Option<Port> {
        match NonZeroU16::new(number) {
            Some(number) => Some(Port(number)),
            None => None,
        }
    }

    /// Returns the port's number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl From<Port> for u16 {
    fn from(port: Port) -> u16 {
        port.get()
    }
}

impl TryFrom<u16> for Port {
    type Error = PortError;

    fn try_from(number: u16) -> Result<Port, PortError> {
        Port::new(number).ok_or(PortError)
    }
}

impl FromStr for Port {
    type Err = PortError;

    fn from_str(text: &str) -> Result<Port, PortError> {
        // u16's own parser accepts a leading plus sign.
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = if digits { text.parse().ok() } else { None };
        number.and_then(Port::new).ok_or(PortError)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The error of a number or a text that is not a [`Port`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a port is a number from 1 to 65535")]
#[non_exhaustive]
pub struct PortError;
