//! Batches: which samples of an epoch each rank gets, and their normalized pixels.

use crate::data::{Dataset, PIXELS};
use mpienv::Rank;
use mpienv_sharding::random::{Purpose, Stream};
use pulp::Arch;
use std::ops::Range;

/// The mean of MNIST's pixels, scaled to 0..1, with the customary rounding.
const MEAN: f32 = 0.1307;

/// The standard deviation of MNIST's pixels, with the customary rounding.
const DEVIATION: f32 = 0.3081;

/// The size of a cache line in bytes. On a machine with another size, only performance suffers.
const CACHE_LINE: usize = 64;

/// Pixels, row by row, normalized by MNIST's mean and deviation.
pub type Image = [f32; PIXELS];

/// Samples ready for a model. Memory for the largest batch is allocated once.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Only the first `labels.len()` are in use.
    images: Vec<Image>,
    labels: Vec<u8>,
}

impl Batch {
    /// Creates an empty batch with room for `capacity` samples.
    pub fn new(capacity: usize) -> Batch {
        Batch { images: vec![[0.0; PIXELS]; capacity], labels: Vec::with_capacity(capacity) }
    }

    /// Replaces the batch with the samples of `data` at `indices`, up to the capacity.
    ///
    /// # Panics
    /// If an index is not below the count of `data`.
    pub fn gather(&mut self, data: &Dataset, indices: impl Iterator<Item = usize>) {
        self.labels.clear();
        let arch = Arch::new();
        for (row, index) in self.images.iter_mut().zip(indices) {
            normalize(arch, data.image(index), row);
            self.labels.push(data.labels()[index]);
        }
    }

    /// Prefetches samples into the cache for the next [`Batch::gather`].
    ///
    /// In random order, nearly every row is a cache miss. Requesting all rows up front lets them
    /// load in parallel.
    pub fn fetch(data: &Dataset, indices: impl Iterator<Item = usize>) {
        for index in indices {
            data.image(index).iter().step_by(CACHE_LINE).for_each(prefetch);
        }
    }

    pub fn images(&self) -> &[Image] {
        &self.images[..self.labels.len()]
    }

    pub fn labels(&self) -> &[u8] {
        &self.labels
    }
}

/// Requests the cache line of a byte without waiting for it.
#[cfg(target_arch = "x86_64")]
fn prefetch(byte: &u8) {
    use pulp::core_arch::x86::Sse;
    use std::arch::x86_64::_MM_HINT_T1;
    if let Some(sse) = Sse::try_new() {
        // Prefetch into L2: L1 is smaller than a batch and appears to drop most of this many
        // requests.
        sse._mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(byte).cast());
    }
}

/// Loads a byte to bring in its cache line. The processor can overlap many such loads.
#[cfg(not(target_arch = "x86_64"))]
fn prefetch(&byte: &u8) {
    std::hint::black_box(byte);
}

/// Writes the normalized pixels of an image to `row`.
pub(crate) fn normalize(arch: Arch, image: &[u8], row: &mut Image) {
    arch.dispatch(|| {
        for (x, &pixel) in row.iter_mut().zip(image) {
            *x = normalized(pixel);
        }
    });
}

/// `(pixel / 255 - MEAN) / DEVIATION` as one product and one sum, which the compiler vectorizes.
pub(crate) fn normalized(pixel: u8) -> f32 {
    const FACTOR: f32 = 1.0 / (255.0 * DEVIATION);
    const SHIFT: f32 = -MEAN / DEVIATION;
    f32::from(pixel) * FACTOR + SHIFT
}

/// The order of the samples in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Shuffled in each epoch, depending on the seed.
    Shuffle,
    /// The order of the file.
    File,
}

impl Order {
    /// Returns the indices of `count` samples in the order of `epoch`, which is the same on every
    /// rank.
    pub fn arrange(self, count: usize, seed: u64, epoch: u32) -> Vec<usize> {
        let mut samples: Vec<usize> = (0..count).collect();
        if self == Order::Shuffle {
            Stream::new(seed, Purpose::Epoch(epoch)).shuffle(&mut samples);
        }
        samples
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

    #[test]
    fn pixels_are_normalized_as_in_the_tutorial() {
        for pixel in 0..=255u8 {
            let exact = (f64::from(pixel) / 255.0 - 0.1307) / 0.3081;
            assert!((f64::from(normalized(pixel)) - exact).abs() < 3e-7, "{pixel}");
        }
    }

    #[test]
    fn a_batch_holds_what_was_asked_for_and_nothing_from_before() {
        let images = [1u8, 2, 3].iter().flat_map(|&pixel| [pixel; PIXELS]).collect();
        let data = Dataset::new(images, vec![7, 8, 9]).unwrap();
        let mut batch = Batch::new(3);
        batch.gather(&data, [2, 0, 1].into_iter());
        assert_eq!(batch.labels(), [9, 7, 8]);
        batch.gather(&data, [1].into_iter());
        assert_eq!((batch.labels(), batch.images().len()), (&[8][..], 1));
        assert!(batch.images()[0].iter().all(|&x| x == normalized(2)));
        batch.gather(&data, [].into_iter());
        assert!(batch.images().is_empty());
    }

    proptest! {
        #[test]
        fn every_sample_is_seen_exactly_once_an_epoch(
            samples in 1usize..3000, ranks in 1u32..20, batch in 1usize..200, seed: u64, epoch in 0u32..5,
        ) {
            let order = Order::Shuffle.arrange(samples, seed, epoch);
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
        let order = |seed, epoch| Order::Shuffle.arrange(100, seed, epoch);
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
    }
}
