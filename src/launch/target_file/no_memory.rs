//! Files in memory exist on Linux only, and need the feature `launch`.

use std::io;
use std::path::PathBuf;

#[derive(Debug)]
pub(super) enum Held {}

impl Held {
    pub(super) fn hand_over(&self) {
        match *self {}
    }
}

pub(super) fn write(_text: &str) -> io::Result<(PathBuf, Held)> {
    Err(io::ErrorKind::Unsupported.into())
}
