//! What only the ranks of one job know.

use std::fmt;

use crate::value::job::Job;

/// A job's token. A rank that presents another token belongs to another job, and rank 0 rejects it.
///
/// It is `MPIENV_TOKEN`, or else the job's identity as its launcher gives it, or else empty. It travels in clear text and is
/// not a security boundary: it only keeps jobs apart that meet by mistake.
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
    /// Most bytes that ranks can present.
    pub(crate) const LONGEST: usize = 255;

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
