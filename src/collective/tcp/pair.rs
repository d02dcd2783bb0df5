//! Connects two ranks that other connections already know, for messages from one to the other.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::handshake::{self, Absence, BEAT, Joined};
use super::members::Members;
use super::mesh::new_peer;
use super::transfer::Links;
use super::{Tcp, Timeouts};
use crate::error::{CollectiveError, ConnectError};
use crate::rendezvous::handshake::{ConnectionKey, Introduced, Purpose, Refusal};
use crate::value::rank::Rank;

/// How long one attempt to connect takes. A rank that gives up does not wait longer for the system.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Two ranks, one of which sends messages to the other. In the group of the two, the sender is rank
/// 0 and the receiver is rank 1.
#[derive(Debug)]
pub struct Pair<'a> {
    /// What errors call the sender and the receiver.
    pub names: [u32; 2],
    /// The other rank's host, for errors.
    pub host: String,
    /// How this rank reaches the other.
    pub meeting: Meeting,
    /// What only the two ranks know.
    pub key: &'a [u8; 32],
    /// How long each waits for the other, now and later.
    pub timeout: Duration,
}

/// How two ranks reach each other.
#[derive(Debug)]
pub enum Meeting {
    /// This rank is the sender, and listens.
    At(TcpListener),
    /// This rank is the receiver, and connects to the sender.
    To(SocketAddr),
}

/// Why two ranks need not wait for each other any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The other rank is lost, or has left.
    Lost,
    /// This rank gives up.
    Canceled,
}

/// What ends a thread that connects.
#[derive(Default)]
struct Stop {
    is_set: AtomicBool,
    stream: Mutex<Option<TcpStream>>,
}

impl Stop {
    fn stream(&self) -> std::sync::MutexGuard<'_, Option<TcpStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self) {
        self.is_set.store(true, Ordering::SeqCst);
        if let Some(stream) = &*self.stream() {
            // Reads and writes in the other thread fail.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    /// Watches over the stream.
    fn watch(&self, stream: &TcpStream) -> io::Result<()> {
        *self.stream() = Some(stream.try_clone()?);
        if self.is_set() { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    }
}

impl Pair<'_> {
    /// Connects the two ranks, and lets `join` go on over the connection. Asks `end` again and
    /// again whether that is in vain.
    pub(crate) fn connect<T: Send>(
        self,
        end: &dyn Fn() -> Option<End>,
        join: impl FnOnce(Tcp) -> Result<T, CollectiveError> + Send,
    ) -> Result<T, ConnectError> {
        let (other, host) = (self.other(), self.host.clone());
        let (stop, (begun, over)) = (Stop::default(), mpsc::channel::<()>());
        let (connected, ended) = thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let _begun = begun;
                Ok::<T, ConnectError>(join(self.tcp(&stop)?)?)
            });
            let mut ended = None;
            while over.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                if ended.is_none() {
                    ended = end();
                    if ended.is_some() {
                        stop.set();
                    }
                }
            }
            (worker.join(), ended)
        });
        let panicked = |_| Err(ConnectError::Socket(io::Error::other("a thread panicked")));
        match (connected.unwrap_or_else(panicked), ended) {
            (connected, None) => connected,
            (_, Some(End::Canceled)) => Err(CollectiveError::Canceled.into()),
            (_, Some(End::Lost)) => {
                let reason = "it closed the connection".to_owned();
                Err(CollectiveError::Lost { rank: other, host, reason }.into())
            }
        }
    }

    /// This rank's place in the group of the two.
    fn own(&self) -> u32 {
        u32::from(matches!(self.meeting, Meeting::To(_)))
    }

    /// What errors call the other rank.
    fn other(&self) -> u32 {
        self.names[1 - self.own() as usize]
    }

    fn tcp(self, stop: &Stop) -> Result<Tcp, ConnectError> {
        let (own, deadline) = (self.own(), Instant::now() + self.timeout);
        let rank =
            Rank::new(own, 2).map_err(|error| ConnectError::Socket(io::Error::other(error)))?;
        let (stream, directions) = match &self.meeting {
            Meeting::At(listener) => self.accepted(listener, rank, deadline, stop)?,
            Meeting::To(address) => self.joined(*address, rank, deadline, stop)?,
        };
        stop.watch(&stream).map_err(ConnectError::Socket)?;
        let peer = new_peer((stream, directions), self.host, true, self.timeout)
            .map_err(ConnectError::Socket)?;
        let mut peers = Vec::from([None, None]);
        peers[1 - own as usize] = Some(peer);
        let timeouts = Timeouts { connecting: self.timeout, calls: self.timeout };
        let links = Links::new(own, peers, timeouts.calls).map_err(ConnectError::Socket)?;
        Ok(Tcp::of(rank, Members::world(links.named(self.names.to_vec()))))
    }

    fn accepted(
        &self,
        listener: &TcpListener,
        rank: Rank,
        deadline: Instant,
        stop: &Stop,
    ) -> Result<Joined, ConnectError> {
        let mut places = [None, None];
        let accepted =
            handshake::accept(listener, rank, self.key, &mut places, deadline, &stop.is_set);
        match (accepted, places) {
            (Ok(_), [_, Some(joined)]) => Ok(joined),
            (Ok(_), _) | (Err(Absence::Rank(_)), _) => Err(self.late()),
            (Err(Absence::Socket(error)), _) => Err(ConnectError::Socket(error)),
            (Err(Absence::Stopped), _) => {
                Err(ConnectError::Socket(io::ErrorKind::Interrupted.into()))
            }
        }
    }

    fn joined(
        &self,
        address: SocketAddr,
        rank: Rank,
        deadline: Instant,
        stop: &Stop,
    ) -> Result<Joined, ConnectError> {
        let stream = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.late());
            }
            match TcpStream::connect_timeout(&address, left.min(ATTEMPT)) {
                Ok(stream) => break stream,
                Err(error) if error.kind() == io::ErrorKind::TimedOut && !stop.is_set() => {}
                Err(error) => return Err(self.refused(address, Refusal::Connection(error))),
            }
        };
        let introduce = || {
            stop.watch(&stream)?;
            // The hello must not wait for an acknowledgment.
            stream.set_nodelay(true)?;
            let key = ConnectionKey::new(self.key, Purpose::Collective, 0);
            Introduced::new(stream, deadline, &key, rank)?.welcomed()
        };
        introduce().map_err(|refusal| self.refused(address, refusal))
    }

    fn late(&self) -> ConnectError {
        let (rank, host) = (self.other(), self.host.clone());
        CollectiveError::TimedOut { rank, host, seconds: self.timeout.as_secs_f64() }.into()
    }

    fn refused(&self, address: SocketAddr, refusal: Refusal) -> ConnectError {
        let (rank, host) = (self.other(), self.host.clone());
        CollectiveError::Lost { rank, host, reason: format!("{address}: {refusal}") }.into()
    }
}

#[cfg(test)]
mod tests;
