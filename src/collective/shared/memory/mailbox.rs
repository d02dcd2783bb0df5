//! Messages between two ranks.
//!
//! A rank makes one call at a time, so its mailbox shows at most one message that it sends and one
//! that it awaits. A short message lies in the mailbox. A longer one goes piece by piece through the
//! rank's next slot, which no rank reads between two calls of all ranks.
//!
//! Any two ranks count the messages between them, in each direction. By this number, a rank knows
//! whether it has already answered what it sees in a mailbox. If not, the other rank waits for it,
//! and changes nothing there until it answers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use rustix::thread::futex;

use super::{Described, Memory, processor};
use crate::call::{Call, Message};
use crate::transport::Sent;

/// The length of the longest short message.
const SHORT: usize = 64;
/// The most bytes of a longer message that one rank writes before the other reads them.
const PIECE: usize = 64 * 1024;
/// What a mailbox shows in place of its message while its rank posts another.
const CHANGING: u64 = u64::MAX;

/// What a rank sends and awaits. All zeros, as a new file is, is neither.
#[repr(C, align(128))]
pub(super) struct Mailbox {
    /// The rank that the message is for, and its number.
    sent: AtomicU64,
    /// The rank from which a message is awaited, and its number.
    awaited: AtomicU64,
    send: Described,
    receive: Described,
    /// How many calls of all ranks the rank had made.
    calls: AtomicU32,
    /// In which of the rank's slots the pieces are.
    slot: AtomicU32,
    /// How many pieces of all its messages the rank has written.
    written: AtomicU32,
    short: [AtomicU64; SHORT / size_of::<u64>()],
    answers: Answers,
}

/// What the other ranks write, on cache lines of its own.
#[repr(C, align(128))]
struct Answers {
    /// How many of the pieces have been read.
    read: AtomicU32,
    /// 1 while the rank sleeps until another has read or written a piece.
    asleep: AtomicU32,
}

/// How many messages have passed between this rank and another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Passed {
    sent: u32,
    received: u32,
}

/// Describes the message with this number of those that are for, or from, a rank. Never 0, which is
/// none.
fn numbered(rank: usize, number: u32) -> u64 {
    (rank as u64 + 1) << 32 | u64::from(number)
}

impl Mailbox {
    fn write_short(&self, bytes: &[u8]) {
        for (word, bytes) in self.short.iter().zip(bytes.chunks(size_of::<u64>())) {
            let mut value = [0; size_of::<u64>()];
            value[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
        }
    }

    fn read_short(&self, into: &mut [u8]) {
        for (word, into) in self.short.iter().zip(into.chunks_mut(size_of::<u64>())) {
            let value = word.load(Ordering::Relaxed).to_ne_bytes();
            into.copy_from_slice(&value[..into.len()]);
        }
    }
}

impl Memory {
    fn mailbox(&self, rank: usize) -> &Mailbox {
        &self.place(rank).mailbox
    }

    /// The most bytes in a piece.
    fn piece(&self) -> usize {
        PIECE.min(self.slot / 2)
    }

    /// How many pieces a message has. An empty one has an empty piece.
    pub(in super::super) fn pieces(&self, length: usize) -> usize {
        length.div_ceil(self.piece()).max(1)
    }

    /// Whether a message lies in the mailbox rather than in the slot, which the next round uses.
    pub(in super::super) fn is_short(&self, bytes: &[u8]) -> bool {
        bytes.len() <= SHORT
    }

    /// How many pieces fit in a slot.
    fn room(&self) -> usize {
        self.slot / self.piece()
    }

    /// Where a piece of a message of `length` bytes begins and ends, and where it is in the slot.
    fn piece_at(&self, piece: usize, length: usize) -> (std::ops::Range<usize>, usize) {
        let begin = (piece * self.piece()).min(length);
        (begin..(begin + self.piece()).min(length), piece % self.room() * self.piece())
    }

    /// Shows the others what this rank sends and awaits, after it has made `calls` calls of all
    /// ranks. The first piece is then written. All that it showed before must have been answered, and
    /// its last message must have been read.
    ///
    /// # Errors
    /// A rank that has not published the current round.
    pub(in super::super) fn post(
        &mut self,
        calls: u32,
        send: Sent<'_>,
        receive: Option<Message>,
    ) -> Result<(), usize> {
        // The next slot is free.
        self.slots()?;
        self.show_processor();
        let (mailbox, next) = (self.mailbox(self.own), self.round.wrapping_add(1));
        mailbox.sent.store(CHANGING, Ordering::Relaxed);
        mailbox.calls.store(calls, Ordering::Relaxed);
        let mut awaited = 0;
        if let Some(Message { other, said, .. }) = receive {
            mailbox.receive.store(said);
            awaited = numbered(other as usize, self.passed[other as usize].received);
        }
        // Releases everything before it to those who acquire it, as all stores below.
        mailbox.awaited.store(awaited, Ordering::Release);
        let Some((Message { other, said, .. }, bytes)) = send else {
            mailbox.sent.store(0, Ordering::Release);
            return Ok(());
        };
        mailbox.send.store(said);
        mailbox.slot.store(next % 2, Ordering::Relaxed);
        self.write(bytes, 0);
        let sent = numbered(other as usize, self.passed[other as usize].sent);
        mailbox.sent.store(sent, Ordering::Release);
        self.wake(other as usize);
        Ok(())
    }

    /// Shows on which processor this rank runs, in a line that others read while they wait.
    fn show_processor(&self) {
        let (shown, processor) = (&self.place(self.own).processor, processor());
        if shown.load(Ordering::Relaxed) != processor {
            shown.store(processor, Ordering::Relaxed);
        }
    }

    /// Writes a piece of this rank's message, for which there must be room.
    fn write(&self, bytes: &[u8], piece: usize) {
        let mailbox = self.mailbox(self.own);
        if self.is_short(bytes) {
            mailbox.write_short(bytes);
        } else {
            let (range, begin) = self.piece_at(piece, bytes.len());
            let (slot, _) = self.slot_at(self.own, self.round.wrapping_add(1));
            // SAFETY: the bytes lie within this rank's next slot. The other rank reads a piece only
            // after it has been written, and has read what was here before: there is room.
            let into =
                unsafe { std::slice::from_raw_parts_mut(slot.add(begin).as_ptr(), range.len()) };
            into.copy_from_slice(&bytes[range]);
        }
        let written = mailbox.written.load(Ordering::Relaxed).wrapping_add(1);
        mailbox.written.store(written, Ordering::Release);
    }

    /// Whether there is room for another piece.
    pub(in super::super) fn has_room(&self) -> bool {
        self.unread(self.own) < self.room()
    }

    /// How many of the pieces that a rank has written are unread.
    fn unread(&self, rank: usize) -> usize {
        let Mailbox { written, answers, .. } = self.mailbox(rank);
        let read = answers.read.load(Ordering::Acquire);
        written.load(Ordering::Acquire).wrapping_sub(read) as usize
    }

    /// Writes another piece of this rank's message for `to`, after [`Memory::has_room`].
    pub(in super::super) fn write_next(&mut self, to: usize, bytes: &[u8], piece: usize) {
        self.write(bytes, piece);
        self.wake(to);
    }

    /// Whether all that this rank has written is read.
    pub(in super::super) fn is_read(&self) -> bool {
        self.unread(self.own) == 0
    }

    /// Whether a rank has written a piece that is unread.
    pub(in super::super) fn has_piece(&self, from: usize) -> bool {
        self.unread(from) > 0
    }

    /// Reads a piece of the message of `from`, after [`Memory::has_message`] for the first one and
    /// [`Memory::has_piece`] for any other. The message must be as long as `into`.
    pub(in super::super) fn read_next(&mut self, from: usize, into: &mut [u8], piece: usize) {
        let mailbox = self.mailbox(from);
        if self.is_short(into) {
            mailbox.read_short(into);
        } else {
            let (range, begin) = self.piece_at(piece, into.len());
            let (slot, _) = self.slot_at(from, mailbox.slot.load(Ordering::Relaxed));
            // SAFETY: the bytes lie within the slot. The rank has written them, and writes there
            // again only after this rank has shown that it has read them.
            let bytes =
                unsafe { std::slice::from_raw_parts(slot.add(begin).as_ptr(), range.len()) };
            into[range].copy_from_slice(bytes);
        }
        // No other rank changes this before the message is read.
        let read = &mailbox.answers.read;
        read.store(read.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        self.wake(from);
    }

    /// Counts a message to a rank that has read it, or awaits it.
    pub(in super::super) fn count_sent(&mut self, to: usize) {
        self.passed[to].sent = self.passed[to].sent.wrapping_add(1);
    }

    /// Counts a message of a rank that this rank has read.
    pub(in super::super) fn count_received(&mut self, from: usize) {
        self.passed[from].received = self.passed[from].received.wrapping_add(1);
    }

    /// Whether a rank sends this one a message that is unread.
    pub(in super::super) fn has_message(&self, from: usize) -> bool {
        let sent = self.mailbox(from).sent.load(Ordering::Acquire);
        sent == numbered(self.own, self.passed[from].received)
    }

    /// Whether a rank awaits a message that this one has not sent, or that is unread.
    pub(in super::super) fn is_awaiting(&self, rank: usize) -> bool {
        let awaited = self.mailbox(rank).awaited.load(Ordering::Acquire);
        awaited == numbered(self.own, self.passed[rank].sent)
    }

    /// Whether a rank that awaits a message may be about to send one in the same call.
    pub(in super::super) fn may_still_send(&self, rank: usize) -> bool {
        self.mailbox(rank).sent.load(Ordering::Acquire) == CHANGING
    }

    /// The call with which a rank sends this one a message; `None` if it cannot be read.
    pub(in super::super) fn call_of_message(&self, from: usize) -> Option<Call> {
        self.mailbox(from).send.load()
    }

    /// The call with which a rank awaits a message of this one; `None` if it cannot be read.
    pub(in super::super) fn call_of_awaiting(&self, rank: usize) -> Option<Call> {
        self.mailbox(rank).receive.load()
    }

    /// A rank that has made `calls` calls of all ranks and waits for this one to answer, and its
    /// call; `None` in place of that if it cannot be read.
    pub(in super::super) fn waiting_after(&self, calls: u32) -> Option<(usize, Option<Call>)> {
        (0..self.ranks).filter(|&rank| rank != self.own).find_map(|rank| {
            let call = if self.has_message(rank) {
                self.call_of_message(rank)
            } else if self.is_awaiting(rank) {
                self.call_of_awaiting(rank)
            } else {
                return None;
            };
            let made = self.mailbox(rank).calls.load(Ordering::Relaxed);
            (made == calls).then_some((rank, call))
        })
    }

    /// Wakes a rank that sleeps until this rank has read or written a piece.
    fn wake(&self, rank: usize) {
        // With the fence in `sleep_until`: either this rank sees that the other one sleeps, or that
        // one sees what this one has stored. Without a sleeper, no system call is made.
        fence(Ordering::SeqCst);
        let asleep = &self.mailbox(rank).answers.asleep;
        if asleep.load(Ordering::Relaxed) > 0 {
            asleep.store(0, Ordering::Relaxed);
            // If this fails, the sleeper wakes at its own timeout, a little later.
            let _ = futex::wake(asleep, futex::Flags::empty(), 1);
        }
    }

    /// Sleeps until something that another rank has read or written `has_come`, but not longer than
    /// `longest`.
    pub(in super::super) fn sleep_until(&self, longest: Duration, has_come: impl Fn() -> bool) {
        let asleep = &self.mailbox(self.own).answers.asleep;
        asleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !has_come() {
            // Woken, interrupted or timed out: the caller checks.
            let longest = longest.try_into().ok();
            let _ = futex::wait(asleep, futex::Flags::empty(), 1, longest.as_ref());
        }
        asleep.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::ElementKind;
    use crate::shared::memory::create;

    #[test]
    fn the_numbers_of_messages_and_of_pieces_may_wrap_around() {
        let (file, _) = create(2).unwrap();
        let [mut one, mut two] = [0, 1].map(|own| Memory::map(&file, 2, own).unwrap());
        for memory in [&mut one, &mut two] {
            memory.passed = vec![Passed { sent: u32::MAX - 1, received: u32::MAX - 1 }; 2];
            let mailbox = memory.mailbox(memory.own);
            mailbox.written.store(u32::MAX - 2, Ordering::SeqCst);
            mailbox.answers.read.store(u32::MAX - 2, Ordering::SeqCst);
        }
        let sent: Vec<u8> = (0..3 * PIECE + 5).map(|at| (at / 1000) as u8).collect();
        let to = Message::to(1, 0, ElementKind::U8, sent.len());
        for _ in 0..4 {
            assert!(!two.has_message(0) && !two.has_piece(0));
            one.post(0, Some((to, &sent)), None).unwrap();
            let mut into = vec![0; sent.len()];
            assert!(two.has_message(0) && two.waiting_after(0) == Some((0, Some(to.said))));
            for piece in 0..one.pieces(sent.len()) {
                if piece > 0 {
                    assert!(!two.has_piece(0) && one.has_room());
                    one.write_next(1, &sent, piece);
                }
                assert!(two.has_piece(0) && !one.is_read());
                two.read_next(0, &mut into, piece);
            }
            assert!(into == sent && one.is_read());
            one.count_sent(1);
            two.count_received(0);
            assert_eq!(two.waiting_after(0), None);
        }
    }

    #[test]
    fn a_rank_writes_no_piece_over_one_that_is_unread() {
        for ranks in [2, 64, 1000] {
            let (file, _) = create(ranks).unwrap();
            let mut memory = Memory::map(&file, ranks, 0).unwrap();
            let pieces = memory.room() + 1;
            let sent = vec![0; pieces * memory.piece()];
            assert_eq!(memory.pieces(sent.len()), pieces);
            memory
                .post(0, Some((Message::to(1, 0, ElementKind::U8, sent.len()), &sent)), None)
                .unwrap();
            let mut written = 1;
            while memory.has_room() {
                memory.write_next(1, &sent, written);
                written += 1;
            }
            assert_eq!(written, memory.room());
            let (_, end) = memory.piece_at(memory.room() - 1, sent.len());
            assert!(end + memory.piece() <= memory.slot());
        }
    }
}
