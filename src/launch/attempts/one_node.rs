//! Without the feature `rendezvous`, the launches of several nodes do not meet.

use std::io;
use std::sync::Arc;

use super::mailbox::Mailbox;
use super::message::{Event, Introduction};
use crate::launch::error::LaunchError;
use mpienv_core::ClusterInfo;

/// There are none.
#[derive(Debug)]
pub(super) enum Nodes {}

pub(super) struct Met {
    pub nodes: Nodes,
    pub mailbox: Arc<Mailbox>,
    pub base: u32,
}

pub(super) fn meet(_info: &ClusterInfo, _own: &Introduction) -> Result<Met, LaunchError> {
    Err(LaunchError::Nodes(io::Error::other(
        "restarts and stall timeouts on several nodes need the feature rendezvous of mpienv",
    )))
}

impl Nodes {
    pub(super) fn send(&self, _event: Event) {
        match *self {}
    }
}
