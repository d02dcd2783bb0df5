//! Images and labels, from files or drawn by code.

pub mod digits;
pub mod idx;
pub mod source;

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
    pub fn new(images: Vec<u8>, labels: Vec<u8>) -> Result<Dataset, DatasetError> {
        if labels.is_empty() {
            return Err(DatasetError::Empty);
        }
        if Some(images.len()) != labels.len().checked_mul(PIXELS) {
            return Err(DatasetError::Counts {
                images: images.len() / PIXELS,
                labels: labels.len(),
            });
        }
        if let Some(index) = labels.iter().position(|&label| usize::from(label) >= CLASSES) {
            return Err(DatasetError::Label { index, label: labels[index] });
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

/// Why images and labels do not form a [`Dataset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatasetError {
    #[error("there are no images")]
    Empty,
    #[error("there are {images} images but {labels} labels")]
    Counts { images: usize, labels: usize },
    #[error("label {index} is {label}, labels are 0 to 9")]
    Label { index: usize, label: u8 },
}

/// The training set and the test set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datasets {
    pub train: Dataset,
    pub test: Dataset,
}
