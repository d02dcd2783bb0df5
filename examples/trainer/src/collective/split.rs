//! Who belongs to which group of a split.

/// What a rank tells the others of its wish.
pub(super) fn wish(color: u32, key: u32) -> Vec<u8> {
    [color.to_le_bytes(), key.to_le_bytes()].concat()
}

/// The ranks whose color is `color`, ordered by key, then by rank, from the wishes of all in rank order.
pub(super) fn members<'a>(color: u32, wishes: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<usize> {
    let mut members = Vec::new();
    for (rank, wish) in wishes.into_iter().enumerate() {
        if let ([other, key], []) = wish.as_chunks::<4>()
            && u32::from_le_bytes(*other) == color
        {
            members.push((u32::from_le_bytes(*key), rank));
        }
    }
    members.sort_unstable();
    members.into_iter().map(|(_key, rank)| rank).collect()
}
