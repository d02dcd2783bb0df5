//! Determines which ranks belong to which group of a split.

/// Encodes what a rank sends to the others.
pub(super) fn request(color: u32, key: u32) -> Vec<u8> {
    [color.to_le_bytes(), key.to_le_bytes()].concat()
}

/// The ranks of this color, ordered by key, then by rank. `requests` has one request from each
/// rank, in rank order.
pub(super) fn members<'a>(
    color: u32,
    requests: impl IntoIterator<Item = &'a Vec<u8>>,
) -> Vec<usize> {
    let mut members = Vec::new();
    for (rank, request) in requests.into_iter().enumerate() {
        if let ([other, key], []) = request.as_chunks::<4>()
            && u32::from_le_bytes(*other) == color
        {
            members.push((u32::from_le_bytes(*key), rank));
        }
    }
    members.sort_unstable();
    members.into_iter().map(|(_key, rank)| rank).collect()
}
