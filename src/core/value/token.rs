//! How the ranks of a job recognize each other: a token, or MUNGE.

use std::fmt;
use std::str::FromStr;

use crate::value::job::Job;

/// A job's token. A rank that presents another token belongs to another job, and rank 0 rejects it.
///
/// It is `MPIENV_TOKEN`, or the contents of the file in `MPIENV_TOKEN_FILE`, or else the job's
/// identity from its launcher, or else empty. It is never sent: rank 0 and the other ranks prove to
/// each other that they have it. This keeps attackers out only if the token is a secret; see
/// `mpienv::guide::security`.
///
/// ```
/// use mpienv::{ClusterInfo, Token};
///
/// let info = ClusterInfo::from_vars([("MPIENV_TOKEN", "of this job")])?;
/// let token: &Token = info.token();
/// assert_eq!(token.as_bytes(), b"of this job");
/// # Ok::<(), mpienv::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Token {
    text: String,
    /// The file that holds it.
    file: Option<String>,
}

impl Token {
    #[doc(hidden)]
    pub fn new(text: impl Into<String>) -> Token {
        Token { text: text.into(), file: None }
    }

    pub(crate) fn from_file(text: &str, path: &str) -> Token {
        Token { text: text.to_owned(), file: Some(path.to_owned()) }
    }

    pub(crate) fn of_job(job: &Job) -> Token {
        Token::new(format!("{}/{}/{}", job.id, job.step, job.restarts))
    }

    /// Returns the bytes of the token, which all ranks of the job share.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }
}

/// Does not print the token, because it may be a secret and debug output goes to logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} bytes)", self.text.len())
    }
}

/// How to reach MUNGE on this host. Its text form is `munge`, or `munge:SOCKET` with the path of
/// munged's socket; `auto` and `auto:SOCKET` use MUNGE only if it answers.
///
/// Clusters run [MUNGE](https://github.com/dun/munge) for Slurm and other launchers. With
/// `MPIENV_AUTH=munge`, ranks prove with it that they run as the same user, so that a job needs no
/// secret of its own: see `mpienv::guide::security`. With `MPIENV_AUTH=auto`, they do so if munged
/// answers on their hosts.
///
/// ```
/// use mpienv::{ClusterInfo, Munge, MungeError};
///
/// let info = ClusterInfo::from_vars([("MPIENV_AUTH", "munge:/run/munge/other.socket")])?;
/// assert_eq!(info.munge().and_then(Munge::socket), Some("/run/munge/other.socket"));
/// assert_eq!("munge".parse::<Munge>()?.socket(), None);
/// assert!("auto".parse::<Munge>()?.is_auto() && !Munge::default().is_auto());
/// let error: MungeError = "munge:other.socket".parse::<Munge>().unwrap_err();
/// assert!(error.to_string().contains("the absolute path"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Munge {
    socket: Option<String>,
    is_auto: bool,
}

const MUNGE: &str = "munge";
const AUTO: &str = "auto";

impl Munge {
    /// Returns the path of munged's socket, or `None` for the one that the programs of MUNGE use by
    /// default.
    #[must_use]
    pub fn socket(&self) -> Option<&str> {
        self.socket.as_deref()
    }

    /// Returns whether a rank uses MUNGE only if munged answers on its host (`auto`).
    #[must_use]
    pub fn is_auto(&self) -> bool {
        self.is_auto
    }
}

impl FromStr for Munge {
    type Err = MungeError;

    fn from_str(text: &str) -> Result<Munge, MungeError> {
        let is_auto = text.starts_with(AUTO);
        let word = if is_auto { AUTO } else { MUNGE };
        let socket = match text.strip_prefix(word).ok_or(MungeError)? {
            "" => None,
            rest => Some(
                rest.strip_prefix(':')
                    .filter(|path| path.starts_with('/'))
                    .ok_or(MungeError)?
                    .to_owned(),
            ),
        };
        Ok(Munge { socket, is_auto })
    }
}

impl fmt::Display for Munge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_auto { AUTO } else { MUNGE })?;
        self.socket.iter().try_for_each(|socket| write!(f, ":{socket}"))
    }
}

/// The error of parsing a text that is not a [`Munge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not `munge`, `auto`, or one of them with the absolute path of munged's socket, as in `munge:SOCKET`"
)]
#[non_exhaustive]
pub struct MungeError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_munge_with_or_without_a_socket() {
        for text in ["munge", "munge:/run/munge/munge.socket.2", "munge:/a:b", "auto", "auto:/x"] {
            assert_eq!(text.parse::<Munge>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "munge:",
            "munge:relative",
            "mungesocket",
            "Munge",
            "none",
            "munge /x",
            "automatic",
        ] {
            assert_eq!(text.parse::<Munge>(), Err(MungeError), "{text:?}");
        }
    }
}
