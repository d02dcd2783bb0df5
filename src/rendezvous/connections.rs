//! Many connections in one thread: accepts them, waits until one of them can be read or written,
//! and never blocks for one.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::io::Errno;

use super::auth::Bytes32;
use super::frame::Message;
use mpienv_core::Port;

/// How many connections one wait can name.
pub(super) const MOST_READY: usize = 1024;
const WAKE: Token = Token(usize::MAX);
/// Listeners have the tokens below [`WAKE`], and connections those from 0.
const LISTENERS: usize = 1 << 16;
/// Messages up to this length are written together with their tag.
const SHORT: usize = 1024;

/// A connection, what its user knows about it, and what is still to be written to it.
#[derive(Debug)]
pub(super) struct Connection<S> {
    pub(super) stream: TcpStream,
    pub(super) peer: IpAddr,
    /// Counts up with every connection, so that the oldest can be found.
    pub(super) serial: u64,
    pub(super) state: S,
    queue: VecDeque<Arc<[u8]>>,
    written: usize,
}

/// Returns how many bytes were read, or `None` if there is nothing to read now. An end is an error.
pub(super) fn read(stream: &mut TcpStream, into: &mut [u8]) -> io::Result<Option<usize>> {
    // A call that does not block is never interrupted.
    match stream.read(into) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(length) => Ok(Some(length)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

impl<S> Connection<S> {
    /// Returns whether the other end has closed, as far as the system knows.
    pub(super) fn is_closed(&self) -> bool {
        match self.stream.peek(&mut [0]) {
            Ok(length) => length == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Writes as much of these bytes as the socket accepts, and queues the rest.
    pub(super) fn send(&mut self, bytes: impl Into<Arc<[u8]>>) -> io::Result<()> {
        self.queue.push_back(bytes.into());
        self.flush()
    }

    /// Like [`Connection::send`], for a message and its tag. Connections share the bytes of a long one.
    pub(super) fn send_tagged(&mut self, message: &Message, tag: Bytes32) -> io::Result<()> {
        if message.bytes.len() <= SHORT {
            return self.send([&message.bytes[..], &tag].concat());
        }
        self.queue.push_back(Arc::clone(&message.bytes));
        self.send(tag)
    }

    /// Writes as much of the queue as the socket accepts.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while let Some(bytes) = self.queue.front() {
            match self.stream.write(&bytes[self.written..]) {
                Ok(length) => self.written += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            if self.written == bytes.len() {
                self.written = 0;
                self.queue.pop_front();
            }
        }
        Ok(())
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.queue.is_empty()
    }
}

/// What [`Connections::accept`] found.
pub(super) enum Arrival {
    Came(TcpStream, SocketAddr, Port),
    /// The next one had closed already, or was never established.
    Gone,
    /// The process or the system has no file descriptor left.
    NoRoom(io::Error),
    None,
}

/// All connections of one end, by number. The number of one that has closed is given to another.
#[derive(Debug)]
pub(super) struct Connections<S> {
    poll: Poll,
    events: Events,
    listeners: Vec<(TcpListener, Port)>,
    /// Whether the listeners may hold more connections than were accepted.
    pub(super) has_more: bool,
    connections: Vec<Option<Connection<S>>>,
    free: Vec<usize>,
    serial: u64,
    /// The numbers of connections that have not identified themselves, oldest first.
    pub(super) newcomers: BTreeMap<u64, usize>,
}

impl<S> Connections<S> {
    pub(super) fn new() -> io::Result<Connections<S>> {
        Ok(Connections {
            poll: Poll::new()?,
            events: Events::with_capacity(MOST_READY),
            listeners: Vec::new(),
            has_more: false,
            connections: Vec::new(),
            free: Vec::new(),
            serial: 0,
            newcomers: BTreeMap::new(),
        })
    }

    /// What ends a wait from another thread. There can be one only.
    pub(super) fn waker(&self) -> io::Result<Waker> {
        Waker::new(self.poll.registry(), WAKE)
    }

    pub(super) fn listen(&mut self, mut listener: TcpListener, port: Port) -> io::Result<()> {
        let token = Token(WAKE.0 - 1 - self.listeners.len());
        self.poll.registry().register(&mut listener, token, Interest::READABLE)?;
        self.listeners.push((listener, port));
        self.has_more = true;
        Ok(())
    }

    /// From here on, other programs can use the ports.
    pub(super) fn stop_listening(&mut self) {
        self.listeners.clear();
        self.has_more = false;
    }

    /// Waits until connections can be read or written, and returns their numbers; at most for this
    /// time, and not if connections may be waiting to be accepted.
    pub(super) fn wait(&mut self, most: Duration) -> io::Result<Vec<usize>> {
        let most = if self.has_more { Duration::ZERO } else { most };
        match self.poll.poll(&mut self.events, Some(most)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
        let mut ready = Vec::new();
        for event in &self.events {
            match event.token() {
                WAKE => {}
                Token(id) if id >= WAKE.0 - LISTENERS => self.has_more = true,
                Token(id) => ready.push(id),
            }
        }
        Ok(ready)
    }

    /// Accepts the next connection.
    pub(super) fn accept(&mut self) -> Arrival {
        for (listener, port) in &self.listeners {
            match listener.accept() {
                Ok((stream, peer)) => return Arrival::Came(stream, peer, *port),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    // This process or the system has no file descriptor left.
                    return match Errno::from_io_error(&error) {
                        Some(Errno::MFILE | Errno::NFILE) => Arrival::NoRoom(error),
                        _ => Arrival::Gone,
                    };
                }
            }
        }
        self.has_more = false;
        Arrival::None
    }

    /// Adds a newcomer, and returns its number.
    pub(super) fn add(
        &mut self,
        mut stream: TcpStream,
        peer: IpAddr,
        state: S,
    ) -> io::Result<usize> {
        let id = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let both = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut stream, Token(id), both) {
            self.free.push(id);
            return Err(error);
        }
        // What is sent is small and complete: do not delay it.
        let _ = stream.set_nodelay(true);
        self.serial += 1;
        let (peer, serial, queue) = (peer.to_canonical(), self.serial, VecDeque::new());
        self.connections[id] = Some(Connection { stream, peer, serial, state, queue, written: 0 });
        self.newcomers.insert(serial, id);
        Ok(id)
    }

    /// Notes that a connection has identified itself.
    pub(super) fn identify(&mut self, id: usize) {
        if let Some(Some(connection)) = self.connections.get(id) {
            self.newcomers.remove(&connection.serial);
        }
    }

    pub(super) fn get(&self, id: usize) -> Option<&Connection<S>> {
        self.connections.get(id)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: usize) -> Option<&mut Connection<S>> {
        self.connections.get_mut(id)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection<S>> {
        self.connections.iter().flatten()
    }

    /// The numbers of the connections for which `is_wanted` returns true.
    pub(super) fn ids(&self, is_wanted: impl Fn(&Connection<S>) -> bool) -> Vec<usize> {
        let is_one = |&id: &usize| self.get(id).is_some_and(&is_wanted);
        (0..self.connections.len()).filter(is_one).collect()
    }

    /// Takes a connection out.
    pub(super) fn remove(&mut self, id: usize) -> Option<Connection<S>> {
        let mut connection = self.connections.get_mut(id)?.take()?;
        self.free.push(id);
        self.newcomers.remove(&connection.serial);
        // The caller may wait for the stream elsewhere.
        let _ = self.poll.registry().deregister(&mut connection.stream);
        Some(connection)
    }
}
