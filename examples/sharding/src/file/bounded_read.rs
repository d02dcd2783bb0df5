//! Reads a file into memory, up to a limit.

use std::io::{self, Read};

/// The initial capacity in bytes, whatever length a header or the system claims.
const FIRST: usize = 1 << 16;

/// Appends at most `limit` bytes.
///
/// # Errors
/// If reading fails or memory runs out.
pub fn up_to(limit: u64, from: impl Read, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut from = from.take(limit);
    loop {
        let length = bytes.len();
        // Grow with the bytes that arrive, so that a false length cannot reserve memory.
        let room = usize::try_from(from.limit()).unwrap_or(usize::MAX).min(length.max(FIRST));
        if room == 0 {
            return Ok(());
        }
        bytes
            .try_reserve_exact(room)
            .map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
        if from.by_ref().take(room as u64).read_to_end(bytes)? == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_to_their_end_or_to_the_limit() {
        for length in [0, 1, FIRST - 1, FIRST, FIRST + 1, 5 * FIRST] {
            let whole: Vec<u8> = (0..length).map(|index| index as u8).collect();
            for limit in [0, 1, length as u64, length as u64 + 1, u64::MAX] {
                let mut bytes = Vec::new();
                up_to(limit, whole.as_slice(), &mut bytes).unwrap();
                assert_eq!(
                    bytes,
                    whole[..length.min(usize::try_from(limit).unwrap())],
                    "{length} {limit}"
                );
            }
        }
    }

    #[test]
    fn what_is_there_stays_and_more_is_read_after_it() {
        let mut bytes = b"ab".to_vec();
        let mut from = &b"cdef"[..];
        up_to(2, &mut from, &mut bytes).unwrap();
        up_to(9, &mut from, &mut bytes).unwrap();
        assert_eq!(bytes, b"abcdef");
    }
}
