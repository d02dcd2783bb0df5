//! The content of the four files, identified by SHA-256.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ring::digest::{Context, SHA256};

use mpienv_sharding::file::digest::hex;

/// One of MNIST's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// The name without `.gz`.
    pub name: &'static str,
    /// The decompressed size in bytes.
    pub size: u64,
    /// The SHA-256 of the decompressed bytes, because mirrors compress differently.
    pub sha256: &'static str,
}

/// The files of MNIST.
pub const FILES: [Content; 4] = [
    Content {
        name: "train-images-idx3-ubyte",
        size: 47_040_016,
        sha256: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    },
    Content {
        name: "train-labels-idx1-ubyte",
        size: 60_008,
        sha256: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    },
    Content {
        name: "t10k-images-idx3-ubyte",
        size: 7_840_016,
        sha256: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    },
    Content {
        name: "t10k-labels-idx1-ubyte",
        size: 10_008,
        sha256: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
];

impl Content {
    /// Checks that a file, gzipped or plain, has this content. If not, returns the SHA-256 of what
    /// was read, or why there is none.
    pub fn check(&self, file: impl Read) -> io::Result<Result<(), String>> {
        let mut bytes = BufReader::with_capacity(1 << 16, file);
        let packed = bytes.fill_buf()?.starts_with(&[0x1f, 0x8b]);
        let mut unpacked: Box<dyn Read> =
            if packed { Box::new(MultiGzDecoder::new(bytes)) } else { Box::new(bytes) };
        // One byte more than expected is enough to detect a file that is too long.
        let mut unpacked = unpacked.by_ref().take(self.size + 1);
        let mut hash = Context::new(&SHA256);
        let mut buffer = vec![0; 1 << 16];
        loop {
            match unpacked.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => hash.update(&buffer[..count]),
                Err(error) if packed => return Ok(Err(format!("none (gzip: {error})"))),
                Err(error) => return Err(error),
            }
        }
        if unpacked.limit() == 0 {
            return Ok(Err(format!("none (more than {} bytes)", self.size)));
        }
        let found = hex(hash.finish().as_ref());
        Ok(if found == self.sha256 { Ok(()) } else { Err(found) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    const ABC: Content = Content {
        name: "abc",
        size: 3,
        sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    };

    #[test]
    fn content_is_known_packed_and_plain_and_anything_else_is_not() {
        let packed = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            io::Write::write_all(&mut encoder, bytes).unwrap();
            encoder.finish().unwrap()
        };
        assert_eq!(ABC.check(&b"abc"[..]).unwrap(), Ok(()));
        assert_eq!(ABC.check(&packed(b"abc")[..]).unwrap(), Ok(()));
        assert_eq!(
            ABC.check(&b""[..]).unwrap().unwrap_err(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        for long in [b"abcd".to_vec(), packed(&[b'a'; 100_000])] {
            assert_eq!(ABC.check(&long[..]).unwrap().unwrap_err(), "none (more than 3 bytes)");
        }
        let cut = packed(b"abc");
        let found = ABC.check(&cut[..cut.len() - 6]).unwrap().unwrap_err();
        assert!(found.starts_with("none (gzip: "), "{found}");
    }
}
