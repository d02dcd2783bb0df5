use super::*;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;

fn read_images(path: &Path) -> Result<Vec<u8>, Error> {
    open_images(path)?.read()
}

fn images(count: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in [IMAGES_MAGIC, count, 28, 28] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend((0..count as usize * 784).map(|i| (i * 31 % 251) as u8));
    bytes
}

fn labels(labels: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(LABELS_MAGIC.to_be_bytes());
    bytes.extend((labels.len() as u32).to_be_bytes());
    bytes.extend(labels);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// Returns the error of reading `bytes` as images, without the file's name.
fn fault(bytes: &[u8]) -> String {
    let file = file(bytes);
    let error = read_images(file.path()).unwrap_err().to_string();
    error.strip_prefix(&format!("{}: ", file.path().display())).unwrap().to_owned()
}

#[test]
fn a_plain_file_is_read() {
    assert_eq!(read_images(file(&images(3)).path()).unwrap(), images(3)[16..]);
    assert_eq!(read_labels(file(&labels(&[7, 0, 9])).path()).unwrap(), [7, 0, 9]);
}

#[test]
fn a_gzip_file_is_read_whatever_its_name() {
    assert_eq!(read_images(file(&gzip(&images(3))).path()).unwrap(), images(3)[16..]);
    assert_eq!(read_labels(file(&gzip(&labels(&[1]))).path()).unwrap(), [1]);
}

#[test]
fn a_missing_file_is_named() {
    let error = read_images(Path::new("/no/such/train-images-idx3-ubyte")).unwrap_err().to_string();
    assert!(
        error.starts_with("/no/such/train-images-idx3-ubyte: cannot be read: No such file"),
        "{error}"
    );
}

#[test]
fn a_folder_is_not_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let error = read_images(folder.path()).unwrap_err();
    assert!(error.to_string().contains(": cannot be read: "), "{error}");
}

#[test]
fn a_truncated_file_is_named() {
    let whole = images(2);
    assert_eq!(fault(&[]), "is truncated: it ends after 0 of 4 bytes; fetch the file again");
    assert_eq!(
        fault(&whole[..10]),
        "is truncated: it ends after 10 of 12 bytes; fetch the file again"
    );
    assert_eq!(
        fault(&whole[..1000]),
        "is truncated: it ends after 1000 of 1584 bytes; fetch the file again"
    );
}

#[test]
fn a_gzip_file_truncated_anywhere_is_named() {
    let whole = gzip(&images(2));
    for length in 2..whole.len() {
        let error = read_images(file(&whole[..length]).path()).unwrap_err();
        assert!(error.to_string().contains(": is truncated (gzip): "), "{length}: {error}");
    }
}

#[test]
fn a_gzip_file_with_a_short_body_is_truncated() {
    assert_eq!(
        fault(&gzip(&images(2)[..1000])),
        "is truncated: it ends after 1000 of 1584 bytes; fetch the file again"
    );
}

#[test]
fn a_gzip_file_with_a_wrong_sum_is_corrupt() {
    let mut bytes = gzip(&images(2));
    let sum = bytes.len() - 8;
    bytes[sum] ^= 1;
    assert!(fault(&bytes).starts_with("is corrupt (gzip): "), "{}", fault(&bytes));
}

#[test]
fn a_gzip_file_with_any_byte_changed_is_never_taken_for_another() {
    let whole = gzip(&images(2));
    let truth = images(2)[16..].to_vec();
    // Skip bytes 3 to 9 (flags, time and system): changing some of them has no effect.
    for index in (0..whole.len()).filter(|index| !(3..10).contains(index)) {
        let mut bytes = whole.clone();
        bytes[index] ^= 0x55;
        if let Ok(pixels) = read_images(file(&bytes).path()) {
            assert_eq!(pixels, truth, "byte {index}");
        }
    }
}

#[test]
fn a_file_of_another_kind_is_named() {
    assert_eq!(
        fault(&labels(&[1, 2, 3])),
        "begins with 0x00000801, but an IDX file of images begins with 0x00000803"
    );
    assert_eq!(
        fault(b"<!DOCTYPE html>"),
        "begins with 0x3c21444f, but an IDX file of images begins with 0x00000803"
    );
}

#[test]
fn images_of_another_size_are_named() {
    let mut bytes = images(1);
    bytes[11] = 32;
    assert_eq!(fault(&bytes), "holds images of 32x28 pixels, the model takes 28x28");
}

#[test]
fn bytes_after_the_last_image_are_named() {
    let mut bytes = images(2);
    bytes.push(0);
    let text = "has bytes after the 1584 that its header counts; fetch the file again";
    assert_eq!(fault(&bytes), text);
    assert_eq!(fault(&gzip(&bytes)), text);
}

#[test]
fn bytes_after_the_gzip_stream_are_named() {
    let mut bytes = gzip(&images(2));
    bytes.extend(b"garbage after the stream");
    assert!(fault(&bytes).starts_with("is corrupt (gzip): "), "{}", fault(&bytes));
}

#[test]
fn a_header_that_counts_four_billion_images_is_not_believed() {
    let mut bytes = images(1);
    bytes[4..8].fill(0xff);
    let text = "has a header that counts 4294967295 images; from 1 to 10000000 can be read";
    assert_eq!(fault(&bytes), text);
    assert_eq!(fault(&gzip(&bytes)), text);
    let mut bytes = labels(&[1]);
    bytes[4..8].fill(0xff);
    let error = read_labels(file(&bytes).path()).unwrap_err().to_string();
    let text = "has a header that counts 4294967295 labels; from 1 to 10000000 can be read";
    assert!(error.ends_with(&format!(": {text}")), "{error}");
}

#[test]
fn a_header_that_counts_more_than_the_file_holds_is_found_out_before_the_body_is_read() {
    let mut bytes = images(1);
    bytes[4..8].copy_from_slice(&5_000_000_u32.to_be_bytes());
    assert_eq!(
        fault(&bytes),
        "is truncated: it ends after 800 of 3920000016 bytes; fetch the file again"
    );
    assert_eq!(
        fault(&gzip(&bytes)),
        "is truncated: it ends after 800 of 3920000016 bytes; fetch the file again"
    );
}
