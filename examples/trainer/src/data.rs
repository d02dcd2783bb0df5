//! Images and labels: from a folder of MNIST files, or digits drawn by code.

pub mod digits;
pub mod idx;

use std::path::{Path, PathBuf};
use std::thread;

use mpienv_sharding::error::Error;
use mpienv_sharding::join;

const REMEDY: &str = "--data or DATA_PATH must name the folder that holds the MNIST files";

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

    /// The bytes of all images, one after the other.
    pub fn images(&self) -> &[u8] {
        &self.images
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

/// A source of training and test data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A folder with MNIST's four files, or with a data set in the same format.
    Folder(PathBuf),
    /// Digits drawn by code; always the same.
    Embedded,
}

impl Source {
    /// Reads or draws the training and the test set.
    pub fn load(&self) -> Result<Datasets, Error> {
        let Source::Folder(folder) = self else {
            return Ok(digits::draw());
        };
        let train = find(folder, Split::Train)?;
        let test = find(folder, Split::Test)?;
        // Decompression takes most of the time before the first step, so the two sets are read in
        // parallel.
        let (train, test) = thread::scope(|scope| {
            match thread::Builder::new().spawn_scoped(scope, || test.read()) {
                Ok(other) => (train.read(), other.join()),
                // If no thread can be started, read one set after the other.
                Err(_) => (train.read(), Ok(test.read())),
            }
        });
        match test {
            Ok(test) => Ok(Datasets { train: train?, test: test? }),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// The two parts of MNIST.
#[derive(Clone, Copy)]
enum Split {
    Train,
    Test,
}

impl Split {
    /// The names of the images' file and of the labels'.
    fn names(self) -> [&'static str; 2] {
        match self {
            Split::Train => ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"],
            Split::Test => ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"],
        }
    }

    /// The folders to search for this part if the user named `folder`.
    fn folders(self, folder: &Path) -> Vec<PathBuf> {
        let places: &[&str] = match self {
            Split::Train => &["", "train"],
            // The tutorial sets DATA_PATH to MNIST_Data/train. The test files are in
            // MNIST_Data/test.
            Split::Test if find_file(folder, Split::Train.names()[0]).is_some() => {
                &["", "test", "../test", ".."]
            }
            Split::Test => &["", "test"],
        };
        places.iter().map(|place| folder.join(place)).collect()
    }
}

/// The files of one part.
struct Files {
    images: PathBuf,
    labels: PathBuf,
}

impl Files {
    fn read(&self) -> Result<Dataset, Error> {
        let labels = idx::read_labels(&self.labels)?;
        let images = idx::open_images(&self.images)?;
        let mismatch = |fault: Error| {
            let files = format!("{} and {}", self.images.display(), self.labels.display());
            Error::input(format!("{files} do not belong together: {fault}"))
        };
        // Check before reading the pixels, which takes longest.
        let counts = [images.count as usize, labels.len()];
        if counts[0] != counts[1] && counts[1] != 0 {
            return Err(mismatch(other_counts(counts[0], counts[1])));
        }
        Dataset::new(images.read()?, labels).map_err(mismatch)
    }
}

/// Finds the files of a part, both in the same folder.
fn find(folder: &Path, split: Split) -> Result<Files, Error> {
    if !folder.is_dir() {
        let folder = folder.display();
        return Err(Error::input(format!("{folder} is not a folder: {REMEDY}")));
    }
    let (folders, [images, labels]) = (split.folders(folder), split.names());
    let missing = |name, folders: &[PathBuf]| {
        let places =
            join(folders.iter().map(|folder| folder.join(name).display().to_string()), ", ");
        let text = format!("there is no {name}, plain or .gz: looked for {places}");
        Error::input(format!("{text}; {REMEDY}, with or without train and test in it"))
    };
    let (folder, images) = folders
        .iter()
        .find_map(|folder| Some((folder, find_file(folder, images)?)))
        .ok_or_else(|| missing(images, &folders))?;
    let labels =
        find_file(folder, labels).ok_or_else(|| missing(labels, std::slice::from_ref(folder)))?;
    Ok(Files { images, labels })
}

/// Finds a file by name. A plain file is preferred to a gzipped one because it is faster to read. A
/// symbolic link that leads nowhere is found, so that reading it names it.
fn find_file(folder: &Path, name: &str) -> Option<PathBuf> {
    [folder.join(name), folder.join(format!("{name}.gz"))]
        .into_iter()
        .find(|path| path.symlink_metadata().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn idx(magic: u32, dimensions: &[u32], body: &[u8]) -> Vec<u8> {
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend(dimensions.iter().flat_map(|dimension| dimension.to_be_bytes()));
        bytes.extend(body);
        bytes
    }

    /// Writes a part with one image per label. Every pixel of an image equals its label.
    fn put(folder: &Path, split: Split, labels: &[u8]) {
        fs::create_dir_all(folder).unwrap();
        let count = labels.len() as u32;
        let pixels: Vec<u8> = labels.iter().flat_map(|&label| [label; 784]).collect();
        let [images_name, labels_name] = split.names();
        fs::write(folder.join(images_name), idx(idx::IMAGES_MAGIC, &[count, 28, 28], &pixels))
            .unwrap();
        fs::write(folder.join(labels_name), idx(idx::LABELS_MAGIC, &[count], labels)).unwrap();
    }

    /// Loads `named` in a folder that holds the training files in `train` and the test files in
    /// `test`.
    fn found(train: &str, test: &str, named: &str) -> Result<Datasets, Error> {
        let root = tempfile::tempdir().unwrap();
        put(&root.path().join(train), Split::Train, &[1, 2, 3]);
        put(&root.path().join(test), Split::Test, &[4, 5]);
        Source::Folder(root.path().join(named)).load()
    }

    #[test]
    fn the_files_are_found_with_and_without_sub_folders() {
        for (train, test, named) in [
            ("", "", ""),
            ("train", "test", ""),
            ("train", "test", "train"),
            ("train", "test", "train/"),
            ("train", "train", "train"),
            ("train", "", "train"),
            ("train", "", ""),
            ("MNIST_Data/train", "MNIST_Data/test", "MNIST_Data"),
        ] {
            let data = found(train, test, named).unwrap();
            assert_eq!(data.train.labels(), [1, 2, 3], "{train} {test} {named}");
            assert_eq!(data.test.labels(), [4, 5], "{train} {test} {named}");
            assert_eq!(data.train.image(2), [3; 784]);
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = Source::Folder("/no/such/folder".into()).load().unwrap_err().to_string();
        assert!(error.starts_with("/no/such/folder is not a folder: "), "{error}");
    }

    #[test]
    fn a_missing_file_is_named_with_the_places() {
        let root = tempfile::tempdir().unwrap();
        let error = Source::Folder(root.path().into()).load().unwrap_err().to_string();
        let place = |place: &str| root.path().join(place).display().to_string();
        assert!(
            error.starts_with("there is no train-images-idx3-ubyte, plain or .gz: looked for "),
            "{error}"
        );
        assert!(error.contains(&place("train-images-idx3-ubyte")), "{error}");
        assert!(error.contains(&place("train/train-images-idx3-ubyte")), "{error}");

        put(root.path(), Split::Train, &[1]);
        let error = Source::Folder(root.path().into()).load().unwrap_err().to_string();
        assert!(error.starts_with("there is no t10k-images-idx3-ubyte"), "{error}");
        assert!(error.contains(&place("../test/t10k-images-idx3-ubyte")), "{error}");

        fs::remove_file(root.path().join("train-labels-idx1-ubyte")).unwrap();
        let error = Source::Folder(root.path().into()).load().unwrap_err().to_string();
        assert!(error.starts_with("there is no train-labels-idx1-ubyte"), "{error}");
    }

    #[test]
    fn counts_that_differ_are_named() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), Split::Train, &[1, 2, 3]);
        put(root.path(), Split::Test, &[4]);
        fs::write(
            root.path().join("train-labels-idx1-ubyte"),
            idx(idx::LABELS_MAGIC, &[2], &[1, 2]),
        )
        .unwrap();
        let error = Source::Folder(root.path().into()).load().unwrap_err().to_string();
        assert!(
            error.ends_with("do not belong together: there are 3 images but 2 labels"),
            "{error}"
        );
        assert!(error.contains("train-images-idx3-ubyte and "), "{error}");
    }

    #[test]
    fn a_label_that_is_not_a_digit_is_named() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), Split::Train, &[1, 10]);
        put(root.path(), Split::Test, &[4]);
        let error = Source::Folder(root.path().into()).load().unwrap_err().to_string();
        assert!(error.ends_with("label 1 is 10, labels are 0 to 9"), "{error}");
    }

    #[test]
    fn files_without_a_single_image_are_refused() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), Split::Train, &[1]);
        put(root.path(), Split::Test, &[]);
        let error = Source::Folder(root.path().into()).load().unwrap_err().to_string();
        assert!(error.ends_with("there are no images"), "{error}");
    }
}
