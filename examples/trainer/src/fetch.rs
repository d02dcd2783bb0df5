//! `mnist fetch` downloads the four files of MNIST from the first mirror that has the right ones.

mod download;

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ring::digest::{Context, SHA256};

use crate::data::idx;
use download::{Client, Fault, Part};
use mpienv_sharding::error::Error;
use mpienv_sharding::file::folder::FolderLock;
use mpienv_sharding::file::{self, naming};

/// The mirrors of PyTorch and the CVD Foundation, in the order in which they are tried.
pub const MIRRORS: [&str; 2] = [
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
];

/// The maximum number of transfers of a file from the same mirror, including the first one.
const ATTEMPTS: u32 = 4;

/// What to fetch and from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The files, such as [`FILES`].
    pub files: Vec<Content>,
    /// The folder for the files, created if it is missing.
    pub folder: PathBuf,
    /// The URLs of folders that hold the gzipped files.
    pub mirrors: Vec<String>,
    /// How long to wait for a silent mirror.
    pub timeout: Duration,
}

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
        let (packed, mut unpacked) = idx::unpacked(file)?;
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
        let found = file::hex(hash.finish().as_ref());
        Ok(if found == self.sha256 { Ok(()) } else { Err(found) })
    }
}

impl Fetch {
    /// Fetches the missing files. Prints a line for each file to `out` and failed attempts to
    /// `remarks`.
    pub fn run(&self, mut out: impl Write, mut remarks: impl Write) -> Result<(), Error> {
        let mut remark = |text: &str| {
            let _ = writeln!(remarks, "mnist: {text}");
        };
        // Two processes must not write the same files at the same time.
        let _lock = FolderLock::take(&self.folder, "folder", disk_error, &mut remark)?;
        let client = Client::new(self.timeout);
        for file in &self.files {
            let line = match self.existing(file)? {
                Some(path) => format!("{} already exists, SHA-256 verified", path.display()),
                None => self.fetch(&client, file, &mut remarks)?,
            };
            // If a line cannot be written, the download continues.
            let _ = writeln!(out, "{line}");
        }
        let _ = writeln!(out, "MNIST is complete: mnist --data {}", self.folder.display());
        Ok(())
    }

    /// Verifies an existing file, gzipped or plain. If there are both, checks the plain one, which
    /// training would read.
    fn existing(&self, file: &Content) -> Result<Option<PathBuf>, Error> {
        let paths =
            [file.name.to_owned(), format!("{}.gz", file.name)].map(|name| self.folder.join(name));
        let Some(path) = paths.into_iter().find(|path| path.exists()) else { return Ok(None) };
        file::place_of(&path).map_err(|error| {
            Error::input(format!("{error}; move it away, or name another folder"))
        })?;
        match file::open(&path).and_then(|opened| file.check(opened)) {
            Err(error) => Err(disk_error(naming(&path)(error))),
            Ok(Err(found)) => Err(Error::input(format!(
                "{} already exists but is not MNIST's: the SHA-256 of its content is {found}; move \
                 it away, or name another folder",
                path.display()
            ))),
            Ok(Ok(())) => Ok(Some(path)),
        }
    }

    /// Fetches one file. Returns the line to print.
    fn fetch(
        &self,
        client: &Client,
        file: &Content,
        remarks: &mut impl Write,
    ) -> Result<String, Error> {
        let path = self.folder.join(format!("{}.gz", file.name));
        let mut faults = Vec::new();
        for mirror in &self.mirrors {
            let url = format!("{}/{}.gz", mirror.trim_end_matches('/'), file.name);
            match self.fetch_from(client, &url, file, &path, remarks) {
                Ok(bytes) => {
                    let path = path.display();
                    return Ok(format!("{path}: {bytes} bytes from {url}, SHA-256 verified"));
                }
                Err(Fault::Disk(error)) => return Err(disk_error(naming(&path)(error))),
                Err(fault) => {
                    let _ = writeln!(remarks, "mnist: {url}: {fault}");
                    faults.push(format!("{url}: {fault}"));
                }
            }
        }
        let faults =
            if faults.is_empty() { "there is no mirror".to_owned() } else { faults.join("; ") };
        Err(Error::input(format!(
            "{}.gz could not be fetched: {faults}; try another mirror with --mirror URL, or put the \
             files into the folder by hand",
            file.name
        )))
    }

    /// Fetches one file from one mirror, resuming interrupted transfers. Returns its size.
    fn fetch_from(
        &self,
        client: &Client,
        url: &str,
        file: &Content,
        path: &Path,
        remarks: &mut impl Write,
    ) -> Result<u64, Fault> {
        let mut part = Part::open(path, url).map_err(Fault::Disk)?;
        let bar = bar(file.name);
        let mut attempts = 0;
        loop {
            let resumed = part.size > 0;
            let before = part.size;
            attempts += 1;
            let fault = match client.transfer(url, &mut part, &bar) {
                Ok(()) => match part.finish(file, path)? {
                    Ok(bytes) => return Ok(bytes),
                    Err(found) => Fault::Content { found, expected: file.sha256 },
                },
                Err(fault) => fault,
            };
            // A file assembled from several transfers may be wrong even if the mirror's file is
            // right.
            let again = match &fault {
                // Nothing of the part is from this mirror.
                Fault::Range(_) if !resumed => false,
                Fault::Content { .. } | Fault::Range(_) => {
                    part.clear().map_err(Fault::Disk)?;
                    resumed
                }
                Fault::BrokenOff(_) => part.size > before,
                _ => false,
            };
            if !again || attempts == ATTEMPTS {
                return Err(fault);
            }
            let at = part.size;
            bar.suspend(|| {
                let _ = writeln!(remarks, "mnist: {url}: {fault}; resuming at byte {at}");
            });
        }
    }
}

/// Creates a progress bar on stderr. It is visible only if stderr is a terminal.
fn bar(name: &str) -> ProgressBar {
    let bar = ProgressBar::no_length().with_message(name.to_owned());
    match ProgressStyle::with_template("{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}")
    {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// The error of a file that cannot be read or written.
fn disk_error(error: impl Display) -> Error {
    Error::input(format!("{error}; name a folder that can be written"))
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
