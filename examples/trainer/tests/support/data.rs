//! Real MNIST, for the tests that need it.

use std::path::PathBuf;

use mpienv_trainer::data::Datasets;

use super::tool::{inherited, missing};

/// The folder that DATA_PATH names and its data, if that is MNIST.
///
/// No package manager installs this data: if DATA_PATH does not name it, the tests that need it are
/// skipped.
pub fn real_mnist() -> Option<(PathBuf, Datasets)> {
    const SIZES: (usize, usize) = (60_000, 10_000);
    let folder = inherited("DATA_PATH").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let is_named = folder.is_some();
    let data =
        folder.and_then(|folder| Some((folder.clone(), Datasets::load(Some(&folder)).ok()?)));
    // Checks the first labels, because Fashion-MNIST has the same names and sizes.
    let is_mnist = |data: &Datasets| {
        (data.train.count(), data.test.count()) == SIZES
            && data.train.labels().starts_with(&[5, 0, 4, 1, 9, 2])
    };
    let data = data.filter(|(_, data)| is_mnist(data));
    match &data {
        None if is_named => missing("MNIST in DATA_PATH"),
        None => eprintln!("skipped: no MNIST (set DATA_PATH)"),
        Some(_) => {}
    }
    data
}
