//! Measures the network between every two hosts, in rounds of disjoint pairs that rank 0 calls.

mod connect;
mod findings;
mod judge;
mod measure;
mod report;
pub(super) mod rounds;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use mpienv_rendezvous::seam::listen::{at_free_port, on_free_port};
use serde::{Deserialize, Serialize};

use self::judge::{Between, Fault};
use self::measure::Measured;
use self::report::show_progress;
use self::rounds::Pair;
use super::connections::{Connections, Order};
use super::measurement::Measurement;
use super::{CheckError, rendezvous};
use crate::rendezvous::Meeting;
use crate::{ClusterInfo, Port, host_name, printable};

/// How long two hosts may take to connect, at first and if they are to try again.
const PATIENCE: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(6)];
/// How often what stands out is measured again: other load on a host passes.
const PASSES: usize = 3;
/// How many ports each host offers. The attempts take them in turn.
const PORTS: usize = 2;

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
        timeout: Duration,
        bind: Option<IpAddr>,
        most: u64,
        is_simulated: bool,
    ) -> Result<Mesh, CheckError> {
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
        let meeting =
            rendezvous(info, timeout, bind)?.all_gather(card.map_err(CheckError::Report)?)?;
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
        Ok(self.report(&known.into_values().collect::<Vec<_>>(), count, begun.elapsed()))
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
        Some(self.measure(own, partner, attempt))
    }

    fn measure(&self, own: usize, partner: usize, attempt: usize) -> Answer {
        let (Some(listener), Some(peer)) =
            (self.listeners.get(attempt % PORTS), self.hosts.get(partner))
        else {
            return Answer::default();
        };
        let address = peer.at[attempt % PORTS];
        let patience = PATIENCE[attempt.min(PATIENCE.len() - 1)];
        let rank = self.hosts[own].rank;
        let (outgoing, theirs) =
            connect::connect(listener, &self.key, rank, peer.rank, address, patience);
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
        answer
    }

    fn report(&self, pairs: &[Between], rounds: usize, elapsed: Duration) -> Measurement {
        let faults = match self.is_simulated {
            // The simulated hosts share the cores of one, so that speeds say nothing.
            true => Vec::new(),
            false => judge::judge(self.hosts.len(), pairs),
        };
        let names: Vec<&str> = self.hosts.iter().map(|contact| &*contact.host).collect();
        let findings = findings::of(&faults, &names, pairs);
        let bad_hosts = faults.iter().filter_map(|fault| match *fault {
            Fault::BlockedHost(host) | Fault::SlowHost(host) => Some(names[host].to_owned()),
            _ => None,
        });
        report::measurement(&self.hosts, pairs, rounds, elapsed, findings, bad_hosts.collect())
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
        let at = card.ports.iter().filter_map(|&port| Some((Port::new(port)?, port)));
        let at = at.map(|(port, number)| match card.address {
            Some(address) => SocketAddr::new(address, number),
            None => member.at(port),
        });
        let at: Vec<_> = at.collect();
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
