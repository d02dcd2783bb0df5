//! Admits the connections of ranks that prove that they have the key, and no others.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;

use mio::net::TcpStream;

use super::{AT_ONCE, Heard, Member, Party, Star};
use crate::auth::Directions;
use crate::connections::{Arrival, read};
use crate::frame::FIRST;
use crate::handshake::{Admitted, ConnectionKey, Guest, stranger};
use mpienv_core::Port;

/// How many connections, besides one for each rank, may be unidentified before the oldest is
/// closed.
const HALF_OPEN: usize = 256;

/// Who may come in.
#[derive(Debug, Default)]
pub(super) struct Door {
    key: Option<ConnectionKey>,
    size: u32,
    /// The ranks that have not arrived, in order.
    absent: Vec<u32>,
    rejected: u64,
}

impl Star {
    /// Accepts these ranks of a job of `ranks.end` ranks, until all have arrived.
    pub fn listen(
        &mut self,
        listener: TcpListener,
        key: ConnectionKey,
        ranks: Range<u32>,
    ) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let port =
            Port::new(listener.local_addr()?.port()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let (size, absent) = (ranks.end, ranks.collect());
        self.door = Door { key: Some(key), size, absent, rejected: 0 };
        self.connections.listen(mio::net::TcpListener::from_std(listener), port)
    }

    /// The ranks that have not arrived, in order.
    pub fn absent(&self) -> &[u32] {
        &self.door.absent
    }

    /// How many connections were not of ranks that were expected.
    pub fn rejected(&self) -> u64 {
        self.door.rejected + self.connections.newcomers.len() as u64
    }

    /// Takes a rank's connection out once it has arrived, to use it otherwise.
    pub fn take(&mut self, rank: u32) -> Option<(std::net::TcpStream, Directions)> {
        let mut all = self.members(|member| member.rank == rank).into_iter();
        let connection = self.connections.remove(all.next()?)?;
        all.for_each(|id| self.reject(id));
        let Party::Member(member) = connection.state else { return None };
        self.has_come(rank);
        Some((connection.stream.into(), member.directions))
    }

    /// Closes the connections to a rank, which is not reported.
    pub fn forget(&mut self, rank: u32) {
        for id in self.members(|member| member.rank == rank) {
            self.connections.remove(id);
        }
    }

    /// Notes that a rank has arrived. Once all have, closes the port and all other connections.
    pub(super) fn has_come(&mut self, rank: u32) {
        if let Ok(at) = self.door.absent.binary_search(&rank) {
            self.door.absent.remove(at);
        }
        if self.door.absent.is_empty() {
            self.connections.stop_listening();
            self.dismiss_guests();
        }
    }

    pub(super) fn dismiss_guests(&mut self) {
        while let Some(&id) = self.connections.newcomers.values().next() {
            self.reject(id);
        }
    }

    fn reject(&mut self, id: usize) {
        self.door.rejected += u64::from(self.connections.remove(id).is_some());
    }

    /// Makes the next turn accept what found no free file descriptor.
    pub(super) fn try_again(&mut self) {
        self.connections.has_more = !self.door.absent.is_empty();
    }

    /// Accepts some connections, so that a flood does not delay the ranks.
    pub(super) fn accept(&mut self) -> io::Result<()> {
        let newest = self.connections.newcomers.keys().next_back().copied().unwrap_or(0);
        for _ in 0..if self.connections.has_more { AT_ONCE } else { 0 } {
            match self.connections.accept() {
                Arrival::Came(stream, peer, _) => {
                    if self.greet(stream, peer).is_err() {
                        self.door.rejected += 1;
                    }
                }
                Arrival::Gone => {}
                Arrival::None => break,
                // Close only what was read at least once: a rank says hello right after the
                // greeting.
                Arrival::NoRoom(error) => match self.connections.newcomers.first_key_value() {
                    Some((&serial, &id)) if serial <= newest => self.reject(id),
                    Some(_) => break,
                    None => {
                        self.connections.has_more = false;
                        return Err(error);
                    }
                },
            }
        }
        while self.connections.newcomers.len() > self.door.size as usize + HALF_OPEN
            && let Some(&id) = self.connections.newcomers.values().next()
        {
            self.reject(id);
        }
        Ok(())
    }

    fn greet(&mut self, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        let key = self.door.key.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let (guest, greeting) = Guest::new(key)?;
        let id = self.connections.add(stream, peer.ip(), Party::Guest(guest))?;
        let sent = self.connections.get_mut(id).map(|connection| connection.send(greeting));
        sent.unwrap_or(Ok(())).inspect_err(|_| drop(self.connections.remove(id)))
    }

    /// Reads what has arrived of a hello, and answers it.
    pub(super) fn read_hello(&mut self, id: usize, heard: &mut Vec<(u32, Heard)>) {
        match self.hello(id) {
            Ok(Some(rank)) => {
                self.connections.identify(id);
                heard.push((rank, Heard::Came));
                // What follows the hello may have arrived with it, as may the end.
                self.unread.push(id);
            }
            Ok(None) => {}
            Err(_) => self.reject(id),
        }
    }

    fn hello(&mut self, id: usize) -> io::Result<Option<u32>> {
        let Door { key: Some(key), size, absent, .. } = &self.door else { return Ok(None) };
        let Some(connection) = self.connections.get_mut(id) else { return Ok(None) };
        connection.flush()?;
        while let Party::Guest(guest) = &mut connection.state {
            let mut bytes = [0; FIRST];
            let Some(length) = read(&mut connection.stream, &mut bytes)? else { return Ok(None) };
            let admitted = guest.feed(&bytes[..length], key, *size)?;
            let Some(Admitted { rank, directions, welcome }) = admitted else { continue };
            absent.binary_search(&rank).map_err(|_| stranger())?;
            connection.state = Party::Member(Member::new(rank, directions, self.times.silence));
            // It confirms to the rank that this is the right address, and is short, so that a new
            // connection accepts all of it.
            connection.send(welcome)?;
            return if connection.is_flushed() { Ok(Some(rank)) } else { Err(stranger()) };
        }
        Ok(None)
    }
}
