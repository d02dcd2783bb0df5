//! Images and labels: from a folder of MNIST files, or digits drawn by code.

pub mod digits;
pub mod idx;

use std::path::{Path, PathBuf};
use std::thread;

use self::idx::{IMAGES_MAGIC, LABELS_MAGIC};
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

/// The names of the images' file and of the labels', for training and for the test.
const TRAIN: [&str; 2] = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"];
const TEST: [&str; 2] = ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"];

impl Datasets {
    /// Reads the training and the test set from a folder with MNIST's four files, or with a data set
    /// in the same format. Without a folder, draws digits by code, which are always the same.
    pub fn load(folder: Option<&Path>) -> Result<Datasets, Error> {
        let Some(folder) = folder else { return Ok(digits::draw()) };
        if !folder.is_dir() {
            let folder = folder.display();
            return Err(Error::input(format!("{folder} is not a folder: {REMEDY}")));
        }
        let train = find(folder, TRAIN, &["", "train"])?;
        // The tutorial sets DATA_PATH to MNIST_Data/train. The test files are in MNIST_Data/test.
        let is_train = find_file(folder, TRAIN[0]).is_some();
        let beside: &[&str] = if is_train { &["../test", ".."] } else { &[] };
        let test = find(folder, TEST, &[&["", "test"], beside].concat())?;
        // Decompression takes most of the time before the first step, so the two sets are read in
        // parallel.
        let (train, test) = thread::scope(|scope| {
            match thread::Builder::new().spawn_scoped(scope, || read(&test)) {
                Ok(other) => (read(&train), other.join()),
                // If no thread can be started, read one set after the other.
                Err(_) => (read(&train), Ok(read(&test))),
            }
        });
        match test {
            Ok(test) => Ok(Datasets { train: train?, test: test? }),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Reads a file of images and the file of their labels.
fn read([images, labels]: &[PathBuf; 2]) -> Result<Dataset, Error> {
    let mismatch = |fault: Error| {
        let files = format!("{} and {}", images.display(), labels.display());
        Error::input(format!("{files} do not belong together: {fault}"))
    };
    let labels = idx::open(labels, LABELS_MAGIC)?.read()?;
    let images = idx::open(images, IMAGES_MAGIC)?;
    // Check before reading the pixels, which takes longest.
    let counts = [images.count as usize, labels.len()];
    if counts[0] != counts[1] && counts[1] != 0 {
        return Err(mismatch(other_counts(counts[0], counts[1])));
    }
    Dataset::new(images.read()?, labels).map_err(mismatch)
}

/// Finds the files of images and of labels in the first of these places below `folder` that has
/// images.
fn find(
    folder: &Path,
    [images, labels]: [&str; 2],
    places: &[&str],
) -> Result<[PathBuf; 2], Error> {
    let folders: Vec<PathBuf> = places.iter().map(|place| folder.join(place)).collect();
    let missing = |name, folders: &[PathBuf]| {
        let places =
            join(folders.iter().map(|folder| folder.join(name).display().to_string()), ", ");
        let text = format!("there is no {name}, plain or .gz: looked for {places}");
        Error::input(format!("{text}; {REMEDY}, with or without train and test in it"))
    };
    let found = folders.iter().find_map(|folder| Some((folder, find_file(folder, images)?)));
    let (folder, images) = found.ok_or_else(|| missing(images, &folders))?;
    let labels =
        find_file(folder, labels).ok_or_else(|| missing(labels, std::slice::from_ref(folder)))?;
    Ok([images, labels])
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
    fn put(folder: &Path, [images_name, labels_name]: [&str; 2], labels: &[u8]) {
        fs::create_dir_all(folder).unwrap();
        let count = labels.len() as u32;
        let pixels: Vec<u8> = labels.iter().flat_map(|&label| [label; 784]).collect();
        fs::write(folder.join(images_name), idx(IMAGES_MAGIC, &[count, 28, 28], &pixels)).unwrap();
        fs::write(folder.join(labels_name), idx(LABELS_MAGIC, &[count], labels)).unwrap();
    }

    /// Loads `named` in a folder that holds the training files in `train` and the test files in
    /// `test`.
    fn found(train: &str, test: &str, named: &str) -> Result<Datasets, Error> {
        let root = tempfile::tempdir().unwrap();
        put(&root.path().join(train), TRAIN, &[1, 2, 3]);
        put(&root.path().join(test), TEST, &[4, 5]);
        Datasets::load(Some(&root.path().join(named)))
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
        let error = Datasets::load(Some(Path::new("/no/such/folder"))).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/folder is not a folder: "), "{error}");
    }

    #[test]
    fn a_missing_file_is_named_with_the_places() {
        let root = tempfile::tempdir().unwrap();
        let error = Datasets::load(Some(root.path())).unwrap_err().to_string();
        let place = |place: &str| root.path().join(place).display().to_string();
        assert!(
            error.starts_with("there is no train-images-idx3-ubyte, plain or .gz: looked for "),
            "{error}"
        );
        assert!(error.contains(&place("train-images-idx3-ubyte")), "{error}");
        assert!(error.contains(&place("train/train-images-idx3-ubyte")), "{error}");

        put(root.path(), TRAIN, &[1]);
        let error = Datasets::load(Some(root.path())).unwrap_err().to_string();
        assert!(error.starts_with("there is no t10k-images-idx3-ubyte"), "{error}");
        assert!(error.contains(&place("../test/t10k-images-idx3-ubyte")), "{error}");

        fs::remove_file(root.path().join("train-labels-idx1-ubyte")).unwrap();
        let error = Datasets::load(Some(root.path())).unwrap_err().to_string();
        assert!(error.starts_with("there is no train-labels-idx1-ubyte"), "{error}");
    }

    #[test]
    fn counts_that_differ_are_named() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), TRAIN, &[1, 2, 3]);
        put(root.path(), TEST, &[4]);
        fs::write(root.path().join("train-labels-idx1-ubyte"), idx(LABELS_MAGIC, &[2], &[1, 2]))
            .unwrap();
        let error = Datasets::load(Some(root.path())).unwrap_err().to_string();
        assert!(
            error.ends_with("do not belong together: there are 3 images but 2 labels"),
            "{error}"
        );
        assert!(error.contains("train-images-idx3-ubyte and "), "{error}");
    }

    #[test]
    fn a_label_that_is_not_a_digit_is_named() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), TRAIN, &[1, 10]);
        put(root.path(), TEST, &[4]);
        let error = Datasets::load(Some(root.path())).unwrap_err().to_string();
        assert!(error.ends_with("label 1 is 10, labels are 0 to 9"), "{error}");
    }

    #[test]
    fn files_without_a_single_image_are_refused() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), TRAIN, &[1]);
        put(root.path(), TEST, &[]);
        let error = Datasets::load(Some(root.path())).unwrap_err().to_string();
        assert!(error.ends_with("there are no images"), "{error}");
    }
}
