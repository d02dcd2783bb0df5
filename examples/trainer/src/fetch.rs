//! `mnist fetch`: downloads the four files of MNIST from the first mirror that has them right.

pub mod content;
mod download;
mod part;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use content::Content;
use download::{Client, Fault};
use part::Part;

use crate::atomic_write::{self, naming};
use crate::folder_lock::{FolderLock, LockError};

/// Where the files are, in the order in which they are tried: the mirrors of PyTorch and of the CVD Foundation.
pub const MIRRORS: [&str; 2] =
    ["https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"];

/// How often a mirror is asked to go on after a transfer that broke off.
const ATTEMPTS: u32 = 4;

/// What to fetch, and from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The files: MNIST's are [`content::FILES`].
    pub files: Vec<Content>,
    /// The folder for the files; made when it is not there.
    pub folder: PathBuf,
    /// Where the files are looked for: addresses that a file's name is put after.
    pub mirrors: Vec<String>,
    /// How long a mirror may be silent.
    pub timeout: Duration,
}

impl Fetch {
    /// Fetches the files that are not there yet; says on `out` what it does, on `remarks` what went wrong on the way.
    pub fn run(&self, mut out: impl Write, mut remarks: impl Write) -> Result<(), FetchError> {
        let mut remark = |text: &str| {
            let _ = writeln!(remarks, "mnist: {text}");
        };
        // Two that fetch into one folder would write the same files at the same time.
        let _lock = FolderLock::take(&self.folder, &mut remark).map_err(|error| match error {
            LockError::System(error) => FetchError::Disk(error),
            taken @ LockError::Taken { .. } => FetchError::Taken(taken),
        })?;
        let client = Client::new(self.timeout);
        for file in &self.files {
            let said = match self.existing(file)? {
                Some(path) => format!("{} already exists, SHA-256 verified", path.display()),
                None => self.fetch(&client, file, &mut remarks)?,
            };
            // A line that cannot be written must not stop the download.
            let _ = writeln!(out, "{said}");
        }
        let _ = writeln!(out, "MNIST is complete: mnist --data {}", self.folder.display());
        Ok(())
    }

    /// The file, when it is there, packed or not; the plain one is the one that would be read.
    fn existing(&self, file: &Content) -> Result<Option<PathBuf>, FetchError> {
        let paths = [file.name.to_owned(), format!("{}.gz", file.name)].map(|name| self.folder.join(name));
        let Some(path) = paths.into_iter().find(|path| path.exists()) else { return Ok(None) };
        // A pipe, say, would be waited for.
        atomic_write::place_of(&path).map_err(FetchError::Other)?;
        match File::open(&path).and_then(|opened| file.check(opened)) {
            Err(error) => Err(FetchError::Disk(naming(&path)(error))),
            Ok(Err(found)) => Err(FetchError::Content { path, found }),
            Ok(Ok(())) => Ok(Some(path)),
        }
    }

    /// Fetches one file; says what it did.
    fn fetch(&self, client: &Client, file: &Content, remarks: &mut impl Write) -> Result<String, FetchError> {
        let path = self.folder.join(format!("{}.gz", file.name));
        let mut faults = Vec::new();
        for mirror in &self.mirrors {
            let url = format!("{}/{}.gz", mirror.trim_end_matches('/'), file.name);
            match self.fetch_from(client, &url, file, &path, remarks) {
                Ok(bytes) => {
                    return Ok(format!("{}: {bytes} bytes from {url}, SHA-256 verified", path.display()));
                }
                Err(Fault::Disk(error)) => return Err(FetchError::Disk(naming(&path)(error))),
                Err(fault) => {
                    let _ = writeln!(remarks, "mnist: {url}: {fault}");
                    faults.push(format!("{url}: {fault}"));
                }
            }
        }
        let faults = if faults.is_empty() { "there is no mirror".to_owned() } else { faults.join("; ") };
        Err(FetchError::NoMirror { name: file.name, faults })
    }

    /// Fetches one file from one place, going on where a transfer broke off; returns its bytes.
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
            let resumed = part.size() > 0;
            let before = part.size();
            attempts += 1;
            let fault = match client.transfer(url, &mut part, &bar) {
                Ok(()) => match part.finish(file, path)? {
                    Ok(bytes) => return Ok(bytes),
                    Err(found) => Fault::Content { found, expected: file.sha256 },
                },
                Err(fault) => fault,
            };
            // What was put together from pieces may be wrong where the whole is right.
            let again = match &fault {
                Fault::Content { .. } | Fault::Range(_) => {
                    part.clear().map_err(Fault::Disk)?;
                    resumed
                }
                Fault::BrokenOff(_) => part.size() > before,
                _ => false,
            };
            if !again || attempts == ATTEMPTS {
                return Err(fault);
            }
            let at = part.size();
            bar.suspend(|| {
                let _ = writeln!(remarks, "mnist: {url}: {fault}; resuming at byte {at}");
            });
        }
    }
}

/// A bar on stderr, when that is a terminal.
fn bar(name: &str) -> ProgressBar {
    let bar = ProgressBar::no_length().with_message(name.to_owned());
    match ProgressStyle::with_template("{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Why the files are not all there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// Another run fetches into the folder.
    #[error("{0}, or name another folder")]
    Taken(LockError),
    /// Something of that name is there, and is not a regular file.
    #[error("{0}; move it away, or name another folder")]
    Other(io::Error),
    /// A file of that name is there.
    #[error(
        "{} already exists but is not MNIST's: the SHA-256 of its content is {found}; move it away, or name another folder",
        path.display()
    )]
    Content { path: PathBuf, found: String },
    /// Every mirror failed.
    #[error(
        "{name}.gz could not be fetched: {faults}; name another place with --mirror URL, or put the files into the folder by hand"
    )]
    NoMirror { name: &'static str, faults: String },
    /// A file cannot be read or written.
    #[error("{0}; name a folder that can be written")]
    Disk(io::Error),
}
