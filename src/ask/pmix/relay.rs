//! Carries what libpmix and the server say to each other, over a connection that outlives libpmix.
//!
//! The server takes the end of a rank's connection for the loss of that rank: it then waits for one
//! rank less of the node, in a fence that has begun, and in every fence if it has not yet noted
//! that the rank has finalized. `MPI_Init` of a program that starts afterward then hangs. libpmix
//! ends its connection as soon as it finalizes, so it connects to a relay, and the relay's
//! connection to the server stays open.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use rustix::net::{Shutdown, shutdown};

use super::PATIENCE;

/// Where the server listens, and what libpmix needs to know of it besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// The variable, whose name tells libpmix the server's version, and the server's own name.
    name: String,
    address: SocketAddr,
}

impl Server {
    /// Parses the value of a variable such as `PMIX_SERVER_URI41`: `name.rank;tcp4://host:port`.
    pub(super) fn parse(variable: &str, uri: &str) -> Option<Server> {
        let (name, place) = uri.split_once(';')?;
        let (_, address) = place.split_once("://")?;
        Some(Server { name: format!("{variable};{name}"), address: address.parse().ok()? })
    }
}

/// A server for libpmix that passes everything on to the launcher's.
pub(super) struct Relay {
    uri: String,
    listener: TcpListener,
    server: Receiver<io::Result<TcpStream>>,
}

impl Relay {
    /// Starts to listen. No process of another machine can connect.
    pub(super) fn start(server: Server) -> io::Result<Relay> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let uri = format!("{};tcp4://{}", server.name, listener.local_addr()?);
        let listening = listener.try_clone()?;
        let (sender, receiver) = mpsc::channel();
        thread::Builder::new().spawn(move || sender.send(carry(&listening, server.address)))?;
        Ok(Relay { uri, listener, server: receiver })
    }

    /// Returns the relay's address as libpmix reads it, in place of the launcher's variable: the
    /// variable's name comes first.
    pub(super) fn uri(&self) -> &str {
        &self.uri
    }

    /// Returns the connection to the server after libpmix has finalized. `None` if libpmix did not
    /// use the relay: before PMIx 4, or if an MPI program in this process was connected already.
    pub(super) fn connection(self) -> Option<TcpStream> {
        // On Linux, this ends the wait of a relay that has not been used. Elsewhere it ends in vain.
        close(&self.listener);
        self.server.recv_timeout(PATIENCE).ok()?.ok()
    }
}

/// Refuses further connections.
fn close(listener: &TcpListener) {
    let _ = shutdown(listener, Shutdown::Both);
}

/// Carries until libpmix closes its connection, and returns the one to the server.
fn carry(listener: &TcpListener, server: SocketAddr) -> io::Result<TcpStream> {
    let (mut client, _) = listener.accept()?;
    close(listener);
    let mut server = TcpStream::connect(server)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    let (mut answers, mut asker) = (server.try_clone()?, client.try_clone()?);
    thread::Builder::new().spawn(move || {
        let _ = io::copy(&mut answers, &mut asker);
        // The server may still announce events, and must never have to wait for a reader.
        let _ = io::copy(&mut answers, &mut io::sink());
    })?;
    io::copy(&mut client, &mut server)?;
    Ok(server)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn the_connection_to_the_server_outlives_the_one_of_the_client() {
        let launcher = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let uri = format!("prterun-a@0.1;tcp4://{}", launcher.local_addr().unwrap());
        let relay = Relay::start(Server::parse("PMIX_SERVER_URI41", &uri).unwrap()).unwrap();
        let address = relay.uri().strip_prefix("PMIX_SERVER_URI41;prterun-a@0.1;tcp4://").unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        let (mut server, _) = launcher.accept().unwrap();
        let mut said = [0; 4];
        client.write_all(b"ask!").unwrap();
        server.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"ask!");
        server.write_all(b"okay").unwrap();
        client.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"okay");
        drop(client);
        let kept = relay.connection().unwrap();
        server.set_nonblocking(true).unwrap();
        let open = server.read(&mut said).unwrap_err();
        assert_eq!(open.kind(), io::ErrorKind::WouldBlock);
        // The copy that the relay reads from ends with the process.
        kept.shutdown(std::net::Shutdown::Both).unwrap();
        server.set_nonblocking(false).unwrap();
        assert_eq!(server.read(&mut said).unwrap(), 0);
    }

    #[test]
    fn a_relay_that_was_not_used_has_no_connection() {
        let server = Server::parse("PMIX_SERVER_URI41", "a@0.1;tcp4://127.0.0.1:1").unwrap();
        assert!(Relay::start(server).unwrap().connection().is_none());
    }

    #[test]
    fn an_address_that_is_not_one_of_tcp_has_no_relay() {
        for uri in ["", "a.0", "a.0;usock", "a.0;tcp4://host:1", "a.0;tcp4://127.0.0.1"] {
            assert_eq!(Server::parse("PMIX_SERVER_URI41", uri), None, "{uri}");
        }
        let six = Server::parse("PMIX_SERVER_URI4", "a.0;tcp6://[::1]:5").unwrap();
        assert_eq!(six.address, "[::1]:5".parse().unwrap());
    }
}
