//! A TCP port that can be connected to.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::Serialize;

use crate::environment::digits;

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
        digits(text).and_then(Port::new).ok_or(PortError)
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

/// A range of TCP ports, including both ends. Its text form is `1400-1999`.
///
/// mpienv derives ports from this range. The default is 20000 to 29999, which is below Linux's
/// ephemeral ports (32768 and up) and below the node ports of Kubernetes (30000 and up).
///
/// ```
/// use mpienv::{ClusterInfo, PortRange, PortRangeError};
///
/// let range: PortRange = "1400-1999".parse()?;
/// assert_eq!((range.first().get(), range.last().get()), (1400, 1999));
/// assert_eq!(PortRange::new(range.first(), range.last()), Some(range));
/// assert_eq!(PortRange::default().to_string(), "20000-29999");
/// let error: PortRangeError = "1999-1400".parse::<PortRange>().unwrap_err();
/// assert_eq!(error, PortRangeError::Backwards);
/// // A single process gets a port from this range.
/// let info = ClusterInfo::from_vars([("MPIENV_PORT_RANGE", "1400-1999")])?;
/// assert!((1400..=1999).contains(&info.master_port().get()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    first: Port,
    last: Port,
}

impl PortRange {
    /// Creates a range. Returns `None` if `first` is above `last`.
    #[must_use]
    pub const fn new(first: Port, last: Port) -> Option<PortRange> {
        if first.get() <= last.get() { Some(PortRange { first, last }) } else { None }
    }

    /// Returns the lowest port.
    #[must_use]
    pub const fn first(self) -> Port {
        self.first
    }

    /// Returns the highest port.
    #[must_use]
    pub const fn last(self) -> Port {
        self.last
    }

    /// Returns how many ports the range has, at least 1.
    pub(crate) fn size(self) -> u64 {
        u64::from(self.last.get() - self.first.get()) + 1
    }

    /// Returns the port that a number selects: the first port plus the number modulo the size of
    /// the range.
    pub(crate) fn port(self, number: u64) -> Port {
        let port = u64::from(self.first.get()) + number % self.size();
        // The number is between the two.
        u16::try_from(port).ok().and_then(Port::new).unwrap_or(self.first)
    }

    /// Returns every port, starting with the one that the number selects.
    #[doc(hidden)]
    pub fn ports_from(self, number: u64) -> impl Iterator<Item = Port> {
        let size = self.size();
        (0..size).map(move |step| self.port(number % size + step))
    }
}

/// The range 20000 to 29999.
impl Default for PortRange {
    fn default() -> PortRange {
        const { PortRange { first: Port::new(20_000).unwrap(), last: Port::new(29_999).unwrap() } }
    }
}

impl FromStr for PortRange {
    type Err = PortRangeError;

    fn from_str(text: &str) -> Result<PortRange, PortRangeError> {
        let (first, last) = text.split_once('-').ok_or(PortRangeError::Form)?;
        let port = |text: &str| text.trim().parse().map_err(|_| PortRangeError::Form);
        PortRange::new(port(first)?, port(last)?).ok_or(PortRangeError::Backwards)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// The error of parsing a text that is not a [`PortRange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortRangeError {
    /// It is not two ports.
    #[error("not a range of ports from 1 to 65535, as in 1400-1999")]
    Form,
    /// The first port is above the last.
    #[error("the range runs backwards: the lower port comes first, as in 1400-1999")]
    Backwards,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_port_in_the_range() {
        let range: PortRange = "1400 - 1402".parse().unwrap();
        let ports: Vec<_> = [0, 1, 2, 3, u64::MAX].map(|number| range.port(number).get()).into();
        assert_eq!(ports, [1400, 1401, 1402, 1400, 1400]);
        assert_eq!(range.ports_from(5).map(Port::get).collect::<Vec<_>>(), [1402, 1400, 1401]);
        let whole: PortRange = "1-65535".parse().unwrap();
        assert_eq!((whole.port(65534).get(), whole.port(65535).get()), (65535, 1));
    }
}
