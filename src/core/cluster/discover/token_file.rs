//! Reads the secret from a file, which `ps` and `/proc` do not show.

use std::fs::{self, File, Metadata};
use std::io::Read;

use crate::cluster::overrides::TOKEN_FILE;
use crate::error::{Error, Reason};
use crate::value::token::Token;

/// The longest secret that a rendezvous accepts, in bytes.
const LONGEST: usize = 255;

/// Reads the secret from the file at `path`, without surrounding white space.
pub(super) fn read(path: &str) -> Result<Token, Error> {
    let refuse = |reason: String, remedy: String| {
        Error::new(Reason::TokenFile(reason), remedy).of(TOKEN_FILE).found(path)
    };
    let unreadable = |error: std::io::Error| {
        let remedy = "write the secret there on every host, readable by this user, or unset";
        refuse(format!("the file cannot be read: {error}"), format!("{remedy} {TOKEN_FILE}"))
    };
    // Opening a named pipe would block until it has a writer.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        let remedy = format!("name a file that holds the secret in {TOKEN_FILE}");
        return Err(refuse("not a regular file".into(), remedy));
    }
    let file = File::open(path).map_err(unreadable)?;
    // Checks the file that is open, because the path may name another file by now.
    let metadata = file.metadata().map_err(unreadable)?;
    if let Some((owner, own)) = other_owner(&metadata) {
        let reason = format!(
            "user {owner}, who owns the file, knows and can change the secret, and this process runs as user {own}"
        );
        let remedy = format!("run `chown {own} {path}` and replace the secret");
        return Err(refuse(reason, format!("{remedy}, or run as user {owner}")));
    }
    if let Some(mode) = shared_mode(&metadata) {
        let reason = format!("group or others can read or write the file (mode {mode:04o})");
        let remedy = format!("run `chmod 600 {path}`, and replace the secret");
        return Err(refuse(reason, format!("{remedy} if others may have read it")));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST as u64 + 2).read_to_end(&mut bytes).map_err(unreadable)?;
    let useless = |reason: String| refuse(reason, new_secret(path));
    let text = String::from_utf8(bytes).map_err(|_| useless("not UTF-8".into()))?;
    match text.trim() {
        "" => Err(useless("the file is empty".into())),
        text if text.len() <= LONGEST => Ok(Token::from_file(text, path)),
        _ => Err(useless(format!("the secret is longer than {LONGEST} bytes"))),
    }
}

fn new_secret(path: &str) -> String {
    format!("write a new secret with `openssl rand -hex 32 > {path}`, and copy it to every host")
}

/// Returns the file's owner and the user of this process, if the owner is neither this user nor
/// root.
fn other_owner(metadata: &Metadata) -> Option<(u32, u32)> {
    let (owner, own) = owner_and_mode(metadata).map(|(owner, _)| owner).zip(user())?;
    (owner != own && owner != 0).then_some((owner, own))
}

/// Returns the file's permissions if they let anyone but the owner read or change it.
fn shared_mode(metadata: &Metadata) -> Option<u32> {
    owner_and_mode(metadata).map(|(_, mode)| mode).filter(|mode| mode & 0o066 != 0)
}

/// Returns the effective user of this process. `None` without Linux's /proc.
fn user() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn owner_and_mode(metadata: &Metadata) -> Option<(u32, u32)> {
    use std::os::unix::fs::MetadataExt as _;
    Some((metadata.uid(), metadata.mode() & 0o7777))
}
