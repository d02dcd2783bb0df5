//! A batch: samples gathered from a data set, their pixels made numbers.

use pulp::Arch;

use crate::data::{Dataset, PIXELS};

/// The mean of MNIST's pixels, as it is usually rounded; pixels from 0 to 1.
const MEAN: f32 = 0.1307;

/// The standard deviation of MNIST's pixels, as it is usually rounded.
const DEVIATION: f32 = 0.3081;

/// What memory is fetched in, in bytes; where it is another number, only time is lost.
const CACHE_LINE: usize = 64;

/// An image as a model sees it: pixels of mean 0 and deviation 1, row by row.
pub type Image = [f32; PIXELS];

/// Samples ready for a model. The memory is allocated once, for the largest batch.
#[derive(Clone, Debug)]
pub struct Batch {
    /// One for each sample there is room for; the first ones are taken.
    images: Vec<Image>,
    labels: Vec<u8>,
    arch: Arch,
}

impl Batch {
    /// Room for `capacity` samples.
    pub fn new(capacity: usize) -> Batch {
        Batch { images: vec![[0.0; PIXELS]; capacity], labels: Vec::with_capacity(capacity), arch: Arch::new() }
    }

    /// Puts the samples of `data` with those indices in place of what was here: as many as there is room for.
    ///
    /// # Panics
    /// When an index is not below the count of `data`.
    pub fn gather(&mut self, data: &Dataset, indices: impl Iterator<Item = usize>) {
        self.labels.clear();
        for (row, index) in self.images.iter_mut().zip(indices) {
            normalize(self.arch, data.image(index), row);
            self.labels.push(data.labels()[index]);
        }
    }

    /// Has the memory of samples brought near, for the next [`Batch::gather`].
    ///
    /// In a random order nearly every row is a wait for memory; asked for all at once the rows come side by side.
    pub fn fetch(data: &Dataset, indices: impl Iterator<Item = usize>) {
        for index in indices {
            for &pixel in data.image(index).iter().step_by(CACHE_LINE) {
                std::hint::black_box(pixel);
            }
        }
    }

    /// The images.
    pub fn images(&self) -> &[Image] {
        &self.images[..self.labels.len()]
    }

    /// The label of each image.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }
}

/// Puts the pixels of an image into `row`, as a model sees them.
pub(crate) fn normalize(arch: Arch, image: &[u8], row: &mut Image) {
    arch.dispatch(|| {
        for (x, &pixel) in row.iter_mut().zip(image) {
            *x = normalized(pixel);
        }
    });
}

/// `(pixel / 255 - MEAN) / DEVIATION`, as one product and one sum, which the compiler does for several pixels at a time.
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
