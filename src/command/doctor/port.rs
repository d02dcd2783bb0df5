//! Checks whether rank 0 can listen on the master's port.

use std::ops::RangeInclusive;

use super::{Machine, as_warning, is_on_one_node, machine};
use crate::{ClusterInfo, Finding, Port, PortRange};
use mpienv_core::seam::{self, ASKED, UNPRIVILEGED};
use mpienv_rendezvous::seam::listen::PortState;

/// The variables that set the master's port.
const SETTINGS: [&str; 2] = ["MASTER_PORT", seam::MASTER_PORT];

/// Reports what may keep rank 0 from listening, before a program starts. It is a warning, because
/// the program may not use the port, or it may be what listens there.
pub(crate) fn of_rank_0(info: &ClusterInfo) -> Option<Finding> {
    // Rank 0 of a job on several nodes may not be the one that listens.
    let listens = is_on_one_node(info) == Some(true) && !info.agent_listens();
    let state = if listens { machine::port(info) } else { PortState::Free };
    taken(info, state).map(as_warning).or_else(|| privileged_of_rank_0(info))
}

/// Reports that this user may not listen on the master's port, before a program starts. Tries only
/// ports that are usually denied.
pub(crate) fn privileged_of_rank_0(info: &ClusterInfo) -> Option<Finding> {
    let is_low = info.master_port().get() < UNPRIVILEGED;
    privileged(info, is_low.then(|| machine::port(info))?).map(as_warning)
}

/// Reports that this user may not listen on the master's port, if it is in this state.
pub(super) fn privileged(info: &ClusterInfo, state: PortState) -> Option<Finding> {
    // The finding about the range names the cause already.
    let is_of_range = info.findings().iter().any(|found| found.code == "port-range-privileged");
    if state != PortState::Denied || is_of_range || info.agent_listens() {
        return None;
    }
    let port = info.master_port();
    Some(Finding::error(
        "port-privileged",
        format!("this is rank 0, and its user may not listen on its port {port}"),
        "only root, or a process with CAP_NET_BIND_SERVICE, can listen there, so the ranks never \
         meet",
        match another(info) {
            Some((how, own)) => format!("{how}, so that the job uses its own port {own}"),
            None => format!("give all ranks a MASTER_PORT from {UNPRIVILEGED} up"),
        },
    ))
}

/// Reports that another program uses the master's port, if it is in this state.
pub(super) fn taken(info: &ClusterInfo, state: PortState) -> Option<Finding> {
    if state != PortState::InUse || info.agent_listens() {
        return None;
    }
    let port = info.master_port();
    let choose = match another(info) {
        Some((how, own)) => format!("{how}, so that the job uses its own port {own};"),
        None => "give all ranks another MASTER_PORT,".to_owned(),
    };
    Some(Finding::error(
        "port-in-use",
        format!("this is rank 0, but another program already listens on its port {port}"),
        "rank 0 cannot listen there, or the other ranks connect to the wrong program",
        format!(
            "{choose} or stop that program (`ss -tlnpe sport = :{port}` shows it, or the uid of its user; it may be the job that hangs)"
        ),
    ))
}

/// Returns how to choose no port, and the port of its own that the job gets then, if a user chose
/// another one.
pub(crate) fn another(info: &ClusterInfo) -> Option<(String, Port)> {
    let (own, port) = (info.default_master_port(), info.master_port());
    let how = match &*info.provenance().master_port {
        ASKED => format!("omit the option that sets port {port}"),
        source if SETTINGS.contains(&source) => format!("unset {source}={port}"),
        _ => return None,
    };
    (own != port && info.default_port_is_own()).then_some((how, own))
}

/// Reports that an outgoing connection may take the master's port.
pub(super) fn ephemeral(info: &ClusterInfo, machine: &Machine) -> Option<Finding> {
    let port = info.master_port().get();
    let range = machine.ephemeral_ports.clone().filter(|range| range.contains(&port))?;
    let is_set = [SETTINGS[0], SETTINGS[1], ASKED].contains(&&*info.provenance().master_port);
    let remedy = match outside(&range) {
        Some(free) if is_set => {
            format!("choose a MASTER_PORT from {} to {}", free.first(), free.last())
        }
        Some(free) => format!("set {}={free} for all ranks", seam::PORT_RANGE),
        None => format!(
            "make that range smaller: `sysctl net.ipv4.ip_local_port_range=\"32768 60999\"`, or set {} for all ranks",
            seam::PORT_RANGE
        ),
    };
    Some(Finding::note(
        "port-ephemeral",
        format!(
            "MASTER_PORT {port} is in this host's range of outgoing connections, {} to {}",
            range.start(),
            range.end()
        ),
        "an outgoing connection may occupy it when rank 0 tries to listen",
        remedy,
    ))
}

/// Returns unprivileged ports that no outgoing connection takes: the default range, or ports just
/// below or above.
fn outside(ephemeral: &RangeInclusive<u16>) -> Option<PortRange> {
    const FEWEST: u16 = 100;
    const MOST: u16 = 1000;
    let (start, end) = (*ephemeral.start(), *ephemeral.end());
    let default = PortRange::default();
    if start > default.last().get() || end < default.first().get() {
        return Some(default);
    }
    let below = (start.saturating_sub(MOST).max(UNPRIVILEGED), start.saturating_sub(1));
    let above = (end.saturating_add(1), end.saturating_add(MOST));
    let wide = |(first, last): &(u16, u16)| last.saturating_sub(*first) >= FEWEST;
    let (first, last) = [below, above].into_iter().find(wide)?;
    format!("{first}-{last}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_that_are_suggested_are_outside_the_range_of_outgoing_connections() {
        for (start, end, free) in [
            (32_768, 60_999, Some("20000-29999")),
            (9_000, 65_000, Some("8000-8999")),
            (1_500, 60_999, Some("1024-1499")),
            (1_024, 60_999, Some("61000-61999")),
            (1_024, 65_500, None),
            (1, 65_535, None),
        ] {
            assert_eq!(
                outside(&(start..=end)).map(|range| range.to_string()).as_deref(),
                free,
                "{start} {end}"
            );
        }
    }
}
