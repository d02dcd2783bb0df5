//! A partially fetched file, `NAME.gz.part`, and a note of its origin, `NAME.gz.part.from`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use super::content::Content;
use super::download::Fault;
use mpienv_sharding::file::atomic_write;

/// The bytes of a file fetched so far.
#[derive(Debug)]
pub struct Part {
    file: File,
    path: PathBuf,
    size: u64,
    url: String,
    /// The server's ETag for these bytes, if it sent one.
    etag: Option<String>,
}

impl Part {
    /// Opens the partial file for `path`, and empties it if it came from another URL.
    pub fn open(path: &Path, url: &str) -> io::Result<Part> {
        let path = atomic_write::sibling(path, ".part");
        atomic_write::place_of(&path)?;
        atomic_write::place_of(&origin(&path))?;
        let file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path)?;
        let origin = fs::read_to_string(origin(&path)).unwrap_or_default();
        let mut lines = origin.lines();
        let same = lines.next() == Some(url);
        let etag = lines.next().map(str::to_owned).filter(|_| same);
        let mut part = Part { file, path, size: 0, url: url.to_owned(), etag };
        if same {
            part.size = part.file.seek(io::SeekFrom::End(0))?;
        } else {
            part.clear()?;
        }
        Ok(part)
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn etag(&self) -> Option<&str> {
        self.etag.as_deref()
    }

    pub fn clear(&mut self) -> io::Result<()> {
        self.begin(None)
    }

    /// Removes all bytes. The bytes that follow belong to the version `etag`.
    pub fn begin(&mut self, etag: Option<&str>) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.size = 0;
        self.etag = etag.map(str::to_owned);
        fs::write(origin(&self.path), format!("{}\n{}", self.url, etag.unwrap_or_default()))
    }

    pub fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Checks the content. If it is right, renames the file and returns its size. If not, returns
    /// the SHA-256.
    pub fn finish(&mut self, content: &Content, path: &Path) -> Result<Result<u64, String>, Fault> {
        let mut named = || -> io::Result<Result<u64, String>> {
            self.file.rewind()?;
            if let Err(found) = content.check(&self.file)? {
                return Ok(Err(found));
            }
            self.file.sync_all()?;
            fs::rename(&self.path, path)?;
            atomic_write::flush_name(path)?;
            // The file is complete, so a leftover note of its origin does no harm.
            let _ = fs::remove_file(origin(&self.path));
            Ok(Ok(self.size))
        };
        named().map_err(Fault::Disk)
    }
}

fn origin(path: &Path) -> PathBuf {
    atomic_write::sibling(path, ".from")
}
