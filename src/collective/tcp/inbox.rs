//! Where received bytes go.

use std::ops::Range;

/// The buffer for bytes from a peer; `None` if nothing is due from it.
pub(super) trait Inbox {
    fn from(&mut self, peer: usize) -> Option<&mut [u8]>;
}

/// A row of one length from every peer.
pub(super) struct Rows<'a> {
    pub(super) bytes: &'a mut [u8],
    pub(super) length: usize,
}

impl Inbox for Rows<'_> {
    fn from(&mut self, peer: usize) -> Option<&mut [u8]> {
        self.bytes.get_mut(peer * self.length..(peer + 1) * self.length)
    }
}

/// Bytes from one peer.
pub(super) struct Slot<'a> {
    pub(super) from: usize,
    pub(super) bytes: &'a mut [u8],
}

impl Inbox for Slot<'_> {
    fn from(&mut self, peer: usize) -> Option<&mut [u8]> {
        (peer == self.from).then_some(&mut *self.bytes)
    }
}

/// Bytes of any length from every peer.
pub(super) struct Slots<'a>(pub(super) &'a mut [Vec<u8>]);

impl Inbox for Slots<'_> {
    fn from(&mut self, peer: usize) -> Option<&mut [u8]> {
        self.0.get_mut(peer).map(Vec::as_mut_slice)
    }
}

/// The bytes after the first `from` bytes of every peer; nothing from a peer that has no more.
pub(super) struct Tails<'a> {
    pub(super) all: &'a mut [Vec<u8>],
    pub(super) from: usize,
}

impl Inbox for Tails<'_> {
    fn from(&mut self, peer: usize) -> Option<&mut [u8]> {
        self.all.get_mut(peer)?.get_mut(self.from..).filter(|rest| !rest.is_empty())
    }
}

/// A part of one buffer from every peer.
pub(super) struct Parts<'a> {
    pub(super) bytes: &'a mut [u8],
    pub(super) parts: &'a [Range<usize>],
}

impl Inbox for Parts<'_> {
    fn from(&mut self, peer: usize) -> Option<&mut [u8]> {
        self.bytes.get_mut(self.parts.get(peer)?.clone())
    }
}

/// Bytes from the listed peers.
#[cfg(target_os = "linux")]
pub(super) struct Listed<'a, 'b>(pub(super) &'a mut [(usize, &'b mut [u8])]);

#[cfg(target_os = "linux")]
impl Inbox for Listed<'_, '_> {
    fn from(&mut self, peer: usize) -> Option<&mut [u8]> {
        self.0.iter_mut().find(|(from, _)| *from == peer).map(|(_, bytes)| &mut **bytes)
    }
}

/// Nothing from any peer.
pub(super) struct NoInbox;

impl Inbox for NoInbox {
    fn from(&mut self, _peer: usize) -> Option<&mut [u8]> {
        None
    }
}
