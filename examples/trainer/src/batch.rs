//! A batch: samples gathered from a data set, with normalized pixels.

use pulp::Arch;

use crate::data::{Dataset, PIXELS};

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
    arch: Arch,
}

impl Batch {
    /// Creates an empty batch with room for `capacity` samples.
    pub fn new(capacity: usize) -> Batch {
        Batch {
            images: vec![[0.0; PIXELS]; capacity],
            labels: Vec::with_capacity(capacity),
            arch: Arch::new(),
        }
    }

    /// Replaces the batch with the samples of `data` at `indices`, up to the capacity.
    ///
    /// # Panics
    /// If an index is not below the count of `data`.
    pub fn gather(&mut self, data: &Dataset, indices: impl Iterator<Item = usize>) {
        self.labels.clear();
        for (row, index) in self.images.iter_mut().zip(indices) {
            normalize(self.arch, data.image(index), row);
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
fn normalized(pixel: u8) -> f32 {
    const FACTOR: f32 = 1.0 / (255.0 * DEVIATION);
    const SHIFT: f32 = -MEAN / DEVIATION;
    f32::from(pixel) * FACTOR + SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
