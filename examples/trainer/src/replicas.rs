//! Checks that all ranks hold the same parameters, bit for bit.

use ring::digest::{SHA256, digest};

use mpienv::collective::{CollectiveError, Group};
use mpienv_sharding::join;

/// Some ranks hold different parameters from the majority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} other parameters than {}: a sum had another result there, or memory is faulty; if it happens again, exclude \
     the host and resume from a checkpoint",
    ranks(odd, "holds", "hold"),
    ranks(most, "", "")
)]
pub struct Divergence {
    /// The ranks that differ.
    pub odd: Vec<usize>,
    /// The largest set of ranks that agree. Of equally large sets, the one with the lowest rank.
    pub most: Vec<usize>,
}

/// Compares digests of all ranks' parameters. All ranks get the same result.
pub fn check(
    parameters: &[f32],
    group: &mut Group,
) -> Result<Result<(), Divergence>, CollectiveError> {
    if group.rank().size() == 1 {
        return Ok(Ok(()));
    }
    let digest = digest(&SHA256, bytemuck::cast_slice(parameters));
    let digests = group.all_gather(digest.as_ref())?;
    let held: Vec<(usize, &[u8])> = digests.iter().map(Vec::as_slice).enumerate().collect();
    Ok(compare(&held))
}

/// Compares the bytes that ranks hold, given in rank order.
pub fn compare(held: &[(usize, &[u8])]) -> Result<(), Divergence> {
    if held.iter().all(|(_, bytes)| *bytes == held[0].1) {
        return Ok(());
    }
    let holders = |bytes: &[u8]| held.iter().filter(|(_, other)| *other == bytes).count();
    // Of equally frequent bytes, the last maximum is that of the lowest rank.
    let Some((_, right)) = held.iter().rev().max_by_key(|(_, bytes)| holders(bytes)) else {
        return Ok(());
    };
    let (most, odd): (Vec<_>, Vec<_>) = held.iter().partition(|(_, bytes)| bytes == right);
    let ranks = |of: Vec<(usize, &[u8])>| of.into_iter().map(|(rank, _)| rank).collect();
    Err(Divergence { odd: ranks(odd), most: ranks(most) })
}

/// Formats `rank 3 holds` or `ranks 1, 2 hold`. A long list is abbreviated.
fn ranks(ranks: &[usize], one: &str, more: &str) -> String {
    const SHOWN: usize = 8;
    let list = join(ranks.iter().take(SHOWN), ", ");
    let rest = ranks.len().saturating_sub(SHOWN);
    let list = if rest > 0 { format!("{list} and {rest} more") } else { list };
    let text = if ranks.len() == 1 {
        format!("rank {list} {one}")
    } else {
        format!("ranks {list} {more}")
    };
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(digests: &[u8]) -> String {
        let held: Vec<(usize, &[u8])> = digests.chunks(1).enumerate().collect();
        compare(&held).map_or_else(|error| error.to_string(), |()| "same".to_owned())
    }

    #[test]
    fn the_odd_ranks_are_named_and_who_they_differ_from() {
        assert_eq!(verdict(&[7, 7, 7]), "same");
        for (digests, start) in [
            (&[7, 7, 5, 7][..], "rank 2 holds other parameters than ranks 0, 1, 3: "),
            (&[5, 7, 7], "rank 0 holds other parameters than ranks 1, 2: "),
            (&[1, 2, 7, 7, 7], "ranks 0, 1 hold other parameters than ranks 2, 3, 4: "),
            // Of two ranks, neither is known to be right.
            (&[7, 5], "rank 1 holds other parameters than rank 0: "),
            (&[5, 7], "rank 1 holds other parameters than rank 0: "),
            (
                &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                "rank 0 holds other parameters than ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more: ",
            ),
        ] {
            assert!(verdict(digests).starts_with(start), "{}", verdict(digests));
        }
    }
}
