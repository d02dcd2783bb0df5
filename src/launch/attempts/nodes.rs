//! Connects the launches of all nodes: they meet once, and each then stays connected to that of the
//! first node.
//!
//! They meet through the rendezvous, with keys that ranks do not have. Their connections stay open
//! until the job is over. They carry events to the first node, orders from it, and heartbeats. No
//! process can join later. `mpienv::guide::wire_format` specifies the messages.

mod codec;
mod hub;
mod member;

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::link::Link;
use super::mailbox::Mailbox;
use super::own_host;
use crate::cluster::info::ClusterInfo;
use crate::launch::error::LaunchError;
use crate::rendezvous::{self, Gathered, Rendezvous};
use mpienv_core::seam::InfoSeam as _;

pub(super) use hub::Hub;
pub(super) use member::Member;

use codec::{Introduction, Terms};
use hub::Node;

/// What a launch contributes to the meeting.
pub(crate) struct Meeting<'a> {
    /// The only process on this node.
    pub info: &'a ClusterInfo,
    /// How often the platform had restarted the job, as this node knows it.
    pub base: u32,
    pub most: u32,
    /// How long all launches may take to arrive.
    pub arrival: Duration,
    /// How long a node may be silent.
    pub silence: Duration,
}

/// Waits for the launches of all nodes, and connects them. Also returns how often the platform had
/// restarted the job.
pub(crate) fn meet(meeting: Meeting<'_>) -> Result<(Link, u32), LaunchError> {
    let Meeting { info, base, most, arrival, silence } = meeting;
    let (rank, port) = (info.world(), info.launchers_port());
    let master = info.master_addr()?.clone();
    let rendezvous = Rendezvous::of(info, master.clone(), port).timeout(arrival);
    let own = Introduction { base, host: own_host() }.encode();
    let agreed = Cell::new(base);
    let answer = |all: &rendezvous::Meeting| {
        let others = all.members().iter().filter_map(|member| Introduction::decode(member.blob()));
        agreed.set(others.map(|other| other.base).max().unwrap_or(base));
        Terms { base: agreed.get(), silence }.encode()
    };
    let met = rendezvous::stay_connected(&rendezvous, own, answer);
    let (gathered, channels) = met.map_err(|error| LaunchError::NotMet { port, error })?;
    let mailbox = Arc::<Mailbox>::default();
    match gathered {
        Gathered::All(all) => {
            let node = |channel: rendezvous::Channel| {
                let brought =
                    all.members().get(usize::try_from(channel.rank()).unwrap_or(usize::MAX));
                let host = brought
                    .and_then(|member| Introduction::decode(member.blob()))
                    .map(|other| other.host);
                Node { number: channel.rank(), host: host.unwrap_or_default(), channel }
            };
            let nodes = channels.into_iter().map(node).collect();
            let hub = Hub::start(nodes, most, silence, Arc::clone(&mailbox))
                .map_err(LaunchError::Nodes)?;
            Ok((Link::first(hub, mailbox), agreed.get()))
        }
        Gathered::Reply(reply) => {
            let strange =
                || LaunchError::Nodes(io::Error::other("the first node's answer cannot be read"));
            let terms = Terms::decode(&reply).ok_or_else(strange)?;
            let channel = channels.into_iter().next().ok_or_else(strange)?;
            let member =
                Member::start(channel, master.to_string(), terms.silence, Arc::clone(&mailbox));
            Ok((
                Link::other(rank.index(), member.map_err(LaunchError::Nodes)?, mailbox),
                terms.base,
            ))
        }
    }
}

/// Returns why a connection broke.
fn reason(error: &io::Error, silence: Duration) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("nothing was heard from it for {} s", silence.as_secs_f64())
        }
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => "its mpienv closed the connection".to_owned(),
        _ => error.to_string(),
    }
}
