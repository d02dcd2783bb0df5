//! What the tests of programs in this project put between a group and its transport, a counter or a
//! fault, and what the backend for PyTorch calls. Any version may change it.

use crate::{CollectiveError, Group, hosts};

pub use crate::call::{Call, Message, Reduce, built_number, type_number};
pub use crate::cancel::Cancel;
pub use crate::element::ElementKind;
pub use crate::group::Announced;
pub use crate::numbers::Numbers;
pub use crate::tcp::{End, Meeting, Pair};
pub use crate::transport::Transport;
pub use crate::transport::{Begun, Connection};

/// Connects two ranks for messages from one to the other, over the fastest transport, without a
/// meeting of all ranks. Asks `end` about 50 times a second whether that is in vain.
///
/// # Errors
/// If the other rank is lost or does not come, or `end` says so.
pub fn connect_pair(
    pair: Pair<'_>,
    end: &dyn Fn() -> Option<End>,
) -> Result<Group, CollectiveError> {
    pair.connect(end, hosts::join).map(Group::new)
}
