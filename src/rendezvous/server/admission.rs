//! Accepts connections, even when open files run out.

use std::net::SocketAddr;

use mio::net::TcpStream;

use super::visitor::Visitor;
use super::{Connection, Server};
use crate::auth::Exchange;
use crate::error::RendezvousError;
use crate::frame::greeting;
use crate::lines::Arrival;
use crate::value::port::Port;

/// How many connections to accept before reading from the others again.
const AT_ONCE: usize = 512;
/// How many connections, besides one for each rank, may be unidentified before the oldest is
/// closed.
const HALF_OPEN: usize = 2048;
/// How many connections that belong to no rank of this meeting may wait for the report before the
/// oldest is closed.
const GUESTS: usize = 8192;

impl Server<'_> {
    pub(super) fn accept(&mut self) -> Result<(), RendezvousError> {
        for _ in 0..AT_ONCE {
            match self.lines.accept() {
                Arrival::Came(stream, peer, port) => self.admit(stream, peer, port)?,
                Arrival::NoRoom(_) => self.make_room()?,
                Arrival::Gone => {}
                Arrival::None => break,
            }
        }
        Ok(())
    }

    fn admit(
        &mut self,
        stream: TcpStream,
        peer: SocketAddr,
        port: Port,
    ) -> Result<(), RendezvousError> {
        // Each connection has its own, so that a hello recorded on one is useless on another.
        let exchange = Exchange::new().map_err(RendezvousError::System)?;
        let greeting = greeting(&exchange.public, &self.secret.credential);
        if self.lines.newcomers.len() >= self.size().saturating_add(HALF_OPEN) {
            self.close_oldest();
        }
        match self.lines.add(stream, peer.ip(), Visitor::new(port, exchange)) {
            Ok(id) => {
                self.write(id, |connection: &mut Connection| connection.send(greeting));
            }
            Err(_) => self.problems.rejected += 1,
        }
        Ok(())
    }

    /// Closes the oldest connection that does not belong to a rank, so that the next one can be
    /// accepted.
    fn make_room(&mut self) -> Result<(), RendezvousError> {
        match self.close_oldest() {
            true => Ok(()),
            false => Err(RendezvousError::OpenFiles {
                joined: self.present(),
                size: self.settings.rank.size(),
            }),
        }
    }

    fn close_oldest(&mut self) -> bool {
        let oldest = self.lines.newcomers.first().or_else(|| self.guests.first());
        oldest.map(|&(_, id)| id).map(|id| self.close(id)).is_some()
    }

    /// Closes the oldest connections that wait for a report which is not for their rank, if there
    /// are too many.
    pub(super) fn limit_guests(&mut self) {
        while self.guests.len() > GUESTS
            && let Some(&(_, id)) = self.guests.first()
        {
            self.close(id);
        }
    }
}
