//! The launches of all nodes: they meet once, and each of the others stays connected to that of the first node.
//!
//! They meet by the rendezvous, which knows the job's token. There the first gives each of them a random number, which
//! its connection must present. The connection carries frames in both directions until the job is over: events to the
//! first node, orders from it, and signs of life. No process can join later.

mod codec;
mod hub;
mod member;
mod stream;

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::link::Link;
use super::mailbox::Mailbox;
use crate::cluster::info::ClusterInfo;
use crate::launch::error::LaunchError;
use crate::rendezvous::{self, Gathered, Rendezvous};
use crate::value::host::Host;
use crate::value::host_name::host_name;
use crate::value::port::Port;

pub(super) use hub::Hub;
pub(super) use member::Member;

use codec::{Reader, Writer};

/// The version of the frames.
const VERSION: u32 = 1;
/// How long the connections may take once all launches have met.
const CONNECT: Duration = Duration::from_secs(30);
/// How many connections the system keeps until they are taken.
const BACKLOG: i32 = 4096;

/// What a launch brings to the meeting.
pub(in crate::launch) struct Meeting<'a> {
    /// This node's only process.
    pub info: &'a ClusterInfo,
    /// How often the platform had restarted the job, as this node knows it.
    pub base: u32,
    pub most: u32,
    /// How long all may take to arrive.
    pub arrival: Duration,
    /// How long a node may be silent.
    pub silence: Duration,
}

/// What the first launch gives to the others.
struct Terms {
    base: u32,
    port: u16,
    silence: Duration,
    key: [u8; 16],
}

impl Terms {
    fn encode(&self) -> Vec<u8> {
        let silence = u32::try_from(self.silence.as_millis()).unwrap_or(u32::MAX);
        let mut writer = Writer::new();
        [VERSION, self.base, u32::from(self.port), silence].into_iter().for_each(|number| writer.number(number));
        writer.bytes(&self.key);
        writer.finish()
    }

    fn decode(bytes: &[u8]) -> Option<Terms> {
        let mut reader = Reader::new(bytes);
        let version = reader.number()?;
        let terms = Terms {
            base: reader.number()?,
            port: u16::try_from(reader.number()?).ok()?,
            silence: Duration::from_millis(reader.number()?.into()),
            key: reader.bytes()?.try_into().ok()?,
        };
        (version == VERSION).then_some(terms)
    }
}

/// Waits for the launches of all nodes, and connects them; also how often the platform had restarted the job.
pub(in crate::launch) fn meet(meeting: Meeting<'_>) -> Result<(Link, u32), LaunchError> {
    let Meeting { info, base, most, arrival, silence } = meeting;
    let (rank, port) = (info.world(), info.launchers_port());
    let master = info.master_addr()?.clone();
    let not_met = |error| LaunchError::NotMet { port, error };
    let mut token = info.token().as_bytes().to_vec();
    if token.len() + OF_LAUNCHES.len() <= rendezvous::LONGEST_TOKEN {
        token.extend(OF_LAUNCHES);
    }
    let rendezvous = Rendezvous::new(rank, master.clone(), port).timeout(arrival).token(token);
    let own = |base: u32| {
        let mut writer = Writer::new();
        writer.number(VERSION);
        writer.number(base);
        writer.finish()
    };
    let mailbox = Arc::<Mailbox>::default();
    if rank.is_first() {
        let listener = listen(&master, info, port).map_err(LaunchError::Nodes)?;
        let listens_at = listener.local_addr().map_err(LaunchError::Nodes)?.port();
        let (key, agreed) = (random_key(), Cell::new(base));
        let terms = |base| Terms { base, port: listens_at, silence, key };
        rendezvous
            .gather_with_reply(own(base), |meeting| {
                let bases = meeting.members().iter().filter_map(|member| {
                    let mut reader = Reader::new(member.blob());
                    (reader.number()? == VERSION).then(|| reader.number()).flatten()
                });
                agreed.set(bases.max().unwrap_or(base));
                terms(agreed.get()).encode()
            })
            .map_err(not_met)?;
        let streams = stream::accept(&listener, rank.size(), &key, CONNECT).map_err(LaunchError::Nodes)?;
        let hub = Hub::start(streams, most, silence, Arc::clone(&mailbox)).map_err(LaunchError::Nodes)?;
        return Ok((Link::first(hub, mailbox), agreed.get()));
    }
    let strange = || LaunchError::Nodes(io::Error::other("the first node runs another version of mpienv"));
    let terms = match rendezvous.gather_with_reply(own(base), |_| Vec::new()).map_err(not_met)? {
        Gathered::Reply(reply) => Terms::decode(&reply).ok_or_else(strange)?,
        Gathered::All(_) => return Err(strange()),
    };
    let port = Port::new(terms.port).ok_or_else(strange)?;
    let host = host_name().unwrap_or_else(|| "an unknown host".to_owned());
    let connected = stream::connect(&master.with_port(port), &terms.key, rank.index(), &host, CONNECT);
    let stream = connected.map_err(LaunchError::Nodes)?;
    let member = Member::start(stream, master.to_string(), terms.silence, Arc::clone(&mailbox));
    Ok((Link::other(rank.index(), member.map_err(LaunchError::Nodes)?, mailbox), terms.base))
}

/// Keeps workers that use the rendezvous themselves out of the launches' meeting.
const OF_LAUNCHES: &[u8] = b"/launches";

/// A key that only the launches in the meeting know.
fn random_key() -> [u8; 16] {
    // The standard library takes the keys of its maps from the system's random numbers.
    let state = RandomState::new();
    let halves = [state.hash_one("first half"), state.hash_one("second half")];
    let mut key = [0; 16];
    for (place, byte) in key.iter_mut().zip(halves.iter().flat_map(|half| half.to_be_bytes())) {
        *place = byte;
    }
    key
}

/// Listens at a free port of the job's range, on loopback only if the master is there.
fn listen(master: &Host, info: &ClusterInfo, met_at: Port) -> io::Result<TcpListener> {
    let addresses: &[IpAddr] = match master.is_loopback() {
        true => &[master.address().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))],
        false => &[IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)],
    };
    let workers = info.master_port();
    let ports = info.port_range.ports_from(u64::from(met_at.get()) + 1);
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for port in ports.filter(|&port| port != met_at && port != workers) {
        for address in addresses {
            match open(SocketAddr::new(*address, port.get())) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = error,
            }
        }
    }
    Err(last)
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read_as_they_were_written() {
        let terms = Terms { base: 3, port: 20_001, silence: Duration::from_millis(1500), key: random_key() };
        let read = Terms::decode(&terms.encode()).unwrap();
        assert_eq!((read.base, read.port, read.silence, read.key), (3, 20_001, terms.silence, terms.key));
        assert!(Terms::decode(&terms.encode()[1..]).is_none());
    }

    #[test]
    fn keys_differ() {
        assert_ne!(random_key(), random_key());
        assert_ne!(random_key()[..8], random_key()[8..]);
    }
}
