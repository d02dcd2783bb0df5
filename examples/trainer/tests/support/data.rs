//! Real MNIST, for the tests that need it.

use std::path::PathBuf;

use mpienv_trainer::data::Datasets;
use mpienv_trainer::data::source::Source;

use super::tool::{inherited, missing};

/// The folder that DATA_PATH names and what is in it, if that is MNIST.
///
/// It is data, which no package manager brings: where DATA_PATH names none, the tests that need it are skipped.
pub fn real_mnist() -> Option<(PathBuf, Datasets)> {
    const SIZES: (usize, usize) = (60_000, 10_000);
    let folder = inherited("DATA_PATH").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let is_named = folder.is_some();
    let data = folder.and_then(|folder| Some((folder.clone(), Source::Folder(folder).load().ok()?)));
    // The first labels, for Fashion-MNIST has the same names and sizes.
    let is_mnist = |data: &Datasets| {
        (data.train.count(), data.test.count()) == SIZES && data.train.labels().starts_with(&[5, 0, 4, 1, 9, 2])
    };
    let data = data.filter(|(_, data)| is_mnist(data));
    match &data {
        None if is_named => missing("MNIST in DATA_PATH"),
        None => eprintln!("skipped: no MNIST (set DATA_PATH)"),
        Some(_) => {}
    }
    data
}
