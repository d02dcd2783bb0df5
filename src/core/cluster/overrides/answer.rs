//! What the launcher has answered.

pub(crate) use crate::cluster::ask::complete;
pub(crate) use crate::pmi::Answer;

/// Returns the job's secret, if the launcher has passed it on.
pub(super) fn secret(answer: &Answer) -> Option<&str> {
    answer.secret.as_deref()
}
