//! Transfers a file over HTTP, from the start or from where an earlier transfer was interrupted.

use std::io::{self, Read};
use std::time::Duration;

use indicatif::ProgressBar;
use ureq::Agent;
use ureq::http::header::{CONTENT_RANGE, ETAG, IF_RANGE, RANGE};
use ureq::http::{HeaderMap, HeaderName, StatusCode};

use super::part::Part;

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
        if part.size() > 0 {
            request = request.header(RANGE, format!("bytes={}-", part.size()));
            if let Some(etag) = part.etag() {
                request = request.header(IF_RANGE, etag);
            }
        }
        let response = request.call().map_err(|error| self.broken_off(&error))?;
        let (head, body) = response.into_parts();
        match head.status {
            StatusCode::OK => part.begin(strong_etag(&head.headers)).map_err(Fault::Disk)?,
            StatusCode::PARTIAL_CONTENT => {
                let range = text(&head.headers, CONTENT_RANGE).unwrap_or("no Content-Range");
                if !range.starts_with(&format!("bytes {}-", part.size())) {
                    return Err(Fault::Range(range.to_owned()));
                }
            }
            StatusCode::RANGE_NOT_SATISFIABLE => return Err(Fault::Range(head.status.to_string())),
            status => return Err(Fault::Status(status)),
        }
        let length = body.content_length();
        let expected = length.map(|length| part.size().saturating_add(length));
        if let Some(expected) = expected {
            bar.set_length(expected);
        }
        let mut body = body.into_reader();
        let mut buffer = vec![0; 1 << 16];
        loop {
            bar.set_position(part.size());
            let count = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) => return Err(self.broken_off(&ureq::Error::from(error))),
            };
            if part.size() + count as u64 > LIMIT {
                return Err(Fault::TooLong);
            }
            part.add(&buffer[..count]).map_err(Fault::Disk)?;
        }
        match expected {
            Some(expected) if part.size() < expected => Err(Fault::BrokenOff(format!(
                "the transfer ended after {} of {expected} bytes",
                part.size()
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

/// Returns the ETag if it is strong. A weak one does not guarantee identical bytes.
fn strong_etag(headers: &HeaderMap) -> Option<&str> {
    text(headers, ETAG).filter(|etag| etag.starts_with('"'))
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}
