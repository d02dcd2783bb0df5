//! What the launcher has answered.

pub(crate) use crate::cluster::ask::{Answer, complete, secret};
