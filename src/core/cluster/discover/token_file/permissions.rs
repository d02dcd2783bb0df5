//! Who may read and change a file.

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

pub(super) fn owner(metadata: &Metadata) -> Option<u32> {
    Some(metadata.uid())
}

pub(super) fn mode(metadata: &Metadata) -> Option<u32> {
    Some(metadata.permissions().mode() & 0o7777)
}
