//! The caller's memory, by its addresses. What can be told from an address, its length and its
//! alignment is checked here; the caller vouches only for what cannot: that the bytes are its own.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::slice;

use mpienv_collective::seam::ElementKind;

use crate::Failure;

/// A buffer in a list, as the caller passes it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub address: *mut u8,
    /// In bytes.
    pub length: usize,
}

impl Piece {
    fn end(self) -> usize {
        self.address.addr().saturating_add(self.length)
    }

    fn overlaps(self, other: Piece) -> bool {
        self.address.addr() < other.end() && other.address.addr() < self.end()
    }
}

/// Fails if no buffer of this length begins at an address.
fn check(address: *const u8, length: usize) -> Result<(), Failure> {
    if length > 0 && address.is_null() {
        return Err(Failure::argument(format!("{length} bytes at no address")));
    }
    let ends = address.addr().checked_add(length).is_some();
    if !ends || isize::try_from(length).is_err() {
        return Err(Failure::argument(format!("{length} bytes are more than memory has")));
    }
    Ok(())
}

/// Fails if there is no place for a result at an address.
pub(crate) fn check_place<T>(place: *const T) -> Result<(), Failure> {
    if place.is_null() || !place.is_aligned() {
        return Err(Failure::argument("no place for a result"));
    }
    Ok(())
}

/// # Safety
/// `address` is null, or that of `length` bytes that stay and do not change while they are used.
pub(crate) unsafe fn bytes<'a>(address: *const u8, length: usize) -> Result<&'a [u8], Failure> {
    check(address, length)?;
    // SAFETY: it is not null and does not wrap around; the caller vouches for the bytes.
    Ok(if length == 0 { &[] } else { unsafe { slice::from_raw_parts(address, length) } })
}

/// # Safety
/// As [`bytes`], and nothing else uses the bytes meanwhile.
pub(crate) unsafe fn bytes_mut<'a>(
    address: *mut u8,
    length: usize,
) -> Result<&'a mut [u8], Failure> {
    check(address, length)?;
    // SAFETY: it is not null and does not wrap around; the caller vouches for the bytes.
    Ok(if length == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(address, length) } })
}

/// Two lists of buffers, each of at most one for each rank. The second follows the first.
///
/// # Safety
/// `list` is that of as many buffers.
pub(crate) unsafe fn pieces<'a>(
    list: *const Piece,
    counts: [usize; 2],
    ranks: usize,
    kind: ElementKind,
) -> Result<(&'a [Piece], &'a [Piece]), Failure> {
    if let Some(count) = counts.into_iter().find(|&count| count > ranks) {
        return Err(Failure::argument(format!("{count} buffers for {ranks} ranks")));
    }
    check_place(list)?;
    // SAFETY: it is neither null nor misaligned, and two lists for all ranks fit into memory.
    let pieces = unsafe { slice::from_raw_parts(list, counts[0] + counts[1]) };
    match pieces.iter().find(|piece| !piece.length.is_multiple_of(kind.size())) {
        None => Ok(pieces.split_at(counts[0])),
        Some(Piece { length, .. }) => {
            Err(Failure::argument(format!("{length} bytes are not {}", kind.name())))
        }
    }
}

/// The buffers of a list to which a call writes.
///
/// # Safety
/// As [`bytes_mut`], for each buffer.
pub(crate) unsafe fn places<'a>(pieces: &[Piece]) -> Result<Vec<&'a mut [u8]>, Failure> {
    let mut sorted = pieces.to_vec();
    sorted.sort_by_key(|piece| piece.address);
    if sorted.windows(2).any(|two| two[0].overlaps(two[1])) {
        return Err(Failure::argument("two buffers for results share memory"));
    }
    // SAFETY: they do not overlap; the caller vouches for the bytes.
    pieces.iter().map(|piece| unsafe { bytes_mut(piece.address, piece.length) }).collect()
}

/// # Safety
/// `text` is null, or a string that ends with 0.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::argument("no text at an address"));
    }
    // SAFETY: it is not null; the caller vouches for its end.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(Failure::argument)
}

/// What is sent, or a copy of it if a call would write where it reads.
///
/// # Safety
/// As [`bytes`]; `into` are the buffers that the call writes to.
pub(crate) unsafe fn bytes_apart<'a>(
    sent: Piece,
    into: &[Piece],
) -> Result<Cow<'a, [u8]>, Failure> {
    // SAFETY: the caller vouches for the bytes.
    let bytes = unsafe { bytes(sent.address, sent.length) }?;
    let is_apart = !into.iter().any(|&other| sent.overlaps(other));
    Ok(if is_apart { Cow::Borrowed(bytes) } else { Cow::Owned(bytes.to_vec()) })
}
