//! Connects two ranks that other connections already know, for messages from one to the other.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Tcp;
use super::handshake::{self, BEAT, Joined};
use super::members::Members;
use super::mesh::new_peer;
use super::transfer::Links;
use crate::error::{CollectiveError, GONE};
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
    ) -> Result<T, CollectiveError> {
        let (other, host) = (self.other(), self.host.clone());
        let (stop, (begun, over)) = (Stop::default(), mpsc::channel::<()>());
        let (connected, ended) = thread::scope(|scope| {
            let work = || {
                let _begun = begun;
                self.tcp(&stop).and_then(join)
            };
            let worker = thread::Builder::new().spawn_scoped(scope, work)?;
            let mut ended = None;
            while over.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                if ended.is_none() {
                    ended = end();
                    if ended.is_some() {
                        stop.set();
                    }
                }
            }
            Ok((worker.join(), ended))
        })
        .map_err(CollectiveError::Socket)?;
        let panicked = |_| Err(CollectiveError::Socket(io::Error::other("a thread panicked")));
        match (connected.unwrap_or_else(panicked), ended) {
            (connected, None) => connected,
            (_, Some(End::Canceled)) => Err(CollectiveError::Canceled),
            (_, Some(End::Lost)) => {
                let reason = GONE.to_owned();
                Err(CollectiveError::Lost { rank: other, host, reason })
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

    fn tcp(self, stop: &Stop) -> Result<Tcp, CollectiveError> {
        let (own, deadline) = (self.own(), Instant::now() + self.timeout);
        let rank =
            Rank::new(own, 2).map_err(|error| CollectiveError::Socket(io::Error::other(error)))?;
        let (stream, directions) = match &self.meeting {
            Meeting::At(listener) => {
                let (mut places, late) = ([None, None], |_| self.late());
                let (key, stop) = (self.key, &stop.is_set);
                handshake::accept(listener, rank, key, &mut places, deadline, stop, late)?;
                let [_, joined] = places;
                joined.ok_or_else(|| self.late())?
            }
            Meeting::To(address) => self.joined(*address, rank, deadline, stop)?,
        };
        stop.watch(&stream).map_err(CollectiveError::Socket)?;
        let peer = new_peer((stream, directions), self.host, true, self.timeout)
            .map_err(CollectiveError::Socket)?;
        let mut peers = Vec::from([None, None]);
        peers[1 - own as usize] = Some(peer);
        let mut links = Links::new(own, peers, self.timeout).map_err(CollectiveError::Socket)?;
        links.names = self.names.to_vec();
        Ok(Tcp::of(rank, Members::world(links)))
    }

    fn joined(
        &self,
        address: SocketAddr,
        rank: Rank,
        deadline: Instant,
        stop: &Stop,
    ) -> Result<Joined, CollectiveError> {
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
            let key = ConnectionKey::new(self.key, Purpose::Collective, 0);
            Introduced::new(stream, deadline, &key, rank)?.welcomed()
        };
        introduce().map_err(|refusal| self.refused(address, refusal))
    }

    fn late(&self) -> CollectiveError {
        let (rank, host) = (self.other(), self.host.clone());
        CollectiveError::TimedOut { rank, host, seconds: self.timeout.as_secs_f64() }
    }

    fn refused(&self, address: SocketAddr, refusal: Refusal) -> CollectiveError {
        let (rank, host) = (self.other(), self.host.clone());
        CollectiveError::Lost { rank, host, reason: format!("{address}: {refusal}") }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::element::ElementKind;
    use crate::group::{Announced, Group};
    use crate::hosts;
    use crate::tests::PLENTY;
    use crate::transport::Transport;

    /// The numbers that errors use.
    const NAMES: [u32; 2] = [5, 3];
    const U8: ElementKind = ElementKind::U8;

    type Joining = fn(Tcp) -> Result<Box<dyn Transport>, CollectiveError>;

    fn over_tcp(tcp: Tcp) -> Result<Box<dyn Transport>, CollectiveError> {
        Ok(Box::new(tcp))
    }

    fn pair(meeting: Meeting, timeout: Duration) -> Pair<'static> {
        Pair { names: NAMES, host: "node07".to_owned(), meeting, key: &[7; 32], timeout }
    }

    /// Runs the sender and the receiver, over TCP and over shared memory.
    fn over_both<T: Send>(
        timeout: Duration,
        send: impl Fn(&mut Group) -> T + Sync,
        receive: impl Fn(&mut Group) -> T + Sync,
    ) -> [[T; 2]; 2] {
        [over_tcp, hosts::join as Joining].map(|join| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let run = |meeting, run: &(dyn Fn(&mut Group) -> T + Sync)| {
                run(&mut Group::new(pair(meeting, timeout).connect(&|| None, join).unwrap()))
            };
            thread::scope(|scope| {
                let sender = scope.spawn(|| run(Meeting::At(listener), &send));
                let receiver = scope.spawn(|| run(Meeting::To(address), &receive));
                [sender.join().unwrap(), receiver.join().unwrap()]
            })
        })
    }

    #[test]
    fn the_receiver_knows_tag_type_and_length_before_it_receives() {
        let sent: [(u32, ElementKind, usize); 5] = [
            (0, U8, 0),
            (7, ElementKind::F32, 4),
            (u32::MAX, ElementKind::I64, 800),
            (7, U8, 65),
            (1, ElementKind::F64, 3_000_000),
        ];
        let bytes = |length: usize| (0..length).map(|at| (at % 251) as u8).collect::<Vec<_>>();
        over_both(
            PLENTY,
            |group| {
                for (tag, kind, length) in sent {
                    group.send_tagged(kind, &bytes(length), 1, tag).unwrap();
                }
            },
            |group| {
                for (tag, kind, length) in sent {
                    let count = (length / kind.size()) as u64;
                    let announced = group.next_tagged(0, PLENTY).unwrap();
                    assert_eq!(announced, Announced { tag, kind, count });
                    // It may look again.
                    assert_eq!(group.next_tagged(0, PLENTY).unwrap(), announced);
                    let mut into = vec![0; length];
                    group.receive_tagged(kind, &mut into, 0, tag).unwrap();
                    assert!(into == bytes(length), "{tag}");
                }
            },
        );
    }

    #[test]
    fn a_message_of_another_length_is_an_error_that_has_both_and_the_ranks_numbers() {
        for errors in over_both(
            PLENTY,
            |group| group.send_tagged(U8, &[1; 5], 1, 7).unwrap_err().to_string(),
            |group| {
                group.next_tagged(0, PLENTY).unwrap();
                group.receive_tagged(U8, &mut [0; 6], 0, 7).unwrap_err().to_string()
            },
        ) {
            for error in errors {
                let texts = ["rank 5 ", "send of 5 u8 with tag 7", "rank 3 ", "receive of 6 u8"];
                assert!(texts.iter().all(|text| error.contains(text)), "{error}");
            }
        }
    }

    #[test]
    fn a_sender_that_has_left_is_named_after_its_messages() {
        for [_, error] in over_both(
            PLENTY,
            |group| {
                group.send_tagged(U8, &[1; 100], 1, 7).unwrap();
                String::new()
            },
            |group| {
                group.next_tagged(0, PLENTY).unwrap();
                let mut into = [0; 100];
                group.receive_tagged(U8, &mut into, 0, 7).unwrap();
                assert_eq!(into, [1; 100]);
                group.next_tagged(0, PLENTY).unwrap_err().to_string()
            },
        ) {
            assert_eq!(error, "rank 5 on node07 is lost: it exited before this rank did");
        }
    }

    #[test]
    fn a_sender_that_does_not_come_is_named_and_learns_it() {
        let ended = AtomicU32::new(0);
        for [sender, receiver] in over_both(
            PLENTY,
            |group| {
                let turn = ended.load(Ordering::SeqCst);
                while ended.load(Ordering::SeqCst) == turn {
                    thread::sleep(Duration::from_millis(1));
                }
                group.send_tagged(U8, &[1; 5], 1, 7).unwrap_err().to_string()
            },
            |group| {
                let error = group.next_tagged(0, Duration::from_millis(50)).unwrap_err();
                ended.fetch_add(1, Ordering::SeqCst);
                error.to_string()
            },
        ) {
            let text = "rank 5 on node07 did not arrive within 0.05 s";
            assert!(receiver.starts_with(text), "{receiver}");
            let text = "the other ranks no longer wait for this rank: rank 5";
            assert!(sender.starts_with(text), "{sender}");
        }
    }

    #[test]
    fn a_receiver_that_looks_for_a_message_goes_on_without_one_and_names_a_sender_that_has_left() {
        let looked = Barrier::new(2);
        for [_, error] in over_both(
            PLENTY,
            |group| {
                looked.wait();
                group.send_tagged(U8, &[1; 5], 1, 7).unwrap();
                String::new()
            },
            |group| {
                assert!(!group.has_tagged(0).unwrap());
                looked.wait();
                while !group.has_tagged(0).unwrap() {
                    thread::sleep(Duration::from_millis(1));
                }
                group.receive_tagged(U8, &mut [0; 5], 0, 7).unwrap();
                loop {
                    match group.has_tagged(0) {
                        Ok(has_come) => assert!(!has_come),
                        Err(error) => break error.to_string(),
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            },
        ) {
            assert_eq!(error, "rank 5 on node07 is lost: it exited before this rank did");
        }
    }

    #[test]
    fn a_receiver_that_waits_can_be_canceled() {
        for errors in over_both(
            PLENTY,
            |group| group.next_tagged(1, PLENTY).unwrap_err().to_string(),
            |group| {
                let canceller = group.canceller();
                thread::spawn(move || canceller.cancel());
                group.next_tagged(0, PLENTY).unwrap_err().to_string()
            },
        ) {
            assert_eq!(errors[1], "the call was canceled by another thread of this process");
            assert_eq!(errors[0], "rank 3 on node07 is lost: its calls were canceled");
        }
    }

    #[test]
    fn ranks_that_wait_for_each_other_end_once_that_is_in_vain() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        let meetings: [fn(SocketAddr) -> Meeting; 2] = [
            |_| Meeting::At(TcpListener::bind("127.0.0.1:0").unwrap()),
            // It is connected, and does not get an answer.
            Meeting::To,
        ];
        for (other, meeting) in [3, 5].into_iter().zip(meetings) {
            let lost = format!("rank {other} on node07 is lost: {GONE}");
            for (end, text) in [
                (End::Lost, lost.as_str()),
                (End::Canceled, "the call was canceled by another thread of this process"),
            ] {
                let ended = pair(meeting(address), PLENTY).connect(&|| Some(end), |_| Ok(()));
                assert_eq!(ended.unwrap_err().to_string(), text);
            }
        }
    }

    #[test]
    fn the_other_rank_is_named_if_it_no_longer_listens_or_does_not_come_in_time() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = pair(Meeting::To(gone), PLENTY).connect(&|| None, |_| Ok(())).unwrap_err();
        assert!(error.to_string().starts_with("rank 5 on node07 is lost: 127.0.0.1:"), "{error}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let timeout = Duration::from_millis(50);
        let error = pair(Meeting::At(listener), timeout).connect(&|| None, |_| Ok(())).unwrap_err();
        assert!(error.to_string().starts_with("rank 3 on node07 did not arrive"), "{error}");
    }
}
