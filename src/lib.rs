//! Knows where a process is in a cluster.

mod host;
pub mod hostlist;
#[cfg(feature = "pmix")]
pub mod pmix;
mod port;
mod rank;
#[cfg(feature = "rendezvous")]
pub mod rendezvous;

pub use host::{Host, HostError};
pub use port::{Port, PortError};
pub use rank::{Rank, RankError};
