//! How ranks compare a call over MPI.

use super::{Call, Operation};

/// The length of a call that is encoded as a whole.
const DESCRIBED: usize = 15;

impl Call {
    /// Leaves MPI. Other transports end without a call.
    pub(crate) const CLOSE: Call = Call::of(Operation::Close, 0);

    /// Two numbers that differ between calls. Their sums over 2^21 ranks are exact.
    pub(crate) fn fingerprints(self) -> [f64; 2] {
        // The last step of SplitMix64, once for each of the two parts.
        let mix = |bits: u64| {
            let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            bits ^ (bits >> 31)
        };
        let [operation, kind, refused] = self.codes();
        let codes = u64::from(u32::from_le_bytes([operation, kind, refused, 1]));
        let codes = codes | u64::from(self.root) << 32;
        let print = mix(mix(self.count.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ codes);
        [(print >> 32) as u32, print as u32].map(f64::from)
    }

    /// Encodes the whole call.
    pub(crate) fn described(self) -> [u8; DESCRIBED] {
        let mut described = [0; DESCRIBED];
        described[..8].copy_from_slice(&self.count.to_le_bytes());
        described[8..12].copy_from_slice(&self.root.to_le_bytes());
        described[12..].copy_from_slice(&self.codes());
        described
    }

    /// Decodes what [`Call::described`] returns; `None` if it is something else.
    pub(crate) fn from_described(described: [u8; DESCRIBED]) -> Option<Call> {
        let (mut count, mut root, mut codes) = ([0; 8], [0; 4], [0; 3]);
        count.copy_from_slice(&described[..8]);
        root.copy_from_slice(&described[8..12]);
        codes.copy_from_slice(&described[12..]);
        Call::from_codes(codes, u64::from_le_bytes(count), u32::from_le_bytes(root))
    }
}
