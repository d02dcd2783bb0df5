//! Values that are valid by construction, and the texts that go with them.

pub(crate) mod counted;
pub mod host;
pub mod host_name;
pub(crate) mod job;
pub(crate) mod json;
pub mod launcher;
pub mod munge;
pub mod name;
pub mod port;
pub mod port_range;
pub mod printable;
pub mod rank;
pub(crate) mod rank_list;
pub(crate) mod sourced;
pub mod subnet;
pub mod token;
