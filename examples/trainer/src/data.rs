//! Images and labels, from files or drawn by code.

pub mod digits;
pub mod idx;
pub mod source;

use mpienv_sharding::error::Error;

/// The side of an image, in pixels.
pub const SIDE: usize = 28;

/// The pixels of an image.
pub const PIXELS: usize = SIDE * SIDE;

/// The number of classes. Labels are 0 to 9.
pub const CLASSES: usize = 10;

/// Images and their labels, stored as in the files: one byte per pixel.
///
/// Pixels are converted to f32 only when a batch is gathered, so 60,000 images take 47 MB instead
/// of 188 MB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dataset {
    images: Vec<u8>,
    labels: Vec<u8>,
}

impl Dataset {
    /// Creates a data set from images of [`PIXELS`] bytes each and their labels, each below
    /// [`CLASSES`].
    pub fn new(images: Vec<u8>, labels: Vec<u8>) -> Result<Dataset, Error> {
        if labels.is_empty() {
            return Err(Error::input("there are no images"));
        }
        if Some(images.len()) != labels.len().checked_mul(PIXELS) {
            return Err(other_counts(images.len() / PIXELS, labels.len()));
        }
        if let Some(index) = labels.iter().position(|&label| usize::from(label) >= CLASSES) {
            let text = format!("label {index} is {}, labels are 0 to 9", labels[index]);
            return Err(Error::input(text));
        }
        Ok(Dataset { images, labels })
    }

    /// The number of images; at least 1.
    pub fn count(&self) -> usize {
        self.labels.len()
    }

    /// The [`PIXELS`] bytes of an image, row by row; 0 is background.
    ///
    /// # Panics
    /// If `index` is not below [`Dataset::count`].
    pub fn image(&self, index: usize) -> &[u8] {
        &self.images[index * PIXELS..(index + 1) * PIXELS]
    }

    /// The number of images of each class.
    pub fn class_counts(&self) -> [usize; CLASSES] {
        let mut counts = [0; CLASSES];
        for &label in &self.labels {
            counts[usize::from(label)] += 1;
        }
        counts
    }

    /// The label of every image; each is below [`CLASSES`].
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }
}

/// The error of a number of labels that is not the number of images.
fn other_counts(images: usize, labels: usize) -> Error {
    Error::input(format!("there are {images} images but {labels} labels"))
}

/// The training set and the test set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datasets {
    pub train: Dataset,
    pub test: Dataset,
}
