//! Which connections rank 0 accepts: any until open files run out, and none from an address that has
//! tried too many wrong tokens.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::TcpStream;

use super::visitor::Visitor;
use super::{Server, Stage};
use crate::auth::Exchange;
use crate::connections::Arrival;
use crate::error::RendezvousError;
use crate::frame::{HelloReader, greeting};
use crate::listen::BACKLOG;
use mpienv_core::Port;

/// How many connections, besides one for each rank, may be unidentified before the oldest is
/// closed.
const HALF_OPEN: usize = 2048;
/// How many connections that belong to no rank of this meeting may wait for the report before the
/// oldest is closed.
const GUESTS: usize = 8192;

impl Server<'_> {
    fn most_unidentified(&self) -> usize {
        self.size().saturating_add(HALF_OPEN)
    }

    /// Accepts what the system has let wait, so that it need not drop the next connection, which
    /// would be repeated a second later. In a flood, none is closed before it is greeted.
    pub(super) fn accept(&mut self) -> Result<(), RendezvousError> {
        let most_ungreeted = (self.most_unidentified() / 2).min(BACKLOG as usize);
        for _ in self.ungreeted..most_ungreeted {
            match self.connections.accept() {
                Arrival::Came(stream, peer, port) => self.admit(stream, peer, port),
                Arrival::NoRoom(_) if self.ungreeted > 0 => break,
                Arrival::NoRoom(_) => {
                    // One that does not belong to a rank makes room for the next.
                    if !self.close_oldest() {
                        let (joined, size) = (self.present(), self.settings.rank.size());
                        return Err(RendezvousError::OpenFiles { joined, size });
                    }
                }
                Arrival::Gone => {}
                Arrival::None => break,
            }
        }
        Ok(())
    }

    /// Adds a connection. It is greeted in a later turn, because others connect in less time than
    /// a key exchange takes.
    fn admit(&mut self, stream: TcpStream, peer: SocketAddr, port: Port) {
        if self.connections.newcomers.len() >= self.most_unidentified() {
            self.close_oldest();
        }
        match self.connections.add(stream, peer.ip(), Visitor::new(port)) {
            Ok(_) => self.ungreeted += 1,
            Err(_) => self.problems.rejected += 1,
        }
    }

    /// Begins the key exchange of a new connection.
    pub(super) fn greet(&mut self, id: usize) -> Result<(), RendezvousError> {
        // Each connection has its own, so that a hello recorded on one is useless on another.
        let exchange = Exchange::new().map_err(RendezvousError::System)?;
        let greeting = greeting(&exchange.public, &self.secret.credential);
        let Some(connection) = self.connections.get_mut(id) else { return Ok(()) };
        connection.state.stage = Stage::Unknown(Box::new(HelloReader::new(exchange, None)));
        self.ungreeted -= 1;
        self.write(id, |connection| connection.send(greeting));
        Ok(())
    }

    /// Closes the oldest connection that does not belong to a rank, if there is one.
    fn close_oldest(&mut self) -> bool {
        let oldest =
            self.connections.newcomers.values().chain(self.guests.values()).next().copied();
        oldest.map(|id| self.close(id)).is_some()
    }

    /// Closes the oldest connections that wait for a report which is not for their rank, if there
    /// are too many.
    pub(super) fn limit_guests(&mut self) {
        while self.guests.len() > GUESTS
            && let Some(&id) = self.guests.values().next()
        {
            self.close(id);
        }
    }
}

/// How many wrong tokens an address may try at once: more than another job usually has ranks on one
/// host.
const GUESSES_AT_ONCE: u32 = 200;
/// How long after each wrong token an address may try one more.
const GUESS_PAUSE: Duration = Duration::from_millis(50);
/// How many addresses are counted one by one. All others count as one address.
const REMEMBERED: usize = 10_000;
/// Shortest time between two removals of addresses.
const SWEEP: Duration = Duration::from_secs(1);

/// The wrong tokens of all addresses.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    /// When each address may again try as many as at first.
    until: BTreeMap<IpAddr, Instant>,
    /// When addresses without recent wrong tokens were last removed.
    swept: Option<Instant>,
}

impl Guesses {
    /// Returns whether this address may try a token now.
    pub(super) fn allow(&self, address: IpAddr, now: Instant) -> bool {
        let latest = now + GUESS_PAUSE * (GUESSES_AT_ONCE - 1);
        self.until.get(&self.key(address)).is_none_or(|&until| until <= latest)
    }

    /// Counts a wrong token.
    pub(super) fn count(&mut self, address: IpAddr, now: Instant) {
        if self.until.len() >= REMEMBERED && self.swept.is_none_or(|swept| now - swept > SWEEP) {
            self.until.retain(|_, until| *until > now);
            self.swept = Some(now);
        }
        let until = self.until.entry(self.key(address)).or_insert(now);
        *until = now.max(*until) + GUESS_PAUSE;
    }

    fn key(&self, address: IpAddr) -> IpAddr {
        let key = network(address);
        let is_known = self.until.contains_key(&key) || self.until.len() < REMEMBERED;
        if is_known { key } else { Ipv6Addr::UNSPECIFIED.into() }
    }
}

/// Returns the /64 network of an IPv6 address, because one host can use all 2^64 addresses in it.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_waits_after_its_wrong_tokens_and_no_other_does() {
        let (guesser, other): (IpAddr, IpAddr) = ([10, 0, 0, 9].into(), [10, 0, 0, 1].into());
        let (begun, mut guesses, mut tried) = (Instant::now(), Guesses::default(), 0);
        // A try each millisecond for ten seconds.
        for milliseconds in 0..10_000 {
            let now = begun + Duration::from_millis(milliseconds);
            assert!(guesses.allow(other, now));
            if guesses.allow(guesser, now) {
                guesses.count(guesser, now);
                tried += 1;
            }
        }
        let later = 10_000 / GUESS_PAUSE.as_millis() as u32;
        let expected = GUESSES_AT_ONCE + later * 9 / 10..=GUESSES_AT_ONCE + later;
        assert!(expected.contains(&tried), "{tried}");
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_are_one() {
        let (now, mut guesses) = (Instant::now(), Guesses::default());
        let address = |host: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, host]);
        (0..200).for_each(|host| guesses.count(address(host), now));
        assert!(!guesses.allow(address(999), now));
        assert!(guesses.allow(IpAddr::from([0x2001, 0xdb8, 0, 2, 0, 0, 0, 1]), now));
    }

    #[test]
    fn a_hundred_thousand_addresses_take_no_more_memory_than_ten_thousand() {
        let (now, mut guesses) = (Instant::now(), Guesses::default());
        (0..100_000u32)
            .for_each(|address| guesses.count(std::net::Ipv4Addr::from(address).into(), now));
        assert!(guesses.until.len() <= REMEMBERED + 1);
        assert!(!guesses.allow([1, 2, 3, 4].into(), now), "the rest count as one address");
    }
}
