//! Without affinity masks.

use std::io;

use crate::launch::topology::Cpus;

pub(crate) fn mask(_process: Option<u32>) -> io::Result<Cpus> {
    Err(io::ErrorKind::Unsupported.into())
}

pub fn bind(_cpus: &Cpus) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
