//! The calls that move bytes from rank to rank, once all ranks have agreed on them.
//!
//! A blocking call uses the caller's memory, because it returns once MPI has finished with it. A
//! started call may be given up, while MPI still writes: it uses memory that it owns. So its bytes
//! are copied, a piece at a time, which stays in the processor's cache.

use std::borrow::Cow;

use super::{Mpi, PIECE};
use crate::error::Result;
use crate::transport::Transport as _;

/// From as many bytes on, ranks send parts one by one. Before, one call of MPI for all ranks is
/// faster, which sends parts of several ranks at once.
const ONE_BY_ONE: usize = 4096;
/// The tag of the values of a call of all ranks.
pub(super) const MOVED: u16 = 3;
/// The most bytes that a rank copies for the pieces under way, and the shortest piece.
const STAGED: usize = 4 << 20;
const SHORTEST: usize = 16 << 10;

impl Mpi {
    /// How many bytes of a message are copied at a time: the same on all ranks.
    pub(super) fn piece(&self) -> usize {
        (STAGED / self.rank().size() as usize).max(SHORTEST)
    }

    /// Every rank gets the bytes of every rank, of one length.
    pub(super) fn gather_equal(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = vec![bytes.to_vec(); self.rank().size() as usize];
        let mut into: Vec<_> = all.iter_mut().map(Vec::as_mut_slice).collect();
        self.gather_all(bytes, &mut into)?;
        Ok(all)
    }

    /// Every rank gets the bytes of every rank, whose lengths all ranks know.
    pub(super) fn gather_all(&mut self, bytes: &[u8], into: &mut [&mut [u8]]) -> Result<()> {
        let longest = longest(into);
        if self.is_one_by_one(longest) {
            let parts = vec![bytes; into.len()];
            // Not MPI_Iallgatherv: Intel MPI 2021.18 does not complete one of some MB of unequal
            // blocks.
            return if into.iter().all(|into| into.len() == longest) {
                self.exchange(&parts, into)
            } else {
                self.exchange_any(&parts, into)
            };
        }
        let mut block = Cow::Borrowed(bytes);
        if bytes.len() < longest {
            block.to_mut().resize(longest, 0);
        }
        let all = if self.job.spins {
            let mut all = vec![0; longest * into.len()];
            self.call(|ranks| ranks.all_gather_into(&block, &mut all))?;
            all
        } else {
            self.wait(|ranks| ranks.start_all_gather(&block))?
        };
        divide(&all, into);
        Ok(())
    }

    /// Every rank sends part r to rank r. All parts have the same length.
    pub(super) fn scatter_all(&mut self, parts: &[&[u8]], into: &mut [&mut [u8]]) -> Result<()> {
        if self.is_one_by_one(parts[0].len()) {
            return self.exchange(parts, into);
        }
        let sent = parts.concat();
        let received = if self.job.spins {
            let mut received = vec![0; sent.len()];
            self.call(|ranks| ranks.all_to_all(&sent, &mut received))?;
            received
        } else {
            self.wait(|ranks| ranks.start_all_to_all(sent))?
        };
        divide(&received, into);
        Ok(())
    }

    pub(super) fn broadcast_from(&mut self, root: u32, bytes: &mut [u8]) -> Result<()> {
        if self.job.spins {
            let mut pieces = bytes.chunks_mut(PIECE);
            return pieces.try_for_each(|piece| self.call(|ranks| ranks.broadcast(piece, root)));
        }
        let is_root = self.rank().index() == root;
        let mut room = self.rooms.pop().unwrap_or_default();
        for piece in bytes.chunks_mut(self.piece()) {
            room.resize(piece.len(), 0);
            if is_root {
                room.copy_from_slice(piece);
            }
            room = self.wait(|ranks| ranks.start_broadcast(room, root))?;
            if !is_root {
                piece.copy_from_slice(&room);
            }
        }
        self.rooms.push(room);
        Ok(())
    }

    /// Whether ranks send parts of this length one by one.
    fn is_one_by_one(&self, length: usize) -> bool {
        length >= ONE_BY_ONE || self.rank().size() == 2
    }

    /// Every rank sends part r to rank r. All parts have the same length.
    fn exchange(&mut self, parts: &[&[u8]], into: &mut [&mut [u8]]) -> Result<()> {
        if !self.job.spins {
            return self.exchange_any(parts, into);
        }
        let (own, size) = (self.rank().index(), self.rank().size());
        for step in 1..size {
            // In each step, every rank is sent one part.
            let (to, from) = ((own + step) % size, (own + size - step) % size);
            let sent = parts[to as usize].chunks(PIECE);
            for (sent, received) in sent.zip(into[from as usize].chunks_mut(PIECE)) {
                self.call(|ranks| ranks.send_receive(sent, to, received, from, MOVED))?;
            }
        }
        Ok(())
    }

    /// Every rank sends part r to rank r. Both ranks of a part know its length.
    pub(super) fn exchange_any(&mut self, parts: &[&[u8]], into: &mut [&mut [u8]]) -> Result<()> {
        let own = self.rank().index();
        let into = into.iter_mut().map(|into| &mut **into);
        self.pass_on(MOVED, &others(own, parts.iter().copied()), &mut others(own, into))
    }

    /// Sends bytes to ranks and receives bytes from ranks, a piece at a time.
    pub(super) fn pass_on(
        &mut self,
        tag: u16,
        sends: &[(u32, &[u8])],
        receives: &mut [(u32, &mut [u8])],
    ) -> Result<()> {
        let most = self.piece();
        let lengths = sends.iter().map(|(_, bytes)| bytes.len());
        let lengths = lengths.chain(receives.iter().map(|(_, bytes)| bytes.len()));
        for at in (0..lengths.max().unwrap_or(0)).step_by(most) {
            let piece = |length: usize| at.min(length)..(at + most).min(length);
            let (mut received, mut sent) = (Vec::new(), Vec::new());
            for (index, (from, bytes)) in receives.iter().enumerate() {
                let piece = piece(bytes.len());
                if !piece.is_empty() {
                    let mut room = self.rooms.pop().unwrap_or_default();
                    room.resize(piece.len(), 0);
                    let request = self.call(|ranks| ranks.start_receive(room, *from, tag))?;
                    received.push((index, piece, request));
                }
            }
            for (to, bytes) in sends {
                let bytes = &bytes[piece(bytes.len())];
                if !bytes.is_empty() {
                    let mut room = self.rooms.pop().unwrap_or_default();
                    room.clear();
                    room.extend_from_slice(bytes);
                    sent.push(self.call(|ranks| ranks.start_send(room, *to, tag))?);
                }
            }
            for (index, piece, request) in received {
                let room = self.wait(|_| Ok(request))?;
                receives[index].1[piece].copy_from_slice(&room);
                self.rooms.push(room);
            }
            for request in sent {
                let room = self.wait(|_| Ok(request))?;
                self.rooms.push(room);
            }
        }
        Ok(())
    }
}

/// The parts of all ranks but `own`, each with its rank.
pub(super) fn others<P>(own: u32, parts: impl IntoIterator<Item = P>) -> Vec<(u32, P)> {
    (0..).zip(parts).filter(|(rank, _)| *rank != own).collect()
}

/// Copies the first bytes of the parts of all ranks, which are as long as the longest one.
fn divide(all: &[u8], into: &mut [&mut [u8]]) {
    for (bytes, into) in all.chunks(longest(into).max(1)).zip(into) {
        into.copy_from_slice(&bytes[..into.len()]);
    }
}

fn longest(parts: &[&mut [u8]]) -> usize {
    parts.iter().map(|part| part.len()).max().unwrap_or(0)
}
