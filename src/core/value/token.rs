//! What only the ranks of one job know.

use std::fmt;

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
    pub(crate) fn new(text: impl Into<String>) -> Token {
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
