//! Accepts connections, even when open files run out.

use std::io;
use std::net::SocketAddr;

use mio::{Interest, Token};

use super::Server;
use crate::rendezvous::connection::{Connection, Stage};
use crate::rendezvous::error::RendezvousError;
use crate::value::port::Port;

/// Connections taken before the others are looked at again.
const AT_ONCE: usize = 512;

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
                Ok((stream, peer)) => self.admit(stream, peer, port),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => turn += 1,
                Err(error) if is_out_of_files(&error) => self.make_room()?,
                // The connection is gone again, or was never whole: look at the next.
                Err(_) => {}
            }
        }
        self.more_to_accept = false;
        Ok(())
    }

    fn admit(&mut self, mut stream: mio::net::TcpStream, peer: SocketAddr, port: Port) {
        let id = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let both = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut stream, Token(id), both).is_err() {
            self.problems.rejected += 1;
            self.free.push(id);
            return;
        }
        // Answers are small and complete: nothing to wait for.
        let _ = stream.set_nodelay(true);
        self.serial += 1;
        self.connections[id] = Some(Connection::new(stream, peer.ip().to_canonical(), port, self.serial));
        self.send(id, self.greeting.clone());
    }

    /// Closes the oldest connection that is not a rank's, so that the next can be accepted.
    fn make_room(&mut self) -> Result<(), RendezvousError> {
        let rejected = self.connections.iter().enumerate().filter_map(|(id, connection)| match connection {
            Some(Connection { stage: Stage::Member { .. }, .. }) | None => None,
            Some(connection) => Some((connection.serial, id)),
        });
        match rejected.min() {
            Some((_, id)) => {
                self.close(id);
                Ok(())
            }
            None => Err(RendezvousError::OpenFiles { joined: self.present(), size: self.settings.rank.size() }),
        }
    }
}

fn is_out_of_files(error: &io::Error) -> bool {
    // EMFILE and ENFILE, on Windows WSAEMFILE: the standard library has no kind for them.
    matches!(error.raw_os_error(), Some(24 | 23 | 10024))
}
