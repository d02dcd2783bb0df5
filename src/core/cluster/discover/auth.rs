//! How the ranks recognize each other: the job's token, a file that holds it, and MUNGE.

use std::fs;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt as _;

use crate::cluster::context::Context;
use crate::cluster::master::Scope;
use crate::cluster::overrides::{self, TOKEN_FILE};
use crate::environment::{Environment, ReadError};
use crate::error::{Error, Reason};
use crate::finding::Finding;
use crate::launcher::placement::Placement;
use crate::value::token::{Munge, Token};

/// Returns how to reach MUNGE, if the ranks authenticate with it.
pub(super) fn munge(environment: &Environment) -> Result<Option<Munge>, Error> {
    of_security(environment, overrides::AUTH, "set it to munge on all ranks")?;
    Ok(environment.setting(overrides::AUTH)?.map(|munge| munge.value))
}

/// Returns a setting that protects the meeting. One that is set and blank is an error, because the
/// user who set it believes that the meeting is protected.
fn of_security<'a>(
    environment: &'a Environment,
    name: &'static str,
    remedy: &'static str,
) -> Result<Option<&'a str>, Error> {
    let refuse = |reason| Error::new(reason, format!("{remedy}, or unset {name}")).of(name);
    match environment.get_str(name) {
        // No part of a secret belongs into an error.
        Err(ReadError::NotUnicode { .. }) if name == overrides::TOKEN => {
            Err(refuse(Reason::NotUnicode))
        }
        Err(error) => Err(Error::reading_setting(error)),
        Ok(text) => match text.filter(|text| !text.trim().is_empty()) {
            None if environment.get(name).is_some() => Err(refuse(Reason::BlankSecurity)),
            text => Ok(text),
        },
    }
}

/// Returns the job's token, and whether other jobs may have it too.
pub(super) fn token(
    environment: &Environment,
    placement: &Placement,
    context: Option<&Context>,
) -> Result<(Token, Scope), Error> {
    let hint = "set it to what `openssl rand -hex 32` prints, on all ranks";
    let token = of_security(environment, overrides::TOKEN, hint)?;
    let hint = "name the file that holds the secret";
    let file = of_security(environment, overrides::TOKEN_FILE, hint)?;
    match (token, file) {
        (Some(_), Some(path)) => {
            let reason = Reason::TokenFile(format!("{} is set too", overrides::TOKEN));
            let error = Error::new(reason, "unset one of them");
            return Err(error.of(overrides::TOKEN_FILE).found(path));
        }
        (Some(text), None) => return Ok((Token::new(text), Scope::User)),
        (None, Some(path)) => return Ok((read_token(path)?, Scope::User)),
        (None, None) => {}
    }
    let of_context = context.and_then(|context| context.token.clone()).map(Token::new);
    let of_job = || placement.job.as_ref().map(|job| Token::of_job(&job.value));
    Ok((of_context.or_else(of_job).unwrap_or_default(), Scope::Job))
}

/// The shortest secret that other programs are unlikely to find by trying, in bytes.
const SHORTEST: usize = 16;

/// Reports a user's secret that is easy to guess.
pub(super) fn short(token: &Token, scope: Scope) -> Option<Finding> {
    let length = token.as_bytes().len();
    if scope != Scope::User || length >= SHORTEST {
        return None;
    }
    let variable = if token.file().is_some() { TOKEN_FILE } else { overrides::TOKEN };
    Some(Finding::warning(
        "secret-short",
        format!("the secret of {variable} has {length} bytes, fewer than {SHORTEST}"),
        "an attacker who can reach the ranks' port may guess it, and take part in the job",
        "use a secret that `openssl rand -hex 32` prints, the same on all ranks",
    ))
}

/// The longest secret that a rendezvous accepts, in bytes.
const LONGEST: usize = 255;

/// Reads the secret from the file at `path`, without surrounding white space.
fn read_token(path: &str) -> Result<Token, Error> {
    let refuse = |reason: String, remedy: String| {
        Error::new(Reason::TokenFile(reason), remedy).of(TOKEN_FILE).found(path)
    };
    let unreadable = |error: std::io::Error| {
        let remedy = match path.strip_prefix("~/") {
            Some(rest) => {
                format!("`~` in quotes is not expanded: set it to \"$HOME/{rest}\", or unset")
            }
            None => "write the secret there on every host, readable by this user, and mount it in \
                     containers; or unset"
                .into(),
        };
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
    let owner = metadata.uid();
    if let Some(own) = user().filter(|&own| owner != own && owner != 0) {
        let reason = format!(
            "user {owner}, who owns the file, knows and can change the secret, and this process runs as user {own}"
        );
        return Err(refuse(reason, format!("{NEW_SECRET}; or run as user {owner}")));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o066 != 0 {
        let reason = format!("group or others can read or write the file (mode {mode:04o})");
        let remedy = format!(
            "if it holds only your secret, run `chmod 600 {path}`, and replace the secret if others \
             may have read it; if not, name another file"
        );
        return Err(refuse(reason, remedy));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST as u64 + 2).read_to_end(&mut bytes).map_err(unreadable)?;
    let useless = |reason: String| refuse(reason, NEW_SECRET.to_owned());
    let text = String::from_utf8(bytes).map_err(|_| useless("not UTF-8".into()))?;
    match text.trim() {
        "" => Err(useless("the file is empty".into())),
        text if text.len() <= LONGEST => Ok(Token::from_file(text, path)),
        _ => Err(useless(format!("the secret is longer than {LONGEST} bytes"))),
    }
}

/// The remedy for a file that does not hold a secret of this user. It may be another file that must
/// stay as it is.
const NEW_SECRET: &str = "write a new secret with `(umask 077 && openssl rand -hex 32 > ~/.mpienv-secret)`, copy \
                          this file to every host, and name it in MPIENV_TOKEN_FILE";

/// Returns the effective user of this process. `None` without Linux's /proc.
fn user() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}
