//! Accepts connections, even when open files run out.

use std::io;
use std::net::SocketAddr;

use mio::{Interest, Token};

use super::Server;
use crate::rendezvous::auth::nonce;
use crate::rendezvous::connection::Connection;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::frame::greeting;
use crate::rendezvous::listen::is_out_of_files;
use crate::value::port::Port;

/// How many connections to accept before reading from the others again.
const AT_ONCE: usize = 512;
/// How many connections, besides one for each rank, may be unidentified before the oldest is
/// closed.
pub(super) const HALF_OPEN: usize = 2048;
/// How many connections that belong to no rank of this meeting may wait for the report before the
/// oldest is closed.
const GUESTS: usize = 8192;

impl Server<'_> {
    pub(super) fn accept(&mut self) -> Result<(), RendezvousError> {
        let mut taken = 0;
        let mut turn = 0;
        while turn < self.listeners.len() {
            if taken == AT_ONCE {
                return Ok(());
            }
            taken += 1;
            let (listener, port) = &self.listeners[turn];
            let port = *port;
            match listener.accept() {
                Ok((stream, peer)) => self.admit(stream, peer, port)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => turn += 1,
                Err(error) if is_out_of_files(&error) => self.make_room()?,
                // The connection is already closed, or was never established: try the next one.
                Err(_) => {}
            }
        }
        self.more_to_accept = false;
        Ok(())
    }

    fn admit(
        &mut self,
        mut stream: mio::net::TcpStream,
        peer: SocketAddr,
        port: Port,
    ) -> Result<(), RendezvousError> {
        // Each connection has its own nonce, so that a hello recorded on one is useless on another.
        let nonce = nonce().map_err(RendezvousError::System)?;
        if self.newcomers.len() >= self.size().saturating_add(HALF_OPEN) {
            self.close_oldest();
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let both = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut stream, Token(id), both).is_err() {
            self.problems.rejected += 1;
            self.free.push(id);
            return Ok(());
        }
        // Answers are small and complete: do not delay them.
        let _ = stream.set_nodelay(true);
        self.serial += 1;
        self.newcomers.insert(self.serial, id);
        self.connections[id] =
            Some(Connection::new(stream, peer.ip().to_canonical(), port, self.serial, nonce));
        self.send(id, greeting(&nonce, &self.secret.credential).into());
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
        let oldest = self
            .newcomers
            .first_key_value()
            .or_else(|| self.guests.first_key_value())
            .map(|(_, &id)| id);
        oldest.map(|id| self.close(id)).is_some()
    }

    /// Closes the oldest connections that wait for a report which is not for their rank, if there
    /// are too many.
    pub(super) fn limit_guests(&mut self) {
        while self.guests.len() > GUESTS
            && let Some((_, &id)) = self.guests.first_key_value()
        {
            self.close(id);
        }
    }
}
