//! Measures the network between every two hosts, in rounds of disjoint pairs that rank 0 calls.

mod findings;
mod judge;
mod measure;
mod report;
pub(super) mod rounds;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use mpienv_rendezvous::seam::handshake::{ConnectionKey, Introduced, Purpose, Refusal};
use mpienv_rendezvous::seam::listen::{at_free_port, on_free_port};
use mpienv_rendezvous::seam::star::{Heard, Star, Times};
use serde::{Deserialize, Serialize};

use self::judge::Between;
use self::measure::Measured;
use self::report::show_progress;
use self::rounds::Pair;
use super::connections::{Connections, Order};
use super::measurement::Measurement;
use super::{CheckError, SIMULATED};
use crate::rendezvous::{Meeting, Rendezvous};
use crate::{ClusterInfo, Port, Rank, host_name, printable};

/// How long two hosts may take to connect, at first and if they are to try again.
const PATIENCE: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(6)];
/// How often what stands out is measured again: other load on a host passes.
const PASSES: usize = 3;
/// How many ports each host offers. The attempts take them in turn.
const PORTS: usize = 2;

/// How often to look whether the time is over.
const BEAT: Duration = Duration::from_millis(50);

/// This host's sockets, and what it knows of all hosts.
pub(super) struct Mesh {
    hosts: Vec<Contact>,
    /// This host's number, if this rank measures for its host.
    own: Option<usize>,
    listeners: Vec<TcpListener>,
    key: [u8; 32],
    most: u64,
    is_simulated: bool,
}

/// The first rank of a host, which measures for it.
#[derive(Debug)]
struct Contact {
    rank: u32,
    host: String,
    at: Vec<SocketAddr>,
}

/// What a rank brings to the meeting. Ranks that do not measure bring nothing.
#[derive(Serialize, Deserialize)]
struct Card {
    host: String,
    ports: Vec<u16>,
    /// Where to connect to, if it is not where the rank came from.
    address: Option<IpAddr>,
}

/// What a host has to say about one pair.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Answer {
    /// Where it could not connect to, and why.
    unreached: Option<String>,
    /// What it measured, if it made the connection that was measured.
    measured: Option<Measured>,
    /// Why nothing was measured although the hosts connected.
    broken: Option<String>,
}

impl Mesh {
    /// Listens, and finds out from all ranks where they listen.
    pub(super) fn meet(
        info: &ClusterInfo,
        rendezvous: &Rendezvous,
        most: u64,
    ) -> Result<Mesh, CheckError> {
        let is_simulated = info.environment().get(SIMULATED).is_some();
        let master = info.master_addr()?;
        let chosen = mpienv_ask::on_interface(info)?.interface().map(|own| own.address);
        let mut listeners = Vec::new();
        // The simulated hosts are all this one, so only the node's number tells them apart.
        let node = info.node_rank().filter(|_| is_simulated).map(|node| format!("node {node}"));
        if info.local_rank().is_none_or(|local| local == 0) {
            for _ in 0..PORTS {
                let listener = chosen.map_or_else(|| on_free_port(master), at_free_port);
                listeners.push(listener.map_err(CheckError::Socket)?);
            }
        }
        let local = listeners.iter().map(TcpListener::local_addr);
        let local = local.collect::<Result<Vec<_>, _>>().map_err(CheckError::Socket)?;
        let card = Card {
            host: node.or_else(host_name).unwrap_or_default(),
            ports: local.iter().map(SocketAddr::port).collect(),
            address: local.first().map(SocketAddr::ip).filter(|address| !address.is_unspecified()),
        };
        let card = if listeners.is_empty() { Ok(Vec::new()) } else { serde_json::to_vec(&card) };
        let meeting = rendezvous.all_gather(card.map_err(CheckError::Report)?)?;
        let hosts = hosts(&meeting)?;
        let own = hosts.iter().position(|contact| contact.rank == info.rank().index());
        if own.is_none() {
            listeners.clear();
        }
        let key = meeting.derive_key("check --mesh");
        Ok(Mesh { hosts, own, listeners, key, most, is_simulated })
    }

    /// Rank 0 calls all rounds, and returns what was measured.
    pub(super) fn lead(&self, others: &mut Connections) -> Result<Measurement, CheckError> {
        let begun = Instant::now();
        let mut known: BTreeMap<Pair, Between> = BTreeMap::new();
        let mut rounds = rounds::rounds(self.hosts.len());
        let (mut count, mut total) = (0, 0);
        for attempt in 0..=PASSES {
            total += rounds.len();
            for pairs in rounds {
                show_progress(count, total);
                self.call(others, pairs, attempt, &mut known)?;
                count += 1;
            }
            let (met, all): (Vec<_>, Vec<_>) = known.clone().into_iter().unzip();
            let bad = judge::standing_out(self.hosts.len(), &all, self.is_simulated);
            rounds = rounds::disjoint(&rounds::again(
                self.hosts.len(),
                &bad,
                &met,
                attempt + 1 == PASSES,
            ));
        }
        show_progress(total, total);
        let pairs: Vec<Between> = known.into_values().collect();
        Ok(report::measurement(self, &pairs, count, begun.elapsed()))
    }

    /// Lets the pairs of one round measure, and notes what they say.
    fn call(
        &self,
        others: &mut Connections,
        pairs: Vec<Pair>,
        attempt: usize,
        known: &mut BTreeMap<Pair, Between>,
    ) -> Result<(), CheckError> {
        let hosts: Vec<usize> = pairs.iter().flat_map(|&(first, second)| [first, second]).collect();
        let ranks: Vec<u32> = hosts.iter().map(|&host| self.hosts[host].rank).collect();
        let order = Order::Measure { pairs: pairs.clone(), attempt };
        let own = || self.take_part(&pairs, attempt).unwrap_or_default();
        let answers: Vec<Answer> = others.ask(&order, &ranks, own)?;
        for (&pair, answers) in pairs.iter().zip(answers.as_chunks::<2>().0) {
            let between = known.entry(pair).or_insert_with(|| Between::new(pair));
            for (side, answer) in answers.iter().enumerate() {
                between.note(side, answer);
            }
        }
        Ok(())
    }

    /// Measures with this host's partner, if it has one in this round.
    pub(super) fn take_part(&self, pairs: &[Pair], attempt: usize) -> Option<Answer> {
        let own = self.own?;
        let partner = pairs.iter().find_map(|&(first, second)| match own {
            own if own == first => Some(second),
            own if own == second => Some(first),
            _ => None,
        })?;
        let (Some(listener), Some(peer)) =
            (self.listeners.get(attempt % PORTS), self.hosts.get(partner))
        else {
            return Some(Answer::default());
        };
        let address = peer.at[attempt % PORTS];
        let patience = PATIENCE[attempt.min(PATIENCE.len() - 1)];
        let (shared, deadline) = (&self.key, Instant::now() + patience);
        let connecting =
            Connecting { shared, own: self.hosts[own].rank, other: peer.rank, deadline };
        let (outgoing, theirs) = connecting.both_ways(listener, address);
        let mut answer = Answer::default();
        let mine = outgoing.map_err(|refusal| {
            answer.unreached = Some(format!("{address}: {refusal}"));
        });
        // Both hosts choose the connection that the first host made, if it did. The other one stays
        // open meanwhile.
        let outcome = match (mine.ok(), theirs) {
            (Some(mut stream), other) if own < partner || other.is_none() => {
                measure::drive(&mut stream, self.most).map(Some)
            }
            (_other, Some(mut stream)) => measure::serve(&mut stream).map(|()| None),
            _ => Ok(None),
        };
        match outcome {
            Ok(measured) => answer.measured = measured,
            Err(error) => answer.broken = Some(error.to_string()),
        }
        Some(answer)
    }
}

/// The first rank of each host, in the order of ranks.
fn hosts(meeting: &Meeting) -> Result<Vec<Contact>, CheckError> {
    let mut hosts: Vec<Contact> = Vec::new();
    let mut names: BTreeMap<String, u32> = BTreeMap::new();
    for (rank, member) in (0..).zip(meeting.members()) {
        if member.blob().is_empty() {
            continue;
        }
        let card: Card = serde_json::from_slice(member.blob()).map_err(CheckError::Report)?;
        let host = printable(card.host.as_bytes());
        let at = |&number: &u16| {
            let port = Port::new(number)?;
            let chosen = card.address.map(|address| SocketAddr::new(address, number));
            Some(chosen.unwrap_or_else(|| member.at(port)))
        };
        let at: Vec<_> = card.ports.iter().filter_map(at).collect();
        if at.len() == PORTS && *names.entry(host.clone()).or_insert(rank) == rank {
            hosts.push(Contact { rank, host, at });
        }
    }
    Ok(hosts)
}

impl Between {
    /// Notes what the first host (0) or the second one (1) says.
    fn note(&mut self, side: usize, answer: &Answer) {
        match &answer.unreached {
            None => self.reached[side] = true,
            Some(tried) => {
                // Later attempts take the same ports once more.
                let tried = printable(tried.as_bytes());
                let address = |text: &str| text.split_once(": ").map(|(at, _)| at.to_owned());
                let known = &mut self.tried[side];
                if known.iter().all(|other| address(other) != address(&tried)) {
                    known.push(tried);
                }
            }
        }
        let measured = answer.measured.map(|own| if side == 0 { own } else { own.reversed() });
        if let Some(own) = measured {
            self.measured = Some(self.measured.map_or(own, |known| known.better(own)));
        }
        if let Some(broken) = &answer.broken {
            self.broken = Some(printable(broken.as_bytes()));
        }
    }
}

/// Two ranks that connect, and until when.
struct Connecting<'a> {
    /// The key of all ranks.
    shared: &'a [u8; 32],
    own: u32,
    other: u32,
    deadline: Instant,
}

impl Connecting<'_> {
    /// Makes a connection to the other rank and accepts one from it. Returns the one that this host
    /// made, and the one that the other host made.
    fn both_ways(
        &self,
        listener: &TcpListener,
        address: SocketAddr,
    ) -> (Result<TcpStream, Refusal>, Option<TcpStream>) {
        thread::scope(|scope| {
            let accept = || self.accept(listener).ok();
            let incoming = match thread::Builder::new().spawn_scoped(scope, accept) {
                Ok(incoming) => incoming,
                Err(error) => return (Err(error.into()), None),
            };
            let outgoing = self.join(address);
            (outgoing, incoming.join().ok().flatten())
        })
    }

    fn join(&self, address: SocketAddr) -> Result<TcpStream, Refusal> {
        let left = self.left().max(Duration::from_millis(1));
        let stream = TcpStream::connect_timeout(&address, left)?;
        let key = ConnectionKey::new(self.shared, Purpose::Collective, self.other);
        // It says that it is the last rank of a job, because only one rank is let in at a time.
        let claimed = Rank::new(self.own, self.own.saturating_add(1)).map_err(io::Error::other)?;
        Ok(Introduced::new(stream, self.deadline, &key, claimed)?.welcomed()?.0)
    }

    fn accept(&self, listener: &TcpListener) -> io::Result<TcpStream> {
        let mut star = Star::new(Times { beat: BEAT, silence: self.left() })?;
        let key = ConnectionKey::new(self.shared, Purpose::Collective, self.own);
        star.listen(listener.try_clone()?, key, self.other..self.other.saturating_add(1))?;
        while !self.left().is_zero() {
            for (rank, heard) in star.turn(&[])? {
                if let (Heard::Came, Some((stream, _))) = (heard, star.take(rank)) {
                    stream.set_nonblocking(false)?;
                    return Ok(stream);
                }
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const KEY: [u8; 32] = [7; 32];
    const PATIENCE: Duration = Duration::from_secs(600);

    fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    fn connecting(shared: &[u8; 32], own: u32, other: u32, patience: Duration) -> Connecting<'_> {
        Connecting { shared, own, other, deadline: Instant::now() + patience }
    }

    #[test]
    fn two_hosts_connect_both_ways_beside_strangers_and_ranks_that_are_not_expected() {
        let ((one, at_one), (other, at_other)) = (listen(), listen());
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for address in [at_one, at_other] {
                        let stranger = TcpStream::connect(address);
                        let _ = stranger
                            .and_then(|mut stranger| stranger.write_all(b"GET / HTTP/1.1\r\n\r\n"));
                    }
                    // Another meeting's key, and a rank whose turn it is not.
                    for (key, rank) in [([8; 32], 5), (KEY, 4)] {
                        let soon = Duration::from_millis(100);
                        assert!(connecting(&key, rank, 2, soon).join(at_one).is_err());
                    }
                }
            });
            // The strangers are there first.
            thread::sleep(Duration::from_millis(50));
            let peer =
                scope.spawn(move || connecting(&KEY, 5, 2, PATIENCE).both_ways(&other, at_one));
            let (outgoing, incoming) = connecting(&KEY, 2, 5, PATIENCE).both_ways(&one, at_other);
            let (of_peer, at_peer) = peer.join().unwrap();
            is_over.store(true, Ordering::Relaxed);
            let ends = |one: &TcpStream, other: &TcpStream| {
                assert_eq!(one.local_addr().unwrap(), other.peer_addr().unwrap());
            };
            ends(&outgoing.unwrap(), &at_peer.unwrap());
            ends(&of_peer.unwrap(), &incoming.unwrap());
        });
    }

    #[test]
    fn a_host_that_cannot_be_reached_is_given_up_when_the_time_is_over() {
        let ((own, _), (gone, nowhere)) = (listen(), listen());
        drop(gone);
        let soon = Duration::from_millis(300);
        let (outgoing, incoming) = connecting(&KEY, 0, 1, soon).both_ways(&own, nowhere);
        assert!(incoming.is_none() && outgoing.is_err());
    }
}
