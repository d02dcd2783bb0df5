//! What the tests of programs in this project put between a group and its transport, a counter or a
//! fault, and what the backend for PyTorch calls. Any version may change it.

use crate::Group;

pub use crate::call::{Call, Message};
pub use crate::cancel::Cancel;
pub use crate::element::ElementKind;
pub use crate::group::Untyped;
pub use crate::numbers::Numbers;
pub use crate::reduction::Reduction;
pub use crate::transport::Transport;

/// Returns a group over a transport.
#[must_use]
pub fn group_over(transport: Box<dyn Transport>) -> Group {
    Group::new(transport)
}

/// Returns what carries the calls of a group.
#[must_use]
pub fn transport_of(group: Group) -> Box<dyn Transport> {
    group.into_transport()
}
