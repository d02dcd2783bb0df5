//! The heads of the frames that ranks exchange.

use crate::call::Call;

/// The length of a frame's head: kind (1), operation (1), type (1), refused or half (1), transfer
/// or blamed rank (4), length (8), the call's count (8) and root (4); little-endian.
pub(super) const HEAD: usize = 28;
/// Bytes of a call.
pub(super) const DATA: u8 = 1;
/// A goodbye: the rank exits normally.
pub(super) const BYE: u8 = 2;
/// The rank gives up, because the blamed rank is lost.
pub(super) const ABORT: u8 = 3;
/// The rank has waited too long for the blamed one.
pub(super) const SUSPECT: u8 = 4;
/// The rank gives up, because calls differ.
pub(super) const DIFFERENCE: u8 = 5;

/// What both ends must agree on besides the length of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    /// Counts the transfers of a group, starting from a number that depends on the group.
    pub(super) number: u32,
    pub(super) call: Call,
}

/// The head of a received frame.
pub(super) struct Head {
    pub(super) kind: u8,
    pub(super) number: u32,
    pub(super) length: u64,
    /// `None` if it cannot be read.
    pub(super) call: Option<Call>,
}

pub(super) fn head(kind: u8, number: u32, length: u64, call: Call) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = kind;
    head[1..4].copy_from_slice(&call.codes());
    head[4..8].copy_from_slice(&number.to_le_bytes());
    head[8..16].copy_from_slice(&length.to_le_bytes());
    head[16..24].copy_from_slice(&call.count.to_le_bytes());
    head[24..].copy_from_slice(&call.root.to_le_bytes());
    head
}

pub(super) fn parse(head: &[u8; HEAD]) -> Head {
    let &[kind, operation, type_of_numbers, how, ..] = head;
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| head[at + index]));
    Head {
        kind,
        number: (word(0) >> 32) as u32,
        length: word(8),
        call: Call::from_codes(
            [operation, type_of_numbers, how],
            word(16),
            (word(HEAD - 8) >> 32) as u32,
        ),
    }
}
