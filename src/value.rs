//! Values that are valid by construction, and the texts that go with them.

pub(crate) mod host;
pub(crate) mod host_name;
pub(crate) mod job;
pub(crate) mod munge;
pub(crate) mod name;
pub(crate) mod placement;
pub(crate) mod port;
pub(crate) mod port_range;
pub(crate) mod printable;
pub(crate) mod rank;
#[cfg(feature = "rendezvous")]
pub(crate) mod rank_list;
#[cfg(feature = "rendezvous")]
pub(crate) mod resolve;
pub(crate) mod token;
