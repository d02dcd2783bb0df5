//! A connection that stays open after the meeting, for messages in both directions, with the keys
//! of its handshake.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::LONGEST_BLOB;
use super::auth::{Direction, LENGTH, digest};
use super::frame::{Message, REPLY_HEAD, ReplyHead, ReplyKind};

/// A connection to another process of the meeting.
#[derive(Debug)]
pub struct Channel {
    stream: TcpStream,
    rank: u32,
    sent: Direction,
    received: Direction,
}

/// What this end sends.
#[derive(Debug)]
pub struct Sender {
    stream: TcpStream,
    direction: Direction,
}

/// What the other end sends.
#[derive(Debug)]
pub struct Receiver {
    stream: TcpStream,
    direction: Direction,
}

impl Channel {
    pub(super) fn new(
        stream: TcpStream,
        rank: u32,
        sent: Direction,
        received: Direction,
    ) -> Channel {
        Channel { stream, rank, sent, received }
    }

    /// The rank at the other end.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns both directions. `silence` limits how long the other end may send nothing, and how
    /// long it may read nothing.
    pub fn open(self, silence: Duration) -> io::Result<(Sender, Receiver)> {
        let Channel { stream, sent, received, .. } = self;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(silence))?;
        stream.set_write_timeout(Some(silence))?;
        let sender = Sender { stream: stream.try_clone()?, direction: sent };
        Ok((sender, Receiver { stream, direction: received }))
    }
}

impl Sender {
    /// Sends a message of at most [`LONGEST_BLOB`] bytes, in one write.
    pub fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        if payload.len() > LONGEST_BLOB {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let message = Message::new(ReplyKind::Message, payload);
        let tag = self.direction.tag(&message.digest);
        self.stream.write_all(&[&message.bytes[..], &tag].concat())
    }

    /// Closes one or both directions, even while another thread reads or writes.
    pub fn shutdown(&self, how: Shutdown) {
        // If this fails, the connection is already closed.
        let _ = self.stream.shutdown(how);
    }

    /// Another handle of the connection, to close it while another thread sends.
    pub fn closer(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }
}

impl Receiver {
    /// Sets how long the other end may send nothing.
    pub fn patience(&self, silence: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(silence))
    }

    /// Receives the next message. Fails if a message was changed, repeated or left out.
    pub fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut raw = [0; REPLY_HEAD];
        self.stream.read_exact(&mut raw)?;
        let head = ReplyHead::decode(raw).filter(|head| head.kind == ReplyKind::Message);
        let length = head
            .and_then(|head| usize::try_from(head.length).ok())
            .filter(|&length| length <= LONGEST_BLOB);
        let length = length.ok_or_else(altered)?;
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload)?;
        let mut tag = [0; LENGTH];
        self.stream.read_exact(&mut tag)?;
        if self.direction.verify(&digest(&[&raw, &payload]), &tag) {
            Ok(payload)
        } else {
            Err(altered())
        }
    }
}

fn altered() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a message was changed, repeated or left out on the way",
    )
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use proptest::prelude::*;

    use super::*;
    use crate::rendezvous::auth::{JobKey, Role, Run, Session};

    type End = (Sender, Receiver);

    /// Both ends of a connection, rank 0's first, and the bare socket of the other.
    fn ends() -> (End, End, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let zero = listener.accept().unwrap().0;
        let session = JobKey::new(b"secret", Role::Launches, Run::default()).session(b"g", b"h");
        let Session { of_rank, of_master } = session;
        let bare = one.try_clone().unwrap();
        let zero = Channel::new(zero, 1, of_master.clone(), of_rank.clone());
        let one = Channel::new(one, 0, of_rank, of_master);
        assert_eq!((zero.rank(), one.rank()), (1, 0));
        let open = |channel: Channel| channel.open(Duration::from_secs(1200)).unwrap();
        (open(zero), open(one), bare)
    }

    /// What rank 1 sends, byte by byte.
    fn recorded(payload: &[u8]) -> Vec<u8> {
        let ((_, zero), (mut one, _), bare) = ends();
        one.send(payload).unwrap();
        bare.shutdown(Shutdown::Write).unwrap();
        let (mut bytes, mut stream) = (Vec::new(), zero.stream);
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn messages_go_both_ways_and_have_a_limit() {
        let ((mut to_one, mut from_one), (mut to_zero, mut from_zero), _) = ends();
        let long = vec![7; LONGEST_BLOB];
        let sender = thread::spawn(move || {
            for payload in [&b""[..], b"event", &long] {
                to_zero.send(payload).unwrap();
            }
            let refused = to_zero.send(&[&long[..], b"1"].concat()).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        });
        let lengths = [0, 1, 2].map(|_| from_one.receive().unwrap().len());
        assert_eq!(lengths, [0, 5, LONGEST_BLOB]);
        to_one.send(b"order").unwrap();
        assert_eq!(from_zero.receive().unwrap(), b"order");
        sender.join().unwrap();
    }

    #[test]
    fn a_message_that_is_repeated_reflected_or_announced_too_long_is_refused() {
        let refuse = |from: &mut Receiver| {
            assert_eq!(from.receive().unwrap_err().to_string(), altered().to_string());
        };
        let once = recorded(b"event");
        let ((_, mut zero), _, mut bare) = ends();
        bare.write_all(&[&once[..], &once].concat()).unwrap();
        assert_eq!(zero.receive().unwrap(), b"event");
        refuse(&mut zero);
        let ((mut to_one, mut zero), (_, mut one), mut bare) = ends();
        to_one.send(b"event").unwrap();
        let mut reflected = vec![0; once.len()];
        one.stream.read_exact(&mut reflected).unwrap();
        bare.write_all(&reflected).unwrap();
        refuse(&mut zero);
        let ((_, mut zero), _, mut bare) = ends();
        bare.write_all(&[&once[..17], &[0xff; 4]].concat()).unwrap();
        refuse(&mut zero);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn whatever_is_not_what_the_other_end_sent_is_refused(
            payload in proptest::collection::vec(any::<u8>(), 0..200), at: prop::sample::Index, change in 1..=255u8,
        ) {
            let mut bytes = recorded(&payload);
            let place = at.index(bytes.len());
            bytes[place] ^= change;
            let ((_, mut zero), _, mut bare) = ends();
            bare.write_all(&bytes).unwrap();
            bare.shutdown(Shutdown::Write).unwrap();
            prop_assert!(zero.receive().is_err());
        }

        #[test]
        fn noise_is_refused(noise in proptest::collection::vec(any::<u8>(), 0..200)) {
            let ((_, mut zero), _, mut bare) = ends();
            bare.write_all(&noise).unwrap();
            bare.shutdown(Shutdown::Write).unwrap();
            prop_assert!(zero.receive().is_err());
        }
    }
}
