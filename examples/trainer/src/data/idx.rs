//! Reads IDX files, the format of MNIST: plain, or packed by gzip.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::SIDE;
use crate::whole_read;

/// What the first four bytes of an IDX file of images are: bytes, in three dimensions.
pub const IMAGES_MAGIC: u32 = 0x0000_0803;

/// What the first four bytes of an IDX file of labels are: bytes, in one dimension.
pub const LABELS_MAGIC: u32 = 0x0000_0801;

/// The most images, and labels, of a file: 7.84 GB of pixels.
pub const MOST: u32 = 10_000_000;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The pixels of a file of 28x28 images, image by image, row by row.
///
/// # Errors
/// When the file cannot be read, or is not exactly such a file: [`IdxError`] says what is wrong.
pub fn read_images(path: &Path) -> Result<Vec<u8>, IdxError> {
    open_images(path)?.read()
}

/// A file of 28x28 images whose header has been read.
pub struct Images<'path> {
    file: IdxFile<'path>,
    count: u32,
}

/// Reads the header of a file of 28x28 images.
///
/// # Errors
/// As [`read_images`].
pub fn open_images(path: &Path) -> Result<Images<'_>, IdxError> {
    let mut file = IdxFile::open(path)?;
    file.expect_magic(IMAGES_MAGIC)?;
    let [count, rows, columns] = [file.number()?, file.number()?, file.number()?];
    if [rows, columns] != [SIDE as u32; 2] {
        return Err(file.error(IdxFault::Dimensions { rows, columns }));
    }
    Ok(Images { count: file.possible(count, "images")?, file })
}

impl Images<'_> {
    /// How many images the header counts.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The pixels.
    ///
    /// # Errors
    /// As [`read_images`].
    pub fn read(self) -> Result<Vec<u8>, IdxError> {
        let length = u64::from(self.count) * (SIDE * SIDE) as u64;
        self.file.body(length)
    }
}

/// The labels of a file, one byte each.
///
/// # Errors
/// As [`read_images`].
pub fn read_labels(path: &Path) -> Result<Vec<u8>, IdxError> {
    let mut file = IdxFile::open(path)?;
    file.expect_magic(LABELS_MAGIC)?;
    let count = file.number()?;
    let count = file.possible(count, "labels")?;
    file.body(u64::from(count))
}

/// Why a file is not the IDX file that it should be.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct IdxError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: IdxFault,
}

/// What is wrong with an IDX file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdxFault {
    /// The system does not give the file.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// The file ends before the bytes that its header counts; also inside a gzip stream.
    #[error("is truncated{}: it ends after {found} of {expected} bytes; fetch the file again", if *.gzip { " (gzip)" } else { "" })]
    Truncated {
        /// Whether the end came inside a gzip stream.
        gzip: bool,
        /// Bytes found, unpacked.
        found: u64,
        /// Bytes that should be there: at least the header, and all once the header is known.
        expected: u64,
    },
    /// The gzip stream contradicts itself.
    #[error("is corrupt (gzip): {0}; fetch the file again")]
    CorruptGzip(String),
    /// The first four bytes are those of another file.
    #[error("begins with {found:#010x}, but an IDX file of {what} begins with {expected:#010x}")]
    Magic {
        /// The first four bytes.
        found: u32,
        /// What they should be.
        expected: u32,
        /// What was to be read: images or labels.
        what: &'static str,
    },
    /// The images are not 28x28.
    #[error("holds images of {rows}x{columns} pixels, the model takes 28x28")]
    Dimensions {
        /// Rows an image.
        rows: u32,
        /// Columns an image.
        columns: u32,
    },
    /// The header counts more than any file has.
    #[error("has a header that counts {found} {what}; from 1 to {MOST} can be read")]
    Count {
        /// What it counts.
        found: u32,
        /// Images or labels.
        what: &'static str,
    },
    /// The system has no memory for what the file holds.
    #[error("holds {expected} bytes, and this process cannot get the memory for them; see its limit (`ulimit -v`)")]
    Memory {
        /// Bytes that the header counts, itself included, unpacked.
        expected: u64,
    },
    /// The file goes on after its last item.
    #[error("has bytes after the {expected} that its header counts; fetch the file again")]
    TrailingBytes {
        /// Bytes that the header counts, itself included, unpacked.
        expected: u64,
    },
}

/// A file being read: packed or not makes no difference to the caller.
struct IdxFile<'path> {
    path: &'path Path,
    reader: Box<dyn Read>,
    gzip: bool,
    /// How long a plain file is; not known of a packed one, and of a pipe.
    size: Option<u64>,
    /// Bytes read so far, unpacked.
    position: u64,
}

impl<'path> IdxFile<'path> {
    fn open(path: &'path Path) -> Result<IdxFile<'path>, IdxError> {
        let unreadable = |error| IdxError { path: path.to_owned(), fault: IdxFault::Unreadable(error) };
        let file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        let mut bytes = BufReader::with_capacity(1 << 16, file);
        // By its content, not by its name: servers and browsers unpack and rename.
        let gzip = bytes.fill_buf().map_err(unreadable)?.starts_with(&GZIP_MAGIC);
        let size = (metadata.is_file() && !gzip).then(|| metadata.len());
        let reader: Box<dyn Read> = if gzip { Box::new(MultiGzDecoder::new(bytes)) } else { Box::new(bytes) };
        Ok(IdxFile { path, reader, gzip, size, position: 0 })
    }

    fn expect_magic(&mut self, expected: u32) -> Result<(), IdxError> {
        let found = self.number()?;
        if found == expected {
            return Ok(());
        }
        let what = if expected == IMAGES_MAGIC { "images" } else { "labels" };
        Err(self.error(IdxFault::Magic { found, expected, what }))
    }

    /// The next number of the header: four bytes, the highest first.
    fn number(&mut self) -> Result<u32, IdxError> {
        let mut bytes = [0; 4];
        let expected = self.position + 4;
        for byte in &mut bytes {
            // A byte at a time: the error then tells how many there were.
            self.reader.read_exact(std::slice::from_mut(byte)).map_err(|error| self.reading(error, expected))?;
            self.position += 1;
        }
        Ok(u32::from_be_bytes(bytes))
    }

    /// A count that a file may have.
    fn possible(&self, found: u32, what: &'static str) -> Result<u32, IdxError> {
        if found > MOST { Err(self.error(IdxFault::Count { found, what })) } else { Ok(found) }
    }

    /// The `length` bytes after the header, which end the file.
    fn body(mut self, length: u64) -> Result<Vec<u8>, IdxError> {
        let expected = self.position + length;
        let mut body = Vec::new();
        // What the header says of a plain file is believed once the file is as long; of a packed one, as it is unpacked.
        match self.size {
            Some(found) if found < expected => {
                return Err(self.error(IdxFault::Truncated { gzip: false, found, expected }));
            }
            Some(found) if found > expected => return Err(self.error(IdxFault::TrailingBytes { expected })),
            Some(_) => {
                let room = usize::try_from(length).unwrap_or(usize::MAX);
                body.try_reserve_exact(room).map_err(|_| self.error(IdxFault::Memory { expected }))?;
            }
            None => {}
        }
        let read = whole_read::up_to(length, &mut self.reader, &mut body);
        self.position += body.len() as u64;
        read.map_err(|error| self.reading(error, expected))?;
        if self.position < expected {
            return Err(self.error(IdxFault::Truncated { gzip: false, found: self.position, expected }));
        }
        // Reading on to the end is also what checks the sums of a gzip stream.
        match self.reader.read(&mut [0]) {
            Ok(0) => Ok(body),
            Ok(_) => Err(self.error(IdxFault::TrailingBytes { expected })),
            Err(error) => Err(self.reading(error, expected)),
        }
    }

    fn reading(&self, error: io::Error, expected: u64) -> IdxError {
        let found = self.position;
        self.error(match error.kind() {
            io::ErrorKind::OutOfMemory => IdxFault::Memory { expected },
            io::ErrorKind::UnexpectedEof => IdxFault::Truncated { gzip: self.gzip, found, expected },
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData if self.gzip => {
                IdxFault::CorruptGzip(error.to_string())
            }
            _ => IdxFault::Unreadable(error),
        })
    }

    fn error(&self, fault: IdxFault) -> IdxError {
        IdxError { path: self.path.to_owned(), fault }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

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

    /// What reading `bytes` as images says, without the name of the file.
    fn fault(bytes: &[u8]) -> String {
        read_images(file(bytes).path()).unwrap_err().fault.to_string()
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
        assert!(error.starts_with("/no/such/train-images-idx3-ubyte: cannot be read: No such file"), "{error}");
    }

    #[test]
    fn a_folder_is_not_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let error = read_images(folder.path()).unwrap_err();
        assert!(matches!(error.fault, IdxFault::Unreadable(_)), "{error}");
    }

    #[test]
    fn a_truncated_file_is_named() {
        let whole = images(2);
        assert_eq!(fault(&[]), "is truncated: it ends after 0 of 4 bytes; fetch the file again");
        assert_eq!(fault(&whole[..10]), "is truncated: it ends after 10 of 12 bytes; fetch the file again");
        assert_eq!(fault(&whole[..1000]), "is truncated: it ends after 1000 of 1584 bytes; fetch the file again");
    }

    #[test]
    fn a_gzip_file_truncated_anywhere_is_named() {
        let whole = gzip(&images(2));
        for length in 2..whole.len() {
            let error = read_images(file(&whole[..length]).path()).unwrap_err();
            assert!(matches!(error.fault, IdxFault::Truncated { gzip: true, .. }), "{length}: {error}");
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
        // Bytes 3 to 9 are flags, time and system: some of their changes are without consequence.
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
        let file = file(&labels(&[1, 2, 3]));
        assert_eq!(
            read_images(file.path()).unwrap_err().fault.to_string(),
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
        let error = read_labels(file(&bytes).path()).unwrap_err().fault.to_string();
        assert_eq!(error, "has a header that counts 4294967295 labels; from 1 to 10000000 can be read");
    }

    #[test]
    fn a_header_that_counts_more_than_the_file_holds_is_found_out_before_the_body_is_read() {
        let mut bytes = images(1);
        bytes[4..8].copy_from_slice(&5_000_000_u32.to_be_bytes());
        assert_eq!(fault(&bytes), "is truncated: it ends after 800 of 3920000016 bytes; fetch the file again");
        assert_eq!(fault(&gzip(&bytes)), "is truncated: it ends after 800 of 3920000016 bytes; fetch the file again");
    }
}
