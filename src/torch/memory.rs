//! The caller's memory, by its addresses.
#![expect(unsafe_code, reason = "the caller of a C ABI vouches for its addresses")]

use std::slice;

/// # Safety
/// `address` is that of `length` bytes that stay and do not change while they are used, unless
/// `length` is 0.
pub(crate) unsafe fn bytes<'a>(address: *const u8, length: usize) -> &'a [u8] {
    // SAFETY: the caller vouches for the bytes.
    if length == 0 { &[] } else { unsafe { slice::from_raw_parts(address, length) } }
}

/// # Safety
/// As [`bytes`], and nothing else uses the bytes meanwhile.
pub(crate) unsafe fn bytes_mut<'a>(address: *mut u8, length: usize) -> &'a mut [u8] {
    // SAFETY: the caller vouches for the bytes.
    if length == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(address, length) } }
}

/// # Safety
/// `addresses` is null, or that of `count` addresses.
pub(crate) unsafe fn addresses<'a, T>(addresses: *const *mut T, count: usize) -> &'a [*mut T] {
    // SAFETY: the caller vouches for the addresses.
    if addresses.is_null() { &[] } else { unsafe { slice::from_raw_parts(addresses, count) } }
}

/// Returns whether two pieces of memory of this length share a byte.
fn overlap(one: *const u8, length: usize, other: *const u8, other_length: usize) -> bool {
    let (one, other) = (one.addr(), other.addr());
    one < other + other_length && other < one + length
}

/// What is sent, or a copy of it if a call would write where it reads.
pub(crate) enum Sent<'a> {
    Place(&'a [u8]),
    Copy(Vec<u8>),
}

impl<'a> Sent<'a> {
    /// # Safety
    /// As [`bytes`]; `into` are the places that the call writes to, of these lengths.
    pub(crate) unsafe fn apart_from(
        address: *const u8,
        length: usize,
        into: impl IntoIterator<Item = (*const u8, usize)>,
    ) -> Sent<'a> {
        // SAFETY: the caller vouches for the bytes.
        let place = unsafe { bytes(address, length) };
        let mut into = into.into_iter();
        match into.any(|(other, other_length)| overlap(address, length, other, other_length)) {
            true => Sent::Copy(place.to_vec()),
            false => Sent::Place(place),
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Sent::Place(place) => place,
            Sent::Copy(copy) => copy,
        }
    }
}
