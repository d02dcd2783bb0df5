//! A few digits to train on.

use mpienv_trainer::data::{Dataset, Datasets, digits};

/// The first of the embedded digits.
pub fn few_digits(train_count: usize, test_count: usize) -> Datasets {
    let Datasets { train, test } = digits::draw();
    let first = |data: &Dataset, count: usize| {
        let images: Vec<&[u8]> = (0..count).map(|index| data.image(index)).collect();
        Dataset::new(images.concat(), data.labels()[..count].to_vec()).unwrap()
    };
    Datasets { train: first(&train, train_count), test: first(&test, test_count) }
}
