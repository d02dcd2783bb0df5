//! Values that are valid by construction, and the texts that go with them.

pub mod host;
pub mod host_name;
pub(crate) mod job;
pub mod munge;
pub mod name;
pub mod placement;
pub mod port;
pub mod port_range;
pub mod printable;
pub mod rank;
pub mod token;
