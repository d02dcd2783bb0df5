//! Messages between two ranks of the host.

use std::time::{Duration, Instant};

use super::Shared;
use super::memory::Memory;
use crate::call::{Call, Difference, Message};
use crate::error::{CollectiveError, Result};
use crate::tcp::Progress;
use crate::transport::{Received, Sent};

/// One direction of a call.
struct Half<B> {
    message: Message,
    bytes: B,
    pieces: usize,
    /// How many pieces have been written or read.
    moved: usize,
}

/// The messages of a call that this rank has posted, until they have passed.
pub(crate) struct Passing<'b> {
    send: Option<Half<&'b [u8]>>,
    receive: Option<Half<&'b mut [u8]>>,
}

impl Passing<'_> {
    fn is_done(&self) -> bool {
        self.send.is_none() && self.receive.is_none()
    }

    /// The ranks that this one waits for. If it waits for one rank only, that rank twice.
    fn awaited(&self) -> [usize; 2] {
        let to = self.send.as_ref().map(Half::other);
        let from = self.receive.as_ref().map(Half::other);
        [from.or(to), to.or(from)].map(Option::unwrap_or_default)
    }
}

impl<B> Half<B> {
    fn other(&self) -> usize {
        self.message.other as usize
    }
}

impl Half<&[u8]> {
    fn is_written(&self) -> bool {
        self.moved == self.pieces
    }

    /// Whether the next piece can be written, or this rank need not wait for the other any longer.
    fn can_move(&self, memory: &Memory) -> bool {
        if self.is_written() {
            memory.is_read() || self.is_awaited(memory)
        } else {
            memory.has_room()
        }
    }

    /// Whether the other rank receives a message that can stay in the mailbox until it is read.
    fn is_awaited(&self, memory: &Memory) -> bool {
        let (other, heard) = (self.other(), self.message.heard);
        memory.is_short(self.bytes)
            && memory.is_awaiting(other)
            && memory.call_of_awaiting(other).is_some_and(|call| call.answers(heard))
    }
}

impl Half<&mut [u8]> {
    /// Whether the next piece can be read.
    fn can_move(&self, memory: &Memory) -> bool {
        let has_begun = self.moved > 0 || memory.has_message(self.other());
        has_begun && memory.has_piece(self.other())
    }
}

impl Shared {
    /// Begins to pass messages. Both may be with the same rank.
    pub(crate) fn post<'b>(
        &mut self,
        send: Sent<'b>,
        receive: Received<'b>,
    ) -> Result<Passing<'b>> {
        let members = &self.tcp.members;
        let awaited = receive.as_ref().map(|&(message, _)| message);
        if let Some(message) = send.map(|(message, _)| message).or(awaited) {
            members.begin(message.said)?;
        }
        if let Some(rank) = self.unread_by.take() {
            let (memory, is_read) = (&self.memory, || self.memory.is_read());
            let sleep = |longest| memory.sleep_until(longest, is_read);
            self.wait(self.timeout(), &[rank], is_read, sleep, || None)?;
        }
        self.memory.post(self.calls, send, awaited).map_err(|rank| members.late(rank))?;
        self.published += send.map_or(0, |(_, bytes)| bytes.len() as u64);
        let pieces = |bytes: &[u8]| self.memory.pieces(bytes.len());
        Ok(Passing {
            send: send.map(|(message, bytes)| {
                let pieces = pieces(bytes);
                Half { message, bytes, pieces, moved: 1 }
            }),
            receive: receive.map(|(message, bytes)| {
                let pieces = pieces(bytes);
                Half { message, bytes, pieces, moved: 0 }
            }),
        })
    }

    /// Moves at most one piece in each direction, without waiting.
    ///
    /// # Errors
    /// A rank that sends something else than this rank receives.
    pub(crate) fn advance(&mut self, passing: &mut Passing<'_>) -> Result<Progress, Difference> {
        let (memory, mut moved) = (&mut self.memory, false);
        if let Some(half) = passing.receive.as_mut().filter(|half| half.can_move(memory)) {
            let (rank, Message { said: own, heard, .. }) = (half.other(), half.message);
            if half.moved == 0 {
                let found = memory.call_of_message(rank);
                if !found.is_some_and(|call| call.answers(heard)) {
                    return Err(Difference { rank, found, own });
                }
            }
            memory.read_next(rank, half.bytes, half.moved);
            half.moved += 1;
            moved = true;
            if half.moved == half.pieces {
                memory.count_received(rank);
                passing.receive = None;
            }
        }
        if let Some(half) = passing.send.as_mut().filter(|half| half.can_move(memory)) {
            moved = true;
            if half.is_written() {
                self.unread_by = (!memory.is_read()).then(|| half.other());
                memory.count_sent(half.other());
                passing.send = None;
            } else {
                memory.write_next(half.other(), half.bytes, half.moved);
                half.moved += 1;
            }
        }
        Ok(Progress { done: passing.is_done(), moved })
    }

    /// Waits for the next message of a rank, for at most `longest`. Returns its call.
    pub(super) fn await_message(&self, from: usize, longest: Duration) -> Result<Call> {
        let (memory, members) = (&self.memory, &self.tcp.members);
        members.begin(Call::RECEIVE)?;
        let has_come = || memory.has_message(from);
        let sleep = |longest| memory.sleep_until(longest, has_come);
        self.wait(longest, &[from], has_come, sleep, || None)?;
        memory.call_of_message(from).ok_or_else(|| members.unreadable(from))
    }

    /// Whether a message of a rank has come. Fails if the rank is lost and none has.
    pub(super) fn look_for_message(&self, from: usize) -> Result<bool> {
        let (memory, members) = (&self.memory, &self.tcp.members);
        members.begin(Call::RECEIVE)?;
        let has_come = || memory.has_message(from);
        if !has_come() {
            members.check_while_waiting(&[from], Instant::now(), &has_come)?;
        }
        Ok(has_come())
    }

    /// Returns once all messages have passed.
    pub(crate) fn finish(&mut self, mut passing: Passing<'_>) -> Result<()> {
        while !passing.is_done() {
            match self.advance(&mut passing) {
                Ok(Progress { moved: true, .. }) => {}
                Ok(_) => self.wait_to_advance(&passing)?,
                Err(difference) => return Err(self.differs(difference)),
            }
        }
        Ok(())
    }

    fn wait_to_advance(&self, passing: &Passing<'_>) -> Result<()> {
        let memory = &self.memory;
        let has_come = || {
            passing.receive.as_ref().is_some_and(|half| half.can_move(memory))
                || passing.send.as_ref().is_some_and(|half| half.can_move(memory))
        };
        let fault = || self.difference(passing).map(|difference| self.differs(difference));
        let sleep = |longest| memory.sleep_until(longest, has_come);
        self.wait(self.timeout(), &passing.awaited(), has_come, sleep, fault)
    }

    /// A rank that waits for this one, which waits for it to do something else.
    pub(crate) fn difference(&self, passing: &Passing<'_>) -> Option<Difference> {
        let (memory, Passing { send, receive }) = (&self.memory, passing);
        let [to, from] = [send.as_ref().map(Half::other), receive.as_ref().map(Half::other)];
        // Both send. The order matters: a rank that has read this one's message may now send the
        // next, and one that sends and receives at once shows that it receives before it shows that
        // it sends.
        if let Some(half) = send.as_ref().filter(|_| from != to)
            && memory.has_message(half.other())
            && !memory.is_awaiting(half.other())
            && !(half.is_written() && memory.is_read())
        {
            let (rank, own) = (half.other(), half.message.said);
            return Some(Difference { rank, found: memory.call_of_message(rank), own });
        }
        // Both receive.
        if let Some(half) = receive.as_ref().filter(|half| from != to && half.moved == 0)
            && memory.is_awaiting(half.other())
            && !memory.may_still_send(half.other())
            && !memory.has_message(half.other())
        {
            let (rank, own) = (half.other(), half.message.said);
            return Some(Difference { rank, found: memory.call_of_awaiting(rank), own });
        }
        None
    }

    fn differs(&self, Difference { rank, found, own }: Difference) -> CollectiveError {
        let members = &self.tcp.members;
        match members.begin(own) {
            Ok(()) => members.differs(rank, found),
            Err(earlier) => earlier,
        }
    }
}
