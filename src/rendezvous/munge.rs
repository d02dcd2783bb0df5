//! Gives all ranks of one user a key: rank 0 puts it into a MUNGE credential that only this user's
//! processes can decode.
//!
//! The credential is encrypted with the key of the cluster's munged. It may be decoded many times,
//! because both ends prove with fresh nonces that they have its key.

use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::auth::{Bytes32, LENGTH, nonce};
use mpienv_ask::seam::{Helper, Printed};
use mpienv_core::{Munge, printable};

/// The longest credential that a rank decodes, in bytes.
pub(super) const LONGEST_CREDENTIAL: usize = 4096;
/// The text before the key, so that no credential that this user made for another purpose is taken
/// for one of a meeting.
const PURPOSE: &str = "mpienv meeting key ";
/// Exit codes of `unmunge` for a credential that is valid, has expired, was made later than now, or
/// was decoded before.
const VALID: i32 = 0;
const EXPIRED: i32 = 15;
const REWOUND: i32 = 16;
const REPLAYED: i32 = 17;
/// How long munged may take to answer whether it is there.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What to do where MUNGE does not work.
pub const REMEDY: &str = "install MUNGE here and start munged, check both with `munge -n | unmunge`, name munged's socket with \
     MPIENV_AUTH=munge:SOCKET, or unset MPIENV_AUTH on all ranks and set MPIENV_TOKEN_FILE";

/// Why a credential cannot be decoded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// MUNGE is missing on this host.
    Missing(String),
    /// The credential is not one that this user's process made for a meeting, or munged did not
    /// answer.
    Refused(String),
    /// `unmunge` was still running at the deadline.
    TimedOut,
}

/// Why this process does not authenticate with MUNGE.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoMunge {
    /// No one has asked for it.
    #[error("this rank does not use MUNGE")]
    NotAsked,
    /// It was asked for where it works, and does not work on this host.
    #[error("MUNGE does not work on this host: {0}")]
    Unanswered(String),
}

/// Whether MUNGE works on this host, once it has been asked.
type Settled = Arc<OnceLock<Result<(), NoMunge>>>;

/// What a program has asked for, and, once a meeting begins, what that means on this host. Clones
/// share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted(Option<(Munge, Settled)>);

impl Wanted {
    pub(super) fn by(munge: Munge) -> Wanted {
        Wanted(Some((munge, Arc::default())))
    }

    /// Returns how to reach MUNGE if this process uses it. [`Munge::is_auto`] asks munged, once.
    pub(super) fn settled(&self, within: Duration) -> Result<&Munge, &NoMunge> {
        let Some((munge, settled)) = &self.0 else { return Err(&NoMunge::NotAsked) };
        let ask = || match munge.is_auto() {
            true => answers(munge, within).map_err(NoMunge::Unanswered),
            false => Ok(()),
        };
        settled.get_or_init(ask).as_ref().map(|()| munge)
    }
}

/// Asks munged on this host for a credential, and returns why it gives none.
pub(super) fn answers(munge: &Munge, within: Duration) -> Result<(), String> {
    let deadline = Instant::now() + within.min(PATIENCE);
    encode(munge, &["--no-input"], &[], deadline).map(|_| ())
}

/// Returns the credential that holds this input.
fn encode(
    munge: &Munge,
    words: &[&str],
    input: &[u8],
    deadline: Instant,
) -> Result<Vec<u8>, String> {
    let output = run(munge, "munge", words, input, deadline)?;
    match output.status {
        Some(status) if status.success() => Ok(output.stdout.trim_ascii().to_vec()),
        _ => Err(complaint("munge", &output)),
    }
}

/// Returns a new key and a credential that holds it. The deadline applies to each program that it
/// runs.
pub(super) fn seal(munge: &Munge, deadline: Instant) -> Result<(Bytes32, Vec<u8>), String> {
    let key = nonce().map_err(|error| error.to_string())?;
    let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let only = format!("--restrict-uid={}", own_uid());
    // The longest lifetime that munged permits.
    let words = ["--cipher=aes256", "--mac=sha256", "--ttl=-1", &only];
    let credential = encode(munge, &words, format!("{PURPOSE}{digits}").as_bytes(), deadline)?;
    // In a user namespace, munged may see this process as a user who is not the one with this
    // number in here.
    match open(munge, &credential, deadline) {
        Ok(opened) if opened == key => Ok((key, credential)),
        Ok(_) => Err("unmunge does not return what munge was given".to_owned()),
        Err(Unreadable::Missing(reason)) => Err(reason),
        Err(Unreadable::Refused(reason)) => Err(format!(
            "this process cannot decode its own credential, as in a container whose users differ: {reason}"
        )),
        Err(Unreadable::TimedOut) => Err(unfinished("unmunge")),
    }
}

/// Returns the key in a credential.
pub(super) fn open(
    munge: &Munge,
    credential: &[u8],
    deadline: Instant,
) -> Result<Bytes32, Unreadable> {
    // munged gets nothing else from a stranger.
    if credential.len() > LONGEST_CREDENTIAL || !is_credential(credential) {
        return Err(Unreadable::Refused("it is not a MUNGE credential".to_owned()));
    }
    let words = ["--numeric", "--keys=UID,UID_RESTRICTION"];
    let output =
        run(munge, "unmunge", &words, credential, deadline).map_err(Unreadable::Missing)?;
    match output.status.map(|status| status.code()) {
        Some(Some(VALID | REPLAYED)) => {
            key_in(&String::from_utf8_lossy(&output.stdout), own_uid()).map_err(Unreadable::Refused)
        }
        Some(Some(EXPIRED)) => {
            Err(Unreadable::Refused("it has expired, or the clocks of the hosts differ".to_owned()))
        }
        Some(Some(REWOUND)) => {
            Err(Unreadable::Refused("the clocks of the hosts differ".to_owned()))
        }
        None => Err(Unreadable::TimedOut),
        // munged may be busy, so it is too early to tell.
        _ => Err(Unreadable::Refused(complaint("unmunge", &output))),
    }
}

/// Returns whether these bytes have the form of a credential.
fn is_credential(bytes: &[u8]) -> bool {
    let digits = bytes.strip_prefix(b"MUNGE:").and_then(|rest| rest.strip_suffix(b":"));
    digits.is_some_and(|digits| {
        !digits.is_empty()
            && digits.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(byte))
    })
}

/// Returns the key in what `unmunge` prints: metadata, an empty line and the payload.
fn key_in(printed: &str, own: u32) -> Result<Bytes32, String> {
    let (metadata, payload) = printed.split_once("\n\n").unwrap_or((printed, ""));
    let uid = |key: &str| {
        let value = metadata.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        value.trim().parse::<u32>().ok()
    };
    match uid("UID") {
        Some(uid) if uid == own => {}
        Some(uid) => return Err(format!("user {uid} made it, and this rank runs as user {own}")),
        None => return Err("unmunge does not print who made it".to_owned()),
    }
    // Anyone could have decoded a credential without this restriction.
    if uid("UID_RESTRICTION") != Some(own) {
        return Err("other users can decode it too".to_owned());
    }
    payload
        .strip_prefix(PURPOSE)
        .and_then(key_of)
        .ok_or_else(|| "it was made for another purpose".to_owned())
}

/// Parses a key from hexadecimal digits.
fn key_of(digits: &str) -> Option<Bytes32> {
    let mut key = [0; LENGTH];
    if digits.len() != 2 * LENGTH || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(key)
}

/// Runs a program of MUNGE with this input, and kills it at the deadline.
fn run(
    munge: &Munge,
    program: &str,
    words: &[&str],
    input: &[u8],
    deadline: Instant,
) -> Result<Printed, String> {
    let mut command = Command::new(program);
    command.args(words).args(munge.socket().map(|socket| format!("--socket={socket}")));
    let started = Helper::start(&mut command, input);
    Ok(started.map_err(|error| format!("{program} cannot run ({error})"))?.finish(deadline))
}

/// Returns the last line that a program printed on stderr, or how it exited.
fn complaint(program: &str, output: &Printed) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    match said.trim_end().lines().last() {
        Some(line) => printable(line.as_bytes()),
        None => output
            .status
            .map_or_else(|| unfinished(program), |status| format!("{program}: {status}")),
    }
}

pub(super) fn unfinished(program: &str) -> String {
    format!("{program} did not finish in time")
}

/// The user whose processes may decode a credential.
fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_the_form_of_a_credential_reaches_munged() {
        assert!(is_credential(b"MUNGE:AwQFAACg8J7U+/4=:"));
        for bad in [
            &b""[..],
            b"MUNGE:",
            b"MUNGE::",
            b"MUNGE:Aw",
            b"Aw:",
            b"MUNGE:A\0w:",
            b"MUNGE:A w:",
            b"MUNGE:\xff:",
        ] {
            assert!(!is_credential(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_key_comes_only_from_a_credential_of_this_user_for_this_user_and_this_purpose() {
        let digits = "0f".repeat(LENGTH);
        let printed = |uid: &str, restriction: &str, payload: &str| {
            key_in(&format!("UID:             {uid}\n{restriction}\n{payload}"), 1000)
        };
        let restricted = "UID_RESTRICTION: 1000\n";
        let payload = format!("{PURPOSE}{digits}");
        assert_eq!(printed("1000", restricted, &payload), Ok([0x0f; LENGTH]));
        let error =
            |uid, restriction, payload: &str| printed(uid, restriction, payload).unwrap_err();
        assert_eq!(
            error("0", restricted, &payload),
            "user 0 made it, and this rank runs as user 1000"
        );
        assert_eq!(error("x", restricted, &payload), "unmunge does not print who made it");
        assert_eq!(error("1000", "", &payload), "other users can decode it too");
        assert_eq!(
            error("1000", "UID_RESTRICTION: 0\n", &payload),
            "other users can decode it too"
        );
        for bad in [
            "",
            "hello",
            &payload[1..],
            &payload[..payload.len() - 1],
            &format!("{payload}\n"),
            &digits,
        ] {
            assert_eq!(
                error("1000", restricted, bad),
                "it was made for another purpose",
                "{bad:?}"
            );
        }
        let not_digits = format!("{PURPOSE}{}", "+f".repeat(LENGTH));
        assert_eq!(error("1000", restricted, &not_digits), "it was made for another purpose");
    }
}
