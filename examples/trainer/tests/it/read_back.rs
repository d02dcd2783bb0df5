//! Every file that `mnist` reads: only regular files, and no change of packed data goes unnoticed.

use std::fs;
use std::path::Path;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use mpienv_trainer::data::idx;

use crate::support::mnist::mnist;
use crate::support::regular_files::{assert_noticed, assert_reads_only_regular_files};

/// A program that reads a file: the file's name in the run's folder, and the command.
type Reader = (&'static str, fn(&Path) -> Command);

const READERS: [Reader; 5] = [
    ("weights", |folder| {
        let mut command = mnist();
        command.args(["--epochs", "1", "--weights"]).arg(folder.join("weights"));
        command
    }),
    ("weights", |folder| {
        let mut command = mnist();
        command.args(["--epochs", "1", "--ranks", "2", "--weights"]).arg(folder.join("weights"));
        command
    }),
    ("train-images-idx3-ubyte", |folder| {
        let mut command = mnist();
        let one_label = [idx::LABELS_MAGIC, 1].map(u32::to_be_bytes).concat();
        fs::write(folder.join("train-labels-idx1-ubyte"), [&one_label[..], &[7]].concat()).unwrap();
        for name in ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"] {
            fs::write(folder.join(name), "").unwrap();
        }
        command.args(["--epochs", "1", "--data"]).arg(folder);
        command
    }),
    ("train-labels-idx1-ubyte.gz", |folder| {
        let mut command = mnist();
        for name in ["train-images-idx3-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
        {
            fs::write(folder.join(name), "").unwrap();
        }
        command.args(["--epochs", "1", "--data"]).arg(folder);
        command
    }),
    ("checkpoint-000000005.safetensors", |folder| {
        let mut command = mnist();
        command.args(["--epochs", "1", "--resume", "--checkpoint-dir"]).arg(folder);
        command
    }),
];

#[test]
fn what_is_not_a_regular_file_is_never_waited_for() {
    for (name, command) in READERS {
        assert_reads_only_regular_files(name, command);
    }
}

#[test]
fn any_changed_byte_of_packed_data_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train-images-idx3-ubyte.gz");
    let numbers = [idx::IMAGES_MAGIC, 3, 28, 28].map(u32::to_be_bytes).concat();
    let pixels = (0..3 * 784_u32).map(|pixel| (pixel.wrapping_mul(2_654_435_761) >> 24) as u8);
    let mut encoder = GzEncoder::new(fs::File::create(&path).unwrap(), Compression::fast());
    std::io::Write::write_all(&mut encoder, &numbers.into_iter().chain(pixels).collect::<Vec<_>>())
        .unwrap();
    encoder.finish().unwrap();
    assert_noticed(&path, |path| {
        let read = idx::open(path, idx::IMAGES_MAGIC).and_then(idx::IdxFile::read);
        read.map_err(|error| error.to_string())
    });
}
