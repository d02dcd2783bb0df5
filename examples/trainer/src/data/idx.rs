//! Reads MNIST's IDX files, plain or gzipped.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::{PIXELS, SIDE};
use mpienv_sharding::error::Error;
use mpienv_sharding::file;

/// The first four bytes of an IDX file of images: bytes in three dimensions.
pub const IMAGES_MAGIC: u32 = 0x0000_0803;

/// The first four bytes of an IDX file of labels: bytes in one dimension.
pub const LABELS_MAGIC: u32 = 0x0000_0801;

/// The maximum number of images or labels in a file: 7.84 GB of pixels.
pub const MOST: u32 = 10_000_000;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Returns whether a file is gzipped, and a reader of what it holds.
pub(crate) fn unpacked<'a>(file: impl Read + 'a) -> io::Result<(bool, Box<dyn Read + 'a>)> {
    let mut bytes = BufReader::with_capacity(1 << 16, file);
    // Detect gzip by content, because servers and browsers decompress and rename files.
    let gzip = bytes.fill_buf()?.starts_with(&GZIP_MAGIC);
    Ok((gzip, if gzip { Box::new(MultiGzDecoder::new(bytes)) } else { Box::new(bytes) }))
}

/// A file, plain or gzipped, whose header has been read.
pub struct IdxFile<'path> {
    path: &'path Path,
    reader: Box<dyn Read>,
    gzip: bool,
    /// The length of a plain file; `None` for a gzipped one.
    size: Option<u64>,
    /// The number of decompressed bytes read so far.
    position: u64,
    /// The number of images or labels according to the header.
    pub count: u32,
    /// The bytes of each.
    each: u64,
}

/// Reads the header of a file of 28x28 images ([`IMAGES_MAGIC`]) or of labels ([`LABELS_MAGIC`]).
pub fn open(path: &Path, magic: u32) -> Result<IdxFile<'_>, Error> {
    let unreadable = |error| Error::in_file(path, format!("cannot be read: {error}"));
    let file = file::open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    let (gzip, reader) = unpacked(file).map_err(unreadable)?;
    let size = (!gzip).then_some(length);
    let mut file = IdxFile { path, reader, gzip, size, position: 0, count: 0, each: 1 };
    let found = file.number()?;
    let what = if magic == IMAGES_MAGIC { "images" } else { "labels" };
    if found != magic {
        return Err(file.error(format!(
            "begins with {found:#010x}, but an IDX file of {what} begins with {magic:#010x}"
        )));
    }
    file.count = file.number()?;
    if magic == IMAGES_MAGIC {
        let [rows, columns] = [file.number()?, file.number()?];
        if [rows, columns] != [SIDE as u32; 2] {
            let found = format!("holds images of {rows}x{columns} pixels");
            return Err(file.error(format!("{found}, the model takes 28x28")));
        }
        file.each = PIXELS as u64;
    }
    if file.count > MOST {
        let text = format!("has a header that counts {} {what}", file.count);
        return Err(file.error(format!("{text}; from 1 to {MOST} can be read")));
    }
    Ok(file)
}

impl IdxFile<'_> {
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

    /// Reads what follows the header: the pixels, image by image, row by row, or the labels. The
    /// file must end there.
    pub fn read(mut self) -> Result<Vec<u8>, Error> {
        let length = u64::from(self.count) * self.each;
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
        Error::in_file(self.path, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn read_images(path: &Path) -> Result<Vec<u8>, Error> {
        open(path, IMAGES_MAGIC)?.read()
    }

    fn read_labels(path: &Path) -> Result<Vec<u8>, Error> {
        open(path, LABELS_MAGIC)?.read()
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
        let error =
            read_images(Path::new("/no/such/train-images-idx3-ubyte")).unwrap_err().to_string();
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
}
