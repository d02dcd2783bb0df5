//! The handshake between two ranks, which rejects all other connections.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::error::CollectiveError;
use crate::rendezvous::handshake::{ConnectionKey, Directions, Introduced, Purpose, Refusal};
use crate::rendezvous::star::{Heard, Star, Times};
use crate::value::rank::Rank;
use std::io;

/// How often to look whether this rank has given up, and whether the time is over.
pub(super) const BEAT: Duration = Duration::from_millis(20);

/// A connection to a rank, and its keys.
pub(super) type Joined = (TcpStream, Directions);

/// Connects to all lower ranks at their `addresses`. `shared` is the key that all ranks have.
///
/// Says hello right after each connection is made, because ranks close silent connections in favor
/// of newer ones. Says all hellos before it waits for any welcome.
pub(super) fn join(
    addresses: &[SocketAddr],
    rank: Rank,
    shared: &[u8; 32],
    deadline: Instant,
) -> Result<Vec<Joined>, (usize, Refusal)> {
    let connect = |(to, address): (usize, &SocketAddr)| {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let stream =
            TcpStream::connect_timeout(address, left).map_err(|error| (to, error.into()))?;
        let key = ConnectionKey::new(shared, Purpose::Collective, to as u32);
        let introduced = Introduced::new(stream, deadline, &key, rank);
        Ok((to, introduced.map_err(|refusal| (to, refusal))?))
    };
    let introduced = addresses.iter().enumerate().map(connect).collect::<Result<Vec<_>, _>>()?;
    let welcomed = |(to, introduced): (usize, Introduced)| {
        introduced.welcomed().map_err(|refusal| (to, refusal))
    };
    introduced.into_iter().map(welcomed).collect()
}

/// Accepts the connections of all higher ranks. Returns how many other connections were rejected.
/// Fails with what `late` returns if a rank does not come in time, and if `stop` is set.
pub(super) fn accept(
    listener: &TcpListener,
    rank: Rank,
    shared: &[u8; 32],
    places: &mut [Option<Joined>],
    deadline: Instant,
    stop: &AtomicBool,
    late: impl Fn(u32) -> CollectiveError,
) -> Result<u64, CollectiveError> {
    let key = ConnectionKey::new(shared, Purpose::Collective, rank.index());
    let silence = deadline.saturating_duration_since(Instant::now());
    let mut star = Star::new(Times { beat: BEAT, silence }).map_err(CollectiveError::Socket)?;
    let higher = rank.index() + 1..rank.size();
    let listener = listener.try_clone().map_err(CollectiveError::Socket)?;
    star.listen(listener, key, higher).map_err(CollectiveError::Socket)?;
    while let Some(&missing) = star.absent().first() {
        if stop.load(Ordering::Relaxed) {
            return Err(CollectiveError::Socket(io::ErrorKind::Interrupted.into()));
        }
        if Instant::now() >= deadline {
            return Err(late(missing));
        }
        for (rank, heard) in star.turn(&[]).map_err(CollectiveError::Socket)? {
            if let (Heard::Came, Some(place @ None)) = (heard, places.get_mut(rank as usize)) {
                *place = star.take(rank);
            }
        }
    }
    Ok(star.rejected())
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{Read, Write};
    use std::thread;

    use super::*;
    use crate::rendezvous::star::Guest;

    const KEY: [u8; 32] = [7; 32];
    /// The length of a hello.
    const HELLO: usize = 147;

    fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    fn rank(index: u32, size: u32) -> Rank {
        Rank::new(index, size).unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(1200)
    }

    fn late(rank: u32) -> CollectiveError {
        CollectiveError::TimedOut { rank, host: "its host".to_owned(), seconds: 0.0 }
    }

    /// Accepts rank 1 of two, as rank 0.
    pub(in super::super) fn accept_one(
        listener: &TcpListener,
        key: &[u8; 32],
        deadline: Instant,
    ) -> Joined {
        let (mut places, stop) = ([None, None], AtomicBool::new(false));
        accept(listener, rank(0, 2), key, &mut places, deadline, &stop, late).unwrap();
        places[1].take().unwrap()
    }

    /// Accepts all others at `listener`, as rank 0 of `size`.
    fn accept_all(
        listener: &TcpListener,
        size: u32,
        deadline: Instant,
    ) -> Result<u64, CollectiveError> {
        let mut places: Vec<Option<Joined>> = (0..size).map(|_| None).collect();
        let (own, stop) = (rank(0, size), AtomicBool::new(false));
        let done = accept(listener, own, &KEY, &mut places, deadline, &stop, late);
        assert!(done.is_err() || places[1..].iter().all(Option::is_some));
        done
    }

    fn come(address: SocketAddr, rank: Rank) -> Joined {
        join(&[address], rank, &KEY, soon()).unwrap().remove(0)
    }

    /// Connects, and sends what `answer` returns for the greeting.
    fn answered(address: SocketAddr, answer: impl FnOnce(&[u8]) -> Vec<u8>) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut greeting = [0; 53];
        stream.read_exact(&mut greeting).unwrap();
        let _ = stream.write_all(&answer(&greeting));
        stream
    }

    /// Connects and says hello with the meeting's `key`, to the rank `to`, as the rank `from`, for
    /// `purpose`.
    fn hello(
        key: [u8; 32],
        to: u32,
        from: u32,
        purpose: Purpose,
    ) -> impl Fn(SocketAddr) -> TcpStream {
        move |address| {
            let stream = TcpStream::connect(address).unwrap();
            let key = ConnectionKey::new(&key, purpose, to);
            let size = if from < 3 { 3 } else { from.saturating_add(1) };
            drop(Introduced::new(stream.try_clone().unwrap(), soon(), &key, rank(from, size)));
            stream
        }
    }

    fn said(address: SocketAddr, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        // The other end may have closed already.
        let _ = stream.write_all(bytes);
        stream
    }

    #[test]
    fn strangers_of_all_sorts_are_counted_and_keep_no_rank_out() {
        let (listener, address) = listen();
        let begun = Instant::now();
        let ranks = thread::spawn(move || {
            let bytes: [&[u8]; 5] = [
                b"",
                b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                &[0xff; 100_000],
                b"mpienv\r\n",
            ];
            let mut rejected: Vec<_> =
                (0..10).flat_map(|_| bytes.map(|bytes| said(address, bytes))).collect();
            // Another meeting's key, another rank's key, another purpose, and numbers that are not
            // those of higher ranks.
            let hellos = [
                hello([8; 32], 0, 1, Purpose::Collective),
                hello(KEY, 1, 2, Purpose::Collective),
                hello(KEY, 0, 1, Purpose::Watch),
                hello(KEY, 0, 0, Purpose::Collective),
                hello(KEY, 0, 3, Purpose::Collective),
            ];
            rejected.extend(hellos.iter().map(|hello| hello(address)));
            let first = come(address, rank(1, 3));
            // Rank 1 has already connected.
            rejected.push(hello(KEY, 0, 1, Purpose::Collective)(address));
            let last = come(address, rank(2, 3));
            (rejected, first, last)
        });
        assert_eq!(accept_all(&listener, 3, soon()).unwrap(), 56);
        assert!(begun.elapsed() < Duration::from_secs(600), "{:?}", begun.elapsed());
        drop(ranks.join().unwrap());
    }

    #[test]
    fn a_hello_that_was_heard_before_is_rejected() {
        let (listener, address) = listen();
        let waiting = thread::spawn(move || accept_all(&listener, 3, soon()));
        // An attacker sits between rank 1 and rank 0, and withholds the hello on the connection
        // that it belongs to.
        let between = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = between.local_addr().unwrap();
        let victim = thread::spawn(move || {
            join(&[at], rank(1, 3), &KEY, Instant::now() + Duration::from_secs(8))
        });
        let (mut heard, _) = between.accept().unwrap();
        let mut hello = vec![0; HELLO];
        let held = answered(address, |greeting| {
            heard.write_all(greeting).unwrap();
            heard.read_exact(&mut hello).unwrap();
            Vec::new()
        });
        // On another connection, the hello does not match the greeting.
        let attackers =
            [answered(address, |_| hello.clone()), answered(address, |_| hello.clone())];
        let ranks = [come(address, rank(1, 3)), come(address, rank(2, 3))];
        drop((heard, between));
        assert_eq!(waiting.join().unwrap().unwrap(), 3);
        assert!(victim.join().unwrap().is_err());
        drop((held, attackers, ranks));
    }

    /// Returns whether rank 0 admits rank 1's hello after `change`.
    fn is_admitted(change: impl FnOnce(&mut [u8])) -> bool {
        let key = ConnectionKey::new(&KEY, Purpose::Collective, 0);
        let (mut guest, greeting) = Guest::new(&key).unwrap();
        let (listener, address) = listen();
        let one = thread::spawn(move || drop(join(&[address], rank(1, 3), &KEY, soon())));
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&greeting).unwrap();
        let mut hello = [0; HELLO];
        stream.read_exact(&mut hello).unwrap();
        drop(stream);
        one.join().unwrap();
        change(&mut hello);
        matches!(guest.feed(&hello, &key, 3), Ok(Some(admitted)) if admitted.rank == 1)
    }

    #[test]
    fn a_hello_between_ranks_cannot_be_given_another_ranks_number_or_be_changed_otherwise() {
        assert!(is_admitted(|_| ()));
        // Change the rank's number, and then one bit of every byte.
        assert!(!is_admitted(|hello| hello[19] = 2));
        for at in 0..HELLO {
            assert!(!is_admitted(|hello| hello[at] ^= 1), "byte {at}");
        }
    }

    #[test]
    fn a_rank_does_not_believe_a_program_that_cannot_prove_the_key() {
        let (listener, address) = listen();
        let one = thread::spawn(move || join(&[address], rank(1, 2), &KEY, soon()).unwrap_err());
        let (mut stream, _) = listener.accept().unwrap();
        let (mut guest, greeting) =
            Guest::new(&ConnectionKey::new(&KEY, Purpose::Collective, 0)).unwrap();
        stream.write_all(&greeting).unwrap();
        let mut hello = [0; HELLO];
        stream.read_exact(&mut hello).unwrap();
        let key = ConnectionKey::new(&KEY, Purpose::Collective, 0);
        let mut admitted = guest.feed(&hello, &key, 2).unwrap().unwrap();
        // The last byte of the tag.
        *admitted.welcome.last_mut().unwrap() ^= 1;
        stream.write_all(&admitted.welcome).unwrap();
        assert!(matches!(one.join().unwrap(), (0, Refusal::Unproven)));
    }

    #[test]
    fn a_rank_that_exits_while_others_connect_to_it_is_no_other_program() {
        let key = ConnectionKey::new(&KEY, Purpose::Collective, 0);
        let greeting = Guest::new(&key).unwrap().1;
        let (closed, stranger) = ("it closed the connection: its process", "another program");
        // What it says, and how many bytes it reads. The system resets a connection of which some
        // are unread.
        let cases = [
            (&b""[..], 0, closed),
            (&greeting, HELLO, closed),
            (&greeting, 1, closed),
            (b"HTTP/1.1 400 Bad Request", 0, stranger),
        ];
        for (said, length, text) in cases {
            let (listener, address) = listen();
            let one = thread::spawn(move || join(&[address], rank(1, 2), &KEY, soon()));
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(said).unwrap();
            stream.read_exact(&mut vec![0; length]).unwrap();
            drop(stream);
            let (_, refusal) = one.join().unwrap().unwrap_err();
            assert!(refusal.to_string().starts_with(text), "{refusal}");
        }
    }

    #[test]
    fn a_hello_may_come_a_byte_at_a_time() {
        let (listener, address) = listen();
        let between = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = between.local_addr().unwrap();
        let one = thread::spawn(move || join(&[at], rank(1, 2), &KEY, soon()).unwrap());
        let slow = thread::spawn(move || {
            let (mut rank, _) = between.accept().unwrap();
            let mut hello = [0; HELLO];
            let mut stream = answered(address, |greeting| {
                rank.write_all(greeting).unwrap();
                rank.read_exact(&mut hello).unwrap();
                Vec::new()
            });
            for byte in hello {
                stream.write_all(&[byte]).unwrap();
                thread::sleep(Duration::from_millis(1));
            }
            io::copy(&mut stream, &mut rank).unwrap();
        });
        assert_eq!(accept_all(&listener, 2, soon()).unwrap(), 0);
        drop(one.join().unwrap());
        slow.join().unwrap();
    }

    #[test]
    fn a_thousand_idle_connections_give_way() {
        let (listener, address) = listen();
        let waiting = thread::spawn(move || accept_all(&listener, 2, soon()));
        let idle: Vec<_> = (0..1000).map(|_| said(address, b"")).collect();
        let last = come(address, rank(1, 2));
        assert_eq!(waiting.join().unwrap().unwrap(), 1000);
        drop((idle, last));
    }

    #[test]
    fn a_flood_does_not_move_the_deadline() {
        let (listener, address) = listen();
        let begun = Instant::now();
        let until = begun + Duration::from_secs(3);
        // Far beyond the deadline, so that a busy machine cannot fail this test.
        let limit = begun + Duration::from_secs(1200);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let flood = scope.spawn(|| {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) && Instant::now() < limit {
                    count += u64::from(
                        TcpStream::connect_timeout(&address, Duration::from_millis(100)).is_ok(),
                    );
                }
                count
            });
            let absence = accept_all(&listener, 3, until);
            let is_in_time = Instant::now() < limit;
            is_over.store(true, Ordering::Relaxed);
            assert!(flood.join().unwrap() > 10);
            assert!(
                is_in_time && matches!(absence, Err(CollectiveError::TimedOut { rank: 1, .. }))
            );
        });
    }
}
