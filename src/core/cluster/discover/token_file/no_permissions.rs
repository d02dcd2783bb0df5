//! Outside Unix, files have no user IDs and no permission modes.

use std::fs::Metadata;

pub(super) fn owner(_metadata: &Metadata) -> Option<u32> {
    None
}

pub(super) fn mode(_metadata: &Metadata) -> Option<u32> {
    None
}
