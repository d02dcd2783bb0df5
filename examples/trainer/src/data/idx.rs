//! Reads MNIST's IDX files, plain or gzipped.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::SIDE;
use mpienv_sharding::file::regular_file;

/// The first four bytes of an IDX file of images: bytes in three dimensions.
pub const IMAGES_MAGIC: u32 = 0x0000_0803;

/// The first four bytes of an IDX file of labels: bytes in one dimension.
pub const LABELS_MAGIC: u32 = 0x0000_0801;

/// The maximum number of images or labels in a file: 7.84 GB of pixels.
pub const MOST: u32 = 10_000_000;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A file of 28x28 images whose header has been read.
pub struct Images<'path> {
    file: IdxFile<'path>,
    count: u32,
}

/// Reads the header of a file of 28x28 images.
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
    /// The number of images according to the header.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The pixels, image by image, row by row.
    pub fn read(self) -> Result<Vec<u8>, IdxError> {
        let length = u64::from(self.count) * (SIDE * SIDE) as u64;
        self.file.body(length)
    }
}

/// Reads the labels of a file, one byte each.
pub fn read_labels(path: &Path) -> Result<Vec<u8>, IdxError> {
    let mut file = IdxFile::open(path)?;
    file.expect_magic(LABELS_MAGIC)?;
    let count = file.number()?;
    let count = file.possible(count, "labels")?;
    file.body(u64::from(count))
}

/// Why a file is not the expected IDX file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct IdxError {
    pub path: PathBuf,
    pub fault: IdxFault,
}

/// What is wrong with an IDX file.
#[derive(Debug, thiserror::Error)]
pub enum IdxFault {
    /// The file cannot be opened or read.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// The file is shorter than its header requires.
    #[error("is truncated{}: it ends after {found} of {expected} bytes; fetch the file again", if *.gzip { " (gzip)" } else { "" })]
    Truncated { gzip: bool, found: u64, expected: u64 },
    /// The gzip stream is damaged.
    #[error("is corrupt (gzip): {0}; fetch the file again")]
    CorruptGzip(String),
    /// The first four bytes belong to another kind of file.
    #[error("begins with {found:#010x}, but an IDX file of {what} begins with {expected:#010x}")]
    Magic { found: u32, expected: u32, what: &'static str },
    /// The images are not 28x28.
    #[error("holds images of {rows}x{columns} pixels, the model takes 28x28")]
    Dimensions { rows: u32, columns: u32 },
    /// The header's count is too large.
    #[error("has a header that counts {found} {what}; from 1 to {MOST} can be read")]
    Count { found: u32, what: &'static str },
    /// Out of memory.
    #[error(
        "holds {expected} bytes, and this process cannot get the memory for them; see its limit (`ulimit -v`)"
    )]
    Memory { expected: u64 },
    /// The file continues after its last item.
    #[error("has bytes after the {expected} that its header counts; fetch the file again")]
    TrailingBytes { expected: u64 },
}

/// An open file, plain or gzipped.
struct IdxFile<'path> {
    path: &'path Path,
    reader: Box<dyn Read>,
    gzip: bool,
    /// The length of a plain file; `None` for a gzipped one.
    size: Option<u64>,
    /// The number of decompressed bytes read so far.
    position: u64,
}

impl<'path> IdxFile<'path> {
    fn open(path: &'path Path) -> Result<IdxFile<'path>, IdxError> {
        let unreadable =
            |error| IdxError { path: path.to_owned(), fault: IdxFault::Unreadable(error) };
        let file = regular_file::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        let mut bytes = BufReader::with_capacity(1 << 16, file);
        // Detect gzip by content, because servers and browsers decompress and rename files.
        let gzip = bytes.fill_buf().map_err(unreadable)?.starts_with(&GZIP_MAGIC);
        let size = (!gzip).then_some(length);
        let reader: Box<dyn Read> =
            if gzip { Box::new(MultiGzDecoder::new(bytes)) } else { Box::new(bytes) };
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

    /// Reads the next big-endian number of the header.
    fn number(&mut self) -> Result<u32, IdxError> {
        let mut bytes = [0; 4];
        let expected = self.position + 4;
        for byte in &mut bytes {
            // Read one byte at a time, so that the error shows how many bytes there were.
            self.reader
                .read_exact(std::slice::from_mut(byte))
                .map_err(|error| self.reading(error, expected))?;
            self.position += 1;
        }
        Ok(u32::from_be_bytes(bytes))
    }

    /// Checks that a count in the header does not exceed [`MOST`].
    fn possible(&self, found: u32, what: &'static str) -> Result<u32, IdxError> {
        if found > MOST { Err(self.error(IdxFault::Count { found, what })) } else { Ok(found) }
    }

    /// Reads the `length` bytes after the header. The file must end there.
    fn body(mut self, length: u64) -> Result<Vec<u8>, IdxError> {
        let expected = self.position + length;
        let mut body = Vec::new();
        // Reserve memory only if a plain file has the length its header requires. Otherwise, grow
        // while reading.
        match self.size {
            Some(found) if found < expected => {
                return Err(self.error(IdxFault::Truncated { gzip: false, found, expected }));
            }
            Some(found) if found > expected => {
                return Err(self.error(IdxFault::TrailingBytes { expected }));
            }
            Some(_) => {
                let room = usize::try_from(length).unwrap_or(usize::MAX);
                body.try_reserve_exact(room)
                    .map_err(|_| self.error(IdxFault::Memory { expected }))?;
            }
            None => {}
        }
        // This also grows with the bytes that arrive, and its error is not an abort.
        let read = self.reader.by_ref().take(length).read_to_end(&mut body);
        self.position += body.len() as u64;
        read.map_err(|error| self.reading(error, expected))?;
        if self.position < expected {
            return Err(self.error(IdxFault::Truncated {
                gzip: false,
                found: self.position,
                expected,
            }));
        }
        // Reading to the end also verifies the checksum of a gzip stream.
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
            io::ErrorKind::UnexpectedEof => {
                IdxFault::Truncated { gzip: self.gzip, found, expected }
            }
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
mod tests;
