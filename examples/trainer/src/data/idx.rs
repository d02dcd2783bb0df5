//! Reads MNIST's IDX files, plain or gzipped.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::SIDE;
use mpienv_sharding::error::Error;
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
pub fn open_images(path: &Path) -> Result<Images<'_>, Error> {
    let mut file = IdxFile::open(path)?;
    file.expect_magic(IMAGES_MAGIC)?;
    let [count, rows, columns] = [file.number()?, file.number()?, file.number()?];
    if [rows, columns] != [SIDE as u32; 2] {
        let found = format!("holds images of {rows}x{columns} pixels");
        return Err(file.error(format!("{found}, the model takes 28x28")));
    }
    Ok(Images { count: file.possible(count, "images")?, file })
}

impl Images<'_> {
    /// The number of images according to the header.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The pixels, image by image, row by row.
    pub fn read(self) -> Result<Vec<u8>, Error> {
        let length = u64::from(self.count) * (SIDE * SIDE) as u64;
        self.file.body(length)
    }
}

/// Reads the labels of a file, one byte each.
pub fn read_labels(path: &Path) -> Result<Vec<u8>, Error> {
    let mut file = IdxFile::open(path)?;
    file.expect_magic(LABELS_MAGIC)?;
    let count = file.number()?;
    let count = file.possible(count, "labels")?;
    file.body(u64::from(count))
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
    fn open(path: &'path Path) -> Result<IdxFile<'path>, Error> {
        let unreadable = |error| of_file(path, format!("cannot be read: {error}"));
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

    fn expect_magic(&mut self, expected: u32) -> Result<(), Error> {
        let found = self.number()?;
        if found == expected {
            return Ok(());
        }
        let what = if expected == IMAGES_MAGIC { "images" } else { "labels" };
        Err(self.error(format!(
            "begins with {found:#010x}, but an IDX file of {what} begins with {expected:#010x}"
        )))
    }

    /// Reads the next big-endian number of the header.
    fn number(&mut self) -> Result<u32, Error> {
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
    fn possible(&self, found: u32, what: &'static str) -> Result<u32, Error> {
        if found <= MOST {
            return Ok(found);
        }
        let text = format!("has a header that counts {found} {what}");
        Err(self.error(format!("{text}; from 1 to {MOST} can be read")))
    }

    /// Reads the `length` bytes after the header. The file must end there.
    fn body(mut self, length: u64) -> Result<Vec<u8>, Error> {
        let expected = self.position + length;
        let mut body = Vec::new();
        // Reserve memory only if a plain file has the length its header requires. Otherwise, grow
        // while reading.
        match self.size {
            Some(found) if found < expected => return Err(self.truncated(false, found, expected)),
            Some(found) if found > expected => return Err(self.too_long(expected)),
            Some(_) => {
                let room = usize::try_from(length).unwrap_or(usize::MAX);
                body.try_reserve_exact(room)
                    .map_err(|_| self.reading(io::ErrorKind::OutOfMemory.into(), expected))?;
            }
            None => {}
        }
        // This also grows with the bytes that arrive, and its error is not an abort.
        let read = self.reader.by_ref().take(length).read_to_end(&mut body);
        self.position += body.len() as u64;
        read.map_err(|error| self.reading(error, expected))?;
        if self.position < expected {
            return Err(self.truncated(false, self.position, expected));
        }
        // Reading to the end also verifies the checksum of a gzip stream.
        match self.reader.read(&mut [0]) {
            Ok(0) => Ok(body),
            Ok(_) => Err(self.too_long(expected)),
            Err(error) => Err(self.reading(error, expected)),
        }
    }

    fn truncated(&self, gzip: bool, found: u64, expected: u64) -> Error {
        let gzip = if gzip { " (gzip)" } else { "" };
        let text = format!("is truncated{gzip}: it ends after {found} of {expected} bytes");
        self.error(format!("{text}; fetch the file again"))
    }

    fn too_long(&self, expected: u64) -> Error {
        let text = format!("has bytes after the {expected} that its header counts");
        self.error(format!("{text}; fetch the file again"))
    }

    #[expect(clippy::needless_pass_by_value, reason = "for map_err")]
    fn reading(&self, error: io::Error, expected: u64) -> Error {
        match error.kind() {
            io::ErrorKind::OutOfMemory => self.error(format!(
                "holds {expected} bytes, and this process cannot get the memory for them; see its \
                 limit (`ulimit -v`)"
            )),
            io::ErrorKind::UnexpectedEof => self.truncated(self.gzip, self.position, expected),
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData if self.gzip => {
                self.error(format!("is corrupt (gzip): {error}; fetch the file again"))
            }
            _ => self.error(format!("cannot be read: {error}")),
        }
    }

    fn error(&self, text: String) -> Error {
        of_file(self.path, text)
    }
}

fn of_file(path: &Path, text: String) -> Error {
    Error::input(format!("{}: {text}", path.display()))
}

#[cfg(test)]
mod tests;
