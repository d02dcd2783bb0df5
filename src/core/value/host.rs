//! A host's name or address, checked before any connection is made.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::{fmt, fs};

use crate::value::port::Port;
use serde::{Serialize, Serializer};

/// A DNS name, an IPv4 address or a bare IPv6 address, as `MASTER_ADDR` holds it.
///
/// ```
/// use mpienv::{Host, HostError, Port};
///
/// let host: Host = "fe::1".parse()?;
/// let port = Port::new(6105).unwrap();
/// assert_eq!(host.to_string(), "fe::1");
/// assert_eq!(host.with_port(port), "[fe::1]:6105");
/// assert!(host.address().is_some_and(|address| address.is_ipv6()));
/// assert!(Host::LOOPBACK.is_loopback());
/// assert_eq!("node/1".parse::<Host>(), Err(HostError::Character('/')));
/// # Ok::<(), HostError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    text: Cow<'static, str>,
    /// The address, if the text is one. An IPv6 address may have a zone in the text:
    /// `fe80::1%eth0`.
    address: Option<IpAddr>,
}

/// Longest host name that DNS can carry, in bytes.
const LONGEST_NAME: usize = 253;
/// Longest part of a host name between two dots, in bytes.
const LONGEST_LABEL: usize = 63;

impl Host {
    /// This machine, by its IPv4 loopback address.
    pub const LOOPBACK: Host =
        Host { text: Cow::Borrowed("127.0.0.1"), address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)) };

    /// Every interface of this machine, on which rank 0 listens if it does not know its own
    /// address.
    #[doc(hidden)]
    pub const ANY: Host =
        Host { text: Cow::Borrowed("0.0.0.0"), address: Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) };

    /// Returns the IP address, or `None` if the host is a name.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Returns whether this is the local machine: a loopback address or the name `localhost`.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        match self.address {
            Some(address) => address.is_loopback(),
            None => self.text.eq_ignore_ascii_case("localhost"),
        }
    }

    /// Returns `host:port`, with an IPv6 address in brackets.
    #[must_use]
    pub fn with_port(&self, port: Port) -> String {
        match self.address() {
            Some(IpAddr::V6(_)) => format!("[{self}]:{port}"),
            _ => format!("{self}:{port}"),
        }
    }

    /// Parses a host with an optional port: `host`, `host:port`, `[v6]`, `[v6]:port` or bare `v6`.
    pub(crate) fn parse_with_port(text: &str) -> Result<(Host, Option<Port>), HostError> {
        if let Some(rest) = text.strip_prefix('[') {
            let (host, after) = rest.split_once(']').ok_or(HostError::Bracket)?;
            let host: Host = host.parse()?;
            if !matches!(host.address(), Some(IpAddr::V6(_))) {
                return Err(HostError::Bracket);
            }
            let port = match after.strip_prefix(':') {
                Some(port) => Some(parse_port(port)?),
                None if after.is_empty() => None,
                None => return Err(HostError::Bracket),
            };
            return Ok((host, port));
        }
        match text.split_once(':') {
            // Two colons or more: a bare IPv6 address, which cannot carry a port.
            Some((_, rest)) if rest.contains(':') => Ok((text.parse()?, None)),
            Some((host, port)) => Ok((host.parse()?, Some(parse_port(port)?))),
            None => Ok((text.parse()?, None)),
        }
    }
}

/// Returns the host and port that a user may have meant by a bare IPv6 address such as
/// `fd00::1:6105`.
///
/// Returns `None` if that is unlikely: the last group is a low number, with which many addresses
/// end; the text before it is not a complete address; or four groups follow `::`, which are the
/// interface's half of an address.
pub(crate) fn meant_with_port(text: &str) -> Option<(Ipv6Addr, Port)> {
    const LOWEST_LIKELY: u16 = 1024;
    let (front, last) = text.rsplit_once(':')?;
    let port = last
        .parse::<Port>()
        .ok()
        .filter(|port| port.get() >= LOWEST_LIKELY && !last.starts_with('0'))?;
    let is_half = text.split_once("::").is_some_and(|(_, half)| half.split(':').count() == 4);
    // The whole text must be an address too. If it is not, parsing reports another error.
    text.parse::<Ipv6Addr>().ok().filter(|_| !is_half)?;
    Some((front.parse().ok()?, port))
}

fn parse_port(text: &str) -> Result<Port, HostError> {
    text.parse().map_err(|_| HostError::Port(text.to_owned()))
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Host {
        Host { text: address.to_string().into(), address: Some(address) }
    }
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Host, HostError> {
        if text.is_empty() {
            return Err(HostError::Empty);
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Host::from(address));
        }
        if text.contains("://") {
            return Err(HostError::Url);
        }
        if text.starts_with('[') && text.contains(':') {
            let (_, port) = Host::parse_with_port(text)?;
            return Err(port.map_or(HostError::Bracketed, HostError::HasPort));
        }
        if let Some((host, port)) = text.split_once(':')
            && !port.contains(':')
            && (check_name(host).is_ok() || host.parse::<IpAddr>().is_ok())
        {
            return Err(parse_port(port).map_or_else(|error| error, HostError::HasPort));
        }
        if text.contains(':') {
            return parse_zoned(text);
        }
        check_name(text)?;
        Ok(Host { text: text.to_owned().into(), address: None })
    }
}

fn parse_zoned(text: &str) -> Result<Host, HostError> {
    let (address, zone) = text.split_once('%').ok_or(HostError::NotIpv6)?;
    let address: Ipv6Addr = address.parse().map_err(|_| HostError::NotIpv6)?;
    if zone.is_empty() || !zone.chars().all(is_plain) {
        return Err(HostError::NotIpv6);
    }
    Ok(Host { text: format!("{address}%{zone}").into(), address: Some(address.into()) })
}

/// Returns whether a host name or a zone may have this character. DNS has no underscores, but
/// container networks and schedulers use them.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

fn check_name(name: &str) -> Result<(), HostError> {
    match name.chars().find(|&c| !is_plain(c)) {
        Some(',' | '[') => return Err(HostError::List),
        Some(found) => return Err(HostError::Character(found)),
        None => {}
    }
    if name.len() > LONGEST_NAME {
        return Err(HostError::TooLong);
    }
    // A trailing dot marks a name as complete.
    let labels = name.strip_suffix('.').unwrap_or(name);
    for label in labels.split('.') {
        if label.is_empty()
            || label.len() > LONGEST_LABEL
            || label.starts_with('-')
            || label.ends_with('-')
        {
            return Err(HostError::Label(label.to_owned()));
        }
    }
    // Resolvers read `1001` and `10.0.0` as IPv4 addresses, so such a name can never be reached.
    let last = labels.rsplit('.').next().unwrap_or(labels);
    if last.bytes().all(|b| b.is_ascii_digit()) {
        return Err(HostError::NotIpv4);
    }
    Ok(())
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl Serialize for Host {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Why a text is not a [`Host`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The text is empty, or nothing precedes the colon.
    #[error("the host is empty")]
    Empty,
    /// The text is an IPv6 address in brackets, without a port.
    #[error("it is in brackets, which only an address with a port has: give it without them")]
    Bracketed,
    /// The text has a port, where only a host is expected.
    #[error("it has a port; give the host alone, and the port {0} as MASTER_PORT")]
    HasPort(Port),
    /// The text is a URL.
    #[error("it is a URL; give only the host's name or address")]
    Url,
    /// The text lists several hosts, where one is expected.
    #[error("it is a list of hosts; give only one, the host of rank 0")]
    List,
    /// The text contains a character that cannot be in a host name.
    #[error("{0:?} cannot be part of a host name")]
    Character(char),
    /// The name is longer than DNS allows.
    #[error("a host name has at most {LONGEST_NAME} characters")]
    TooLong,
    /// A part between two dots is empty, too long, or begins or ends with a dash.
    #[error("{0:?} cannot be a label of a host name")]
    Label(String),
    /// The last part has only digits, so a resolver would take the name for an address.
    #[error("it looks like an IPv4 address but is not one")]
    NotIpv4,
    /// The text has colons but is not an IPv6 address.
    #[error("it looks like an IPv6 address but is not one")]
    NotIpv6,
    /// The brackets do not contain an IPv6 address.
    #[error("brackets need an IPv6 address, as in [fd00::1]:6105")]
    Bracket,
    /// What follows the colon is not a port.
    #[error("{0:?} after the colon is not a port from 1 to 65535")]
    Port(String),
}

/// Where Linux has the name, and where most systems keep it if /proc is not there.
const FILES: [&str; 2] = ["/proc/sys/kernel/hostname", "/etc/hostname"];

/// Returns this host's name as the system reports it. Errors and job maps use it to name a rank's
/// host.
///
/// Returns `None` if the system provides no name.
///
/// ```
/// let host = mpienv::host_name().unwrap_or_else(|| "an unknown host".into());
/// println!("running on {host}");
/// ```
#[must_use]
pub fn host_name() -> Option<String> {
    let mut names = FILES.iter().filter_map(|file| fs::read_to_string(file).ok());
    names.next().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Returns the name of a host without its domain.
pub(crate) fn first_label(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_address_that_seems_to_end_with_a_port_is_recognized() {
        for (text, meant) in [
            ("2001:db8::10:6000", Some(("2001:db8::10", 6000))),
            ("fe80::a8bb:ccff:fedd:1234:6000", Some(("fe80::a8bb:ccff:fedd:1234", 6000))),
            ("fd00::6105", None),
            ("fd00::1:2", None),
            ("fd00::1:1000", None),
            ("fd00::1:61a5", None),
            ("fd00::1:06105", None),
            ("fe80::a8bb:ccff:fedd:1234", None),
            ("2001:db8:1:2:3:4:5:6105", None),
        ] {
            let meant = meant.map(|(host, port)| (host.parse().unwrap(), Port::new(port).unwrap()));
            assert_eq!(meant_with_port(text), meant, "{text}");
        }
    }
}
