//! Determines which ranks belong to which group of a split.

use crate::value::rank::Rank;

/// This rank's group.
pub(super) struct Part {
    /// Its ranks, by their index in the group that is split.
    pub(super) members: Vec<usize>,
    /// This rank's place in it.
    pub(super) rank: Rank,
}

/// Encodes what a rank sends to the others.
pub(super) fn request(color: u32, key: u32) -> Vec<u8> {
    [color.to_le_bytes(), key.to_le_bytes()].concat()
}

/// The group of rank `own`: the ranks of its color, ordered by key, then by rank. `requests` has
/// one request from each rank, in rank order.
///
/// # Errors
/// The rank whose request cannot be read.
pub(super) fn part<'a>(
    own: usize,
    requests: impl IntoIterator<Item = &'a Vec<u8>>,
) -> Result<Part, usize> {
    let mut colors = Vec::new();
    for (rank, request) in requests.into_iter().enumerate() {
        let ([color, key], []) = request.as_chunks::<4>() else { return Err(rank) };
        colors.push((*color, u32::from_le_bytes(*key), rank));
    }
    let &(own_color, ..) = colors.get(own).ok_or(own)?;
    colors.retain(|(color, ..)| *color == own_color);
    colors.sort_unstable();
    let members: Vec<usize> = colors.into_iter().map(|(.., rank)| rank).collect();
    let place = members.iter().position(|&rank| rank == own).ok_or(own)?;
    let rank = Rank::new(place as u32, members.len() as u32).map_err(|_| own)?;
    Ok(Part { members, rank })
}
