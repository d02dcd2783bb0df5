//! The table of all members, encoded once and sent to every rank.
//!
//! Consecutive ranks with the same address and blob length share one head, so that the table of a
//! large world with empty blobs takes a few bytes per host: count (4), address (1 + 0, 4 or 16),
//! blob length (4), blobs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::frame::take;
use super::{LONGEST_BLOB, most_in_all};

/// The most bytes before the blobs of a run.
const LONGEST_HEAD: usize = 4 + 1 + 16 + 4;

/// One rank's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Where rank 0 saw the rank. `None` is rank 0's own host, whose loopback address would mean
    /// another host to other ranks.
    pub(super) origin: Option<IpAddr>,
    pub(super) blob: Box<[u8]>,
}

/// Encodes the rows, in rank order.
pub(super) fn encode(rows: &[Row]) -> Vec<u8> {
    // The blobs may be long, so a vector that grows would hold too much.
    let mut out = Vec::with_capacity(rows.iter().map(|row| row.blob.len()).sum());
    for run in rows.chunk_by(|a, b| a.origin == b.origin && a.blob.len() == b.blob.len()) {
        let Some(first) = run.first() else { continue };
        out.extend(u32::try_from(run.len()).unwrap_or(u32::MAX).to_be_bytes());
        match first.origin {
            None => out.push(0),
            Some(IpAddr::V4(address)) => {
                out.push(4);
                out.extend(address.octets());
            }
            Some(IpAddr::V6(address)) => {
                out.push(6);
                out.extend(address.octets());
            }
        }
        out.extend(u32::try_from(first.blob.len()).unwrap_or(u32::MAX).to_be_bytes());
        for row in run {
            out.extend(&row.blob);
        }
    }
    out
}

/// The most bytes that the table of `size` ranks can have.
pub(super) fn largest(size: u32) -> usize {
    let most = most_in_all(size);
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    size.saturating_mul(LONGEST_HEAD).saturating_add(size.saturating_mul(LONGEST_BLOB).min(most))
}

/// Decodes the rows of `size` ranks. Returns `None` if the bytes are not a table of that size.
pub(super) fn decode(mut bytes: &[u8], size: u32) -> Option<Vec<Row>> {
    let size = usize::try_from(size).ok()?;
    let mut rows = Vec::new();
    while !bytes.is_empty() {
        let count = usize::try_from(u32::from_be_bytes(take(&mut bytes)?)).ok()?;
        let origin = match take(&mut bytes)? {
            [0] => None,
            [4] => Some(Ipv4Addr::from(take::<4>(&mut bytes)?).into()),
            [6] => Some(Ipv6Addr::from(take::<16>(&mut bytes)?).into()),
            _ => return None,
        };
        let length = usize::try_from(u32::from_be_bytes(take(&mut bytes)?)).ok()?;
        let total = count.checked_mul(length)?;
        if count == 0 || count > size - rows.len() || total > bytes.len() {
            return None;
        }
        let (blobs, rest) = bytes.split_at(total);
        bytes = rest;
        rows.extend(
            (0..count).map(|i| Row { origin, blob: blobs[i * length..(i + 1) * length].into() }),
        );
    }
    (rows.len() == size).then_some(rows)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn origin() -> impl Strategy<Value = Option<IpAddr>> {
        prop_oneof![
            Just(None),
            (0u32..3).prop_map(|n| Some(Ipv4Addr::from(n).into())),
            (0u128..3).prop_map(|n| Some(Ipv6Addr::from(n).into())),
        ]
    }

    #[test]
    fn ten_thousand_empty_blobs_on_one_host_take_nine_bytes() {
        let row = Row { origin: None, blob: Box::default() };
        assert_eq!(encode(&vec![row; 10_000]).len(), 9);
    }

    #[test]
    fn no_table_is_larger_than_its_bound() {
        let address = Some(Ipv6Addr::LOCALHOST.into());
        let row = |origin| Row { origin, blob: vec![0; LONGEST_BLOB].into() };
        let rows = [row(address), row(None), row(address)];
        assert!(encode(&rows[..1]).len() == largest(1) && encode(&rows).len() <= largest(3));
        assert_eq!(largest(100), 100 * LONGEST_HEAD + (16 << 20));
        assert_eq!(largest(10_000), 10_000 * (LONGEST_HEAD + 4096));
    }

    proptest! {
        #[test]
        fn a_table_is_read_back(
            rows in prop::collection::vec((origin(), prop::collection::vec(any::<u8>(), 0..3)), 1..40)
        ) {
            let rows: Vec<Row> =
                rows.into_iter().map(|(origin, blob)| Row { origin, blob: blob.into() }).collect();
            let bytes = encode(&rows);
            let size = u32::try_from(rows.len()).unwrap();
            prop_assert_eq!(decode(&bytes, size), Some(rows));
            prop_assert_eq!(decode(&bytes, size + 1), None);
            prop_assert_eq!(decode(&bytes, size - 1), None);
        }

        #[test]
        fn arbitrary_tables_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), size in 0u32..100_000) {
            if let Some(rows) = decode(&bytes, size) {
                prop_assert_eq!(rows.len(), usize::try_from(size).unwrap());
            }
        }
    }
}
