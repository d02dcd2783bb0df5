//! Connects two hosts in both directions. Only the expected rank of this job is let in.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use mpienv_rendezvous::seam::handshake::{ConnectionKey, Introduced, Purpose, Refusal};
use mpienv_rendezvous::seam::star::{Heard, Star, Times};

use crate::Rank;

/// How often to look whether the time is over.
const BEAT: Duration = Duration::from_millis(50);

/// Makes a connection to the rank `to` and accepts one from it, for at most `patience`. Returns the
/// one that this host made, and the one that the other host made. `shared` is the key of all ranks.
pub(super) fn connect(
    listener: &TcpListener,
    shared: &[u8; 32],
    own: u32,
    to: u32,
    address: SocketAddr,
    patience: Duration,
) -> (Result<TcpStream, Refusal>, Option<TcpStream>) {
    let deadline = Instant::now() + patience;
    thread::scope(|scope| {
        let incoming = scope.spawn(|| accept(listener, shared, own, to, deadline).ok());
        let outgoing = join(address, shared, own, to, deadline);
        (outgoing, incoming.join().ok().flatten())
    })
}

fn join(
    address: SocketAddr,
    shared: &[u8; 32],
    own: u32,
    to: u32,
    deadline: Instant,
) -> Result<TcpStream, Refusal> {
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(&address, left)?;
    let key = ConnectionKey::new(shared, Purpose::Collective, to);
    // It says that it is the last rank of a job, because only one rank is let in at a time.
    let claimed = Rank::new(own, own.saturating_add(1)).map_err(io::Error::other)?;
    Ok(Introduced::new(stream, deadline, &key, claimed)?.welcomed()?.0)
}

fn accept(
    listener: &TcpListener,
    shared: &[u8; 32],
    own: u32,
    from: u32,
    deadline: Instant,
) -> io::Result<TcpStream> {
    let silence = deadline.saturating_duration_since(Instant::now());
    let mut star = Star::new(Times { beat: BEAT, silence })?;
    let key = ConnectionKey::new(shared, Purpose::Collective, own);
    star.listen(listener.try_clone()?, key, from..from.saturating_add(1))?;
    while Instant::now() < deadline {
        for (rank, heard) in star.turn(&[])? {
            if let (Heard::Came, Some((stream, _))) = (heard, star.take(rank)) {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
        }
    }
    Err(io::ErrorKind::TimedOut.into())
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
                        let soon = Instant::now() + Duration::from_millis(100);
                        assert!(join(at_one, &key, rank, 2, soon).is_err());
                    }
                }
            });
            // The strangers are there first.
            thread::sleep(Duration::from_millis(50));
            let peer = scope.spawn(move || connect(&other, &KEY, 5, 2, at_one, PATIENCE));
            let (outgoing, incoming) = connect(&one, &KEY, 2, 5, at_other, PATIENCE);
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
        let (outgoing, incoming) = connect(&own, &KEY, 0, 1, nowhere, Duration::from_millis(300));
        assert!(incoming.is_none() && outgoing.is_err());
    }
}
