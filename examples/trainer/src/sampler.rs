//! Distributes the samples of an epoch over the ranks.

use std::ops::Range;

use mpienv::Rank;

use mpienv_sharding::random::{Purpose, Stream};

/// The order of the samples in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Shuffled in each epoch, depending on the seed.
    Shuffle,
    /// The order of the file.
    File,
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Order::Shuffle => "shuffle",
            Order::File => "file",
        })
    }
}

impl Order {
    /// Fills `samples` with the indices 0, 1, .. in the order of `epoch`, which is the same on
    /// every rank.
    pub fn arrange(self, samples: &mut [usize], seed: u64, epoch: u32) {
        for (index, sample) in samples.iter_mut().enumerate() {
            *sample = index;
        }
        if self == Order::Shuffle {
            Stream::new(seed, Purpose::Epoch(epoch)).shuffle(samples);
        }
    }
}

/// Returns the global batches of an epoch: ranges of positions in the epoch's order, at most `size`
/// long.
pub fn global_batches(samples: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..samples).step_by(size).map(move |start| start..samples.min(start.saturating_add(size)))
}

/// Returns the positions of `batch` that belong to `rank`. The i-th position of the batch goes to
/// rank i % ranks.
///
/// Together, the ranks process the same samples as a single rank with the whole batch.
pub fn share(batch: Range<usize>, rank: Rank) -> impl Iterator<Item = usize> {
    batch.skip(rank.index() as usize).step_by(rank.size() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_sample_is_seen_exactly_once_an_epoch(
            samples in 1usize..3000, ranks in 1u32..20, batch in 1usize..200, seed: u64, epoch in 0u32..5,
        ) {
            let mut order = vec![0; samples];
            Order::Shuffle.arrange(&mut order, seed, epoch);
            let mut seen = vec![0; samples];
            for positions in global_batches(samples, batch * ranks as usize) {
                for rank in Rank::new(0, ranks).unwrap().all() {
                    let own: Vec<usize> = share(positions.clone(), rank).collect();
                    prop_assert!(own.len() <= batch);
                    prop_assert!(own.len() == positions.len() / ranks as usize
                        || own.len() == positions.len().div_ceil(ranks as usize));
                    own.iter().for_each(|&position| seen[order[position]] += 1);
                }
            }
            prop_assert!(seen.iter().all(|&times| times == 1));
        }
    }

    #[test]
    fn with_two_ranks_sample_i_goes_to_rank_i_modulo_2() {
        for batch in global_batches(10, 4) {
            assert!(
                share(batch.clone(), Rank::new(0, 2).unwrap()).all(|position| position % 2 == 0)
            );
            assert!(share(batch, Rank::new(1, 2).unwrap()).all(|position| position % 2 == 1));
        }
    }

    #[test]
    fn a_batch_larger_than_memory_is_the_whole_set() {
        assert!(global_batches(10, usize::MAX).eq(std::iter::once(0..10)));
    }

    #[test]
    fn epochs_and_seeds_have_orders_of_their_own() {
        let order = |seed, epoch| {
            let mut samples = vec![0; 100];
            Order::Shuffle.arrange(&mut samples, seed, epoch);
            samples
        };
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
    }
}
