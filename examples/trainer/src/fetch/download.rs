//! Transfers a file over HTTP, from the start or from where an earlier transfer was interrupted. What
//! is there is in `NAME.gz.part`, and its origin in `NAME.gz.part.from`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::ProgressBar;
use ureq::Agent;
use ureq::http::header::{CONTENT_RANGE, ETAG, IF_RANGE, RANGE};
use ureq::http::{HeaderMap, HeaderName, StatusCode};

use super::Content;
use mpienv_sharding::file;

/// The maximum size of a file, larger than any real one, in case a server never stops sending.
const LIMIT: u64 = 64 << 20;

/// Why a transfer failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("the server answered {0}")]
    Status(StatusCode),
    #[error("the server did not resume where it was asked to ({0})")]
    Range(String),
    /// The server cannot be reached, closes the connection or stays silent.
    #[error("{0}")]
    BrokenOff(String),
    #[error("the server sent more than {LIMIT} bytes")]
    TooLong,
    #[error("the file is not MNIST's: the SHA-256 of its content is {found}, not {expected}")]
    Content { found: String, expected: &'static str },
    #[error("{0}")]
    Disk(io::Error),
}

#[derive(Debug)]
pub struct Client {
    agent: Agent,
    timeout: Duration,
}

impl Client {
    /// Creates a client that gives up on a server that is silent for `timeout`.
    pub fn new(timeout: Duration) -> Client {
        let config = Agent::config_builder()
            .timeout_connect(Some(timeout))
            .timeout_recv_response(Some(timeout))
            .timeout_per_read(Some(timeout))
            .http_status_as_error(false);
        Client { agent: config.build().into(), timeout }
    }

    /// Downloads the bytes that `part` does not have yet.
    pub fn transfer(&self, url: &str, part: &mut Part, bar: &ProgressBar) -> Result<(), Fault> {
        // A server must not redirect https to http.
        let mut request =
            self.agent.get(url).config().https_only(url.starts_with("https:")).build();
        if part.size > 0 {
            request = request.header(RANGE, format!("bytes={}-", part.size));
            if let Some(etag) = &part.etag {
                request = request.header(IF_RANGE, etag);
            }
        }
        let response = request.call().map_err(|error| self.broken_off(&error))?;
        let (head, body) = response.into_parts();
        // A weak ETag does not guarantee identical bytes.
        let etag = text(&head.headers, ETAG).filter(|etag| etag.starts_with('"'));
        match head.status {
            StatusCode::OK => part.begin(etag).map_err(Fault::Disk)?,
            StatusCode::PARTIAL_CONTENT => {
                let range = text(&head.headers, CONTENT_RANGE).unwrap_or("no Content-Range");
                if !range.starts_with(&format!("bytes {}-", part.size)) {
                    return Err(Fault::Range(range.to_owned()));
                }
                if part.size == 0 {
                    part.begin(etag).map_err(Fault::Disk)?;
                }
            }
            StatusCode::RANGE_NOT_SATISFIABLE => return Err(Fault::Range(head.status.to_string())),
            status => return Err(Fault::Status(status)),
        }
        let length = body.content_length();
        let expected = length.map(|length| part.size.saturating_add(length));
        if let Some(expected) = expected {
            bar.set_length(expected);
        }
        let mut body = body.into_reader();
        let mut buffer = vec![0; 1 << 16];
        loop {
            bar.set_position(part.size);
            let count = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) => return Err(self.broken_off(&ureq::Error::from(error))),
            };
            if part.size + count as u64 > LIMIT {
                return Err(Fault::TooLong);
            }
            part.add(&buffer[..count]).map_err(Fault::Disk)?;
        }
        match expected {
            Some(expected) if part.size < expected => Err(Fault::BrokenOff(format!(
                "the transfer ended after {} of {expected} bytes",
                part.size
            ))),
            _ => Ok(()),
        }
    }

    fn broken_off(&self, error: &ureq::Error) -> Fault {
        Fault::BrokenOff(match error {
            ureq::Error::Timeout(_) => format!("the server was silent for {:?}", self.timeout),
            error => format!("the transfer failed: {error}"),
        })
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// The bytes of a file fetched so far.
#[derive(Debug)]
pub struct Part {
    file: File,
    path: PathBuf,
    /// The number of bytes from `url`: 0 while the file still has those from another one.
    pub size: u64,
    url: String,
    /// The server's ETag for these bytes, if it sent one.
    etag: Option<String>,
}

impl Part {
    /// Opens the partial file for `path`. If it came from another URL, it stays until this one
    /// sends the file: this mirror may have nothing, and the other may be tried again.
    pub fn open(path: &Path, url: &str) -> io::Result<Part> {
        let path = file::sibling(path, ".part");
        file::place_of(&path)?;
        file::place_of(&origin(&path))?;
        let file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path)?;
        let origin = fs::read_to_string(origin(&path)).unwrap_or_default();
        let mut lines = origin.lines();
        let same = lines.next() == Some(url);
        let etag = lines.next().map(str::to_owned).filter(|_| same);
        let mut part = Part { file, path, size: 0, url: url.to_owned(), etag };
        if same {
            part.size = part.file.seek(io::SeekFrom::End(0))?;
        }
        Ok(part)
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
            file::flush_name(path)?;
            // The file is complete, so a leftover note of its origin does no harm.
            let _ = fs::remove_file(origin(&self.path));
            Ok(Ok(self.size))
        };
        named().map_err(Fault::Disk)
    }
}

fn origin(path: &Path) -> PathBuf {
    file::sibling(path, ".from")
}
