//! Checks which of this host's interfaces NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME select.

use std::net::IpAddr;

use super::{as_warning, several_nodes};
use crate::{ClusterInfo, Error, Finding};
use mpienv_ask::seam::{interfaces, is_bridge, names_of, nccl_takes};
use mpienv_core::seam::ASKED;

/// The variable that NCCL reads.
const NCCL: &str = "NCCL_SOCKET_IFNAME";
/// The variable that gloo reads.
const GLOO: &str = "GLOO_SOCKET_IFNAME";

/// The only finding here about interfaces that the host has.
const BRIDGE: &str = "nccl-bridge";

/// A host's interfaces: name and address, one entry for each address.
type Interfaces = [(String, IpAddr)];

/// Evaluates `NCCL_SOCKET_IFNAME` as NCCL does.
pub(super) fn nccl(info: &ClusterInfo, interfaces: &Interfaces) -> Option<Finding> {
    let value = info.nccl_socket_ifname()?;
    if let Some(address) =
        value.split(',').map(str::trim).find(|entry| entry.parse::<IpAddr>().is_ok())
    {
        let found = interfaces.iter().find(|(_, own)| own.to_string() == address);
        let name = found.map_or_else(String::new, |(name, _)| format!(": {name}"));
        return Some(Finding::error(
            "nccl-address",
            format!("NCCL_SOCKET_IFNAME={value} has the address {address}"),
            "NCCL compares it with the names of interfaces, and none has this name",
            format!("set NCCL_SOCKET_IFNAME to the interface's name{name}"),
        ));
    }
    let left = selected(value, interfaces);
    if left.is_empty() && !interfaces.is_empty() {
        let does =
            if value.starts_with('^') { "excludes every interface" } else { "names no interface" };
        let list = instead(info, interfaces).join(", ");
        let remedy = match &*info.provenance().nccl_socket_ifname {
            NCCL => format!("correct or unset {NCCL}"),
            ASKED => "correct the option, or let it be `unset`".to_owned(),
            _ => "set MPIENV_NCCL_IFNAME to a name of this list, or to `unset`".to_owned(),
        };
        return Some(Finding::warning(
            "nccl-nothing-left",
            format!("{NCCL}={value} {does} of this host, which has {list}"),
            "NCCL fails to initialize, even on a single host without a network",
            remedy,
        ));
    }
    let (bridges, others): (Vec<&str>, Vec<&str>) =
        left.into_iter().partition(|name| is_bridge(name));
    // Within one node, ranks find each other at any of its addresses.
    if bridges.is_empty() || !several_nodes(info) {
        return None;
    }
    let (what, better) = match others[..] {
        [] => (format!("only {}", bridges.join(", ")), instead(info, interfaces)),
        _ => (format!("{} in addition to {}", bridges.join(", "), others.join(",")), others),
    };
    let remedy = match better[..] {
        [] => "this host has no other interface; give it one on the cluster's network, and set MPIENV_NCCL_IFNAME to its name".to_owned(),
        _ => format!("set MPIENV_NCCL_IFNAME={}", better.join(",")),
    };
    Some(Finding::warning(
        BRIDGE,
        format!("NCCL_SOCKET_IFNAME={value} allows {what}"),
        "a bridge has the same address on every host, so ranks that choose it connect to themselves",
        remedy,
    ))
}

/// Returns this host's interfaces that a value of `NCCL_SOCKET_IFNAME` leaves to NCCL.
pub(super) fn selected<'a>(value: &str, interfaces: &'a Interfaces) -> Vec<&'a str> {
    names_of(interfaces).into_iter().filter(|name| nccl_takes(value, name)).collect()
}

/// Returns what could be used instead: no bridges, and loopback only on one node without other
/// interfaces.
fn instead<'a>(info: &ClusterInfo, interfaces: &'a Interfaces) -> Vec<&'a str> {
    let names = names_of(interfaces).into_iter().filter(|name| !is_bridge(name));
    let loopback =
        |name: &&str| interfaces.iter().any(|(own, address)| own == name && address.is_loopback());
    let (loopback, others): (Vec<&str>, Vec<&str>) = names.partition(loopback);
    if others.is_empty() && !several_nodes(info) { loopback } else { others }
}

/// Returns why the requested interface was not found.
pub(crate) fn not_found(error: &Error) -> Finding {
    let what = match (error.variable(), error.value()) {
        (Some(variable), Some(value)) => format!("{variable}={value}"),
        _ => "no network interface is known".to_owned(),
    };
    Finding::error("no-interface", what, error.reason().to_string(), error.remedy())
}

/// Checks `GLOO_SOCKET_IFNAME`. gloo accepts only complete names, one for each device.
pub(super) fn gloo(info: &ClusterInfo, interfaces: &Interfaces) -> Option<Finding> {
    let value = info.environment().get(GLOO)?.to_string_lossy().into_owned();
    let names = names_of(interfaces);
    let wrong = value
        .split(',')
        .map(str::trim)
        .find(|entry| !entry.is_empty() && !names.contains(entry))?;
    Some(Finding::error(
        "gloo-no-such-interface",
        format!(
            "{GLOO}={value} names {wrong:?}, but this host has {}",
            instead(info, interfaces).join(", ")
        ),
        "gloo needs complete names: it does not accept NCCL's ^, prefixes or addresses",
        "set GLOO_SOCKET_IFNAME to one of these names",
    ))
}

/// Returns which variables that a user has set name an interface that this host does not have. The
/// program may not use the library that reads them, so that none is more than a warning. The host's
/// interfaces are listed only if there is such a variable.
pub(crate) fn of_user(info: &ClusterInfo) -> Vec<Finding> {
    if ![GLOO, NCCL, "MPIENV_NCCL_IFNAME"].iter().any(|name| info.environment().is_set(name))
        && info.provenance().nccl_socket_ifname != ASKED
    {
        return Vec::new();
    }
    let interfaces = interfaces();
    let found = [nccl(info, &interfaces), gloo(info, &interfaces)];
    let is_absent = |finding: &Finding| finding.code != BRIDGE;
    found.into_iter().flatten().filter(is_absent).map(as_warning).collect()
}
