//! Little memory, few threads, and files that claim more than they hold: an error, never an abort.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Output;

use crate::support::limited::{assert_fails, with_little_memory};
use crate::support::mnist::mnist;
use flate2::Compression;
use flate2::write::GzEncoder;

fn header(magic: u32, numbers: &[u32]) -> Vec<u8> {
    [magic].iter().chain(numbers).flat_map(|number| number.to_be_bytes()).collect()
}

/// A folder with good test files and training labels for `count` images.
fn folder(count: u32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: Vec<u8>| fs::write(folder.path().join(name), bytes).unwrap();
    put("t10k-images-idx3-ubyte", [header(0x803, &[1, 28, 28]), vec![0; 784]].concat());
    put("t10k-labels-idx1-ubyte", [header(0x801, &[1]), vec![0]].concat());
    put("train-labels-idx1-ubyte", [header(0x801, &[count]), vec![0; count as usize]].concat());
    folder
}

fn train_on(folder: &Path) -> Output {
    let mut command = mnist();
    command.args(["--epochs", "1", "--data"]).arg(folder);
    with_little_memory(&command).output().unwrap()
}

fn gzip(bytes: &[u8], level: Compression) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_packed_file_that_claims_millions_of_images_is_truncated_and_reserves_nothing() {
    let folder = folder(5_000_000);
    // Uncompressed content: a packed file of 4 MB could expand to 1000 times that length.
    let bytes = [header(0x803, &[5_000_000, 28, 28]), vec![0; 4 << 20]].concat();
    fs::write(folder.path().join("train-images-idx3-ubyte.gz"), gzip(&bytes, Compression::none()))
        .unwrap();
    let text =
        "train-images-idx3-ubyte.gz: is truncated: it ends after 4194320 of 3920000016 bytes";
    assert_fails(&train_on(folder.path()), text);
}

#[test]
fn a_packed_file_that_holds_more_than_the_memory_says_so() {
    let folder = folder(1_000_000);
    // A stream of many pieces.
    let (head, zeros) = (header(0x803, &[1_000_000, 28, 28]), vec![0; 1_000_000]);
    let pieces =
        [gzip(&head, Compression::fast()), gzip(&zeros, Compression::fast()).repeat(784)].concat();
    fs::write(folder.path().join("train-images-idx3-ubyte.gz"), pieces).unwrap();
    let text = "train-images-idx3-ubyte.gz: holds 784000016 bytes, and this process cannot get the memory for them";
    assert_fails(&train_on(folder.path()), text);
}

/// An image file that is as long as its header says, but takes no space on the disk.
fn sparse(path: &Path, count: u32) {
    let mut file = File::create(path).unwrap();
    file.write_all(&header(0x803, &[count, 28, 28])).unwrap();
    file.set_len(16 + 784 * u64::from(count)).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
}

#[test]
fn a_sparse_file_of_many_images_is_refused_before_it_is_read() {
    let folder = folder(60_000);
    let images = folder.path().join("train-images-idx3-ubyte");
    // 47 GB: more than any image file has.
    sparse(&images, 60_000_000);
    assert_fails(
        &train_on(folder.path()),
        "counts 60000000 images; from 1 to 10000000 can be read",
    );
    // 4 GB: the number of labels differs from that of images.
    sparse(&images, 5_000_000);
    assert_fails(&train_on(folder.path()), "there are 5000000 images but 60000 labels");
    // 4 GB: more than the available memory.
    let labels = [header(0x801, &[5_000_000]), vec![0; 5_000_000]].concat();
    fs::write(folder.path().join("train-labels-idx1-ubyte"), labels).unwrap();
    assert_fails(
        &train_on(folder.path()),
        "holds 3920000016 bytes, and this process cannot get the memory for them",
    );
}

#[test]
fn weights_and_checkpoints_of_47_gb_are_refused_before_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut file = File::create(at("checkpoint-000000001.safetensors")).unwrap();
    file.write_all(b"\x40\0\0\0\0\0\0\0{").unwrap();
    file.set_len(47 << 30).unwrap();
    let text = "checkpoint-000000001.safetensors: has more than 1073741824 bytes";
    let mut command = mnist();
    command.arg("--weights").arg(at("checkpoint-000000001.safetensors"));
    assert_fails(&with_little_memory(&command).output().unwrap(), text);
}

#[test]
fn a_number_of_ranks_that_no_machine_has_is_a_usage_error() {
    for ranks in ["4294967295", "4294967296", "4097"] {
        let output = with_little_memory(mnist().args(["--ranks", ranks])).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("1..=4096"), "{said}");
    }
}

#[test]
fn numbers_of_any_size_reserve_no_memory() {
    // Batches are limited to the number of samples.
    let largest = usize::MAX.to_string();
    let output =
        with_little_memory(mnist().args(["--epochs", "1", "--quiet", "--batch-size", &largest]))
            .output()
            .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{:?} {said}", output.status);
}
