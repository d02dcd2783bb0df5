//! A range of addresses: `10.0.0.0/16`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A range of IP addresses that share their first bits. Its text form is `10.0.0.0/16`, or an
/// address alone.
///
/// ```
/// use mpienv::{Subnet, SubnetError};
///
/// let subnet: Subnet = "10.77.0.0/16".parse()?;
/// assert!(subnet.contains("10.77.3.1".parse()?) && !subnet.contains("10.78.0.1".parse()?));
/// let error: SubnetError = "10.77.0.0/33".parse::<Subnet>().unwrap_err();
/// assert!(error.to_string().ends_with("as in 10.0.0.0/16"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    address: IpAddr,
    /// At most the number of the address's bits.
    length: u8,
}

impl Subnet {
    /// Returns whether an address is in the range. An IPv4 address may be mapped to IPv6.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let (own, size) = bits(self.address);
        let (other, other_size) = bits(address.to_canonical());
        // A shift by all bits of the number overflows: then the range has every address.
        let differ = (own ^ other).checked_shr(u32::from(size - self.length));
        size == other_size && differ.is_none_or(|differ| differ == 0)
    }
}

/// Returns an address as a number, and how many bits it has.
fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (address.to_bits().into(), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

impl FromStr for Subnet {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Subnet, SubnetError> {
        let (address, length) =
            text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address: IpAddr = address.trim().parse().map_err(|_| SubnetError)?;
        let size = bits(address).1;
        let length = length.map_or(Ok(size), |length| length.trim().parse());
        let length = length.ok().filter(|length| *length <= size).ok_or(SubnetError)?;
        Ok(Subnet { address, length })
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// The error of parsing a text that is not a [`Subnet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a range of addresses is an address and the number of its fixed bits, as in 10.0.0.0/16")]
#[non_exhaustive]
pub struct SubnetError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_the_addresses_with_the_same_first_bits() {
        for (range, address, is_in) in [
            ("10.77.0.0/16", "10.77.255.1", true),
            ("10.77.0.0/16", "10.78.0.1", false),
            ("10.77.0.9/31", "10.77.0.8", true),
            ("10.77.0.9", "10.77.0.8", false),
            ("10.77.0.9", "::ffff:10.77.0.9", true),
            ("0.0.0.0/0", "127.0.0.1", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "fd77::1", true),
            ("fd77::/64", "fd77::1", true),
            ("fd77::/64", "fd77:0:0:1::1", false),
        ] {
            let subnet: Subnet = range.parse().unwrap();
            assert_eq!(subnet.contains(address.parse().unwrap()), is_in, "{address} in {range}");
        }
    }

    #[test]
    fn a_text_without_an_address_or_with_too_many_bits_is_no_range() {
        for text in ["", "eth0", "eth0/24", "10.0.0.0/33", "10.0.0.0/", "10.0.0/24", "::/129"] {
            assert_eq!(text.parse::<Subnet>(), Err(SubnetError), "{text}");
        }
        assert_eq!("10.0.0.0/8".parse::<Subnet>().unwrap().to_string(), "10.0.0.0/8");
    }
}
