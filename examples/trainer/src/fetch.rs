//! `mnist fetch` downloads the four files of MNIST from the first mirror that has the right ones.

pub mod content;
mod download;
mod part;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use content::Content;
use download::{Client, Fault};
use part::Part;

use mpienv_sharding::error::Error;
use mpienv_sharding::file::atomic_write::{self, naming};
use mpienv_sharding::file::folder::FolderLock;
use mpienv_sharding::file::regular_file;

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
    /// The files, such as [`content::FILES`].
    pub files: Vec<Content>,
    /// The folder for the files, created if it is missing.
    pub folder: PathBuf,
    /// The URLs of folders that hold the gzipped files.
    pub mirrors: Vec<String>,
    /// How long to wait for a silent mirror.
    pub timeout: Duration,
}

impl Fetch {
    /// Fetches the missing files. Prints a line for each file to `out` and failed attempts to
    /// `remarks`.
    pub fn run(&self, mut out: impl Write, mut remarks: impl Write) -> Result<(), Error> {
        let mut remark = |text: &str| {
            let _ = writeln!(remarks, "mnist: {text}");
        };
        // Two processes must not write the same files at the same time.
        let _lock = FolderLock::take(&self.folder, "folder", &mut remark).map_err(|error| {
            match error.kind() {
                io::ErrorKind::ResourceBusy => Error::input(error),
                _ => of_disk(&error),
            }
        })?;
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
        atomic_write::place_of(&path).map_err(|error| {
            Error::input(format!("{error}; move it away, or name another folder"))
        })?;
        match regular_file::open(&path).and_then(|opened| file.check(opened)) {
            Err(error) => Err(of_disk(&naming(&path)(error))),
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
                    return Ok(format!(
                        "{}: {bytes} bytes from {url}, SHA-256 verified",
                        path.display()
                    ));
                }
                Err(Fault::Disk(error)) => return Err(of_disk(&naming(&path)(error))),
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
            // A file assembled from several transfers may be wrong even if the mirror's file is
            // right.
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
fn of_disk(error: &io::Error) -> Error {
    Error::input(format!("{error}; name a folder that can be written"))
}
