//! What the ranks of one job know and those of another do not.

use std::fmt;

use crate::value::job::Job;

/// A job's token: a rank that meets a master with another one has come to another job's port.
///
/// From `MPIENV_TOKEN`, else from the job's identity as its launcher tells it; empty where neither
/// is there. It travels as it is: it keeps jobs apart that meet by mistake, not an attacker out.
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
pub struct Token(String);

impl Token {
    pub(crate) fn new(text: impl Into<String>) -> Token {
        Token(text.into())
    }

    pub(crate) fn of_job(job: &Job) -> Token {
        Token(format!("{}/{}/{}", job.id, job.step, job.restarts))
    }

    /// The bytes that the ranks compare.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Not the token itself: it may be a secret, and debug output goes to logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} bytes)", self.0.len())
    }
}
