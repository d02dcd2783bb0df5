//! Ranks sum, gather, broadcast and wait together, over shared memory, TCP or MPI.
//!
//! ```no_run
//! use mpienv::ClusterInfo;
//! use mpienv::collective::Group;
//!
//! let info = ClusterInfo::from_env()?;
//! let mut group = Group::connect(&info)?;
//! let mut gradients = vec![0.5_f32; 7850];
//! group.all_reduce_sum(&mut gradients)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The same program runs alone, under `mpienv launch`, mpirun, srun and every other launcher that mpienv knows.

mod alone;
mod builder;
mod call;
mod element;
mod error;
mod group;
#[cfg(any(feature = "mpi", target_os = "linux"))]
mod host_info;
mod hosts;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(target_os = "linux")]
mod shared;
mod split;
mod tcp;
pub mod threads;
mod transport;
#[cfg(target_os = "linux")]
mod two_level;

pub use builder::{Backend, GroupBuilder};
pub use element::{Element, ElementKind, Numbers, Reduction};
pub use error::{CollectiveError, ConnectError};
pub use group::Group;
pub use transport::Transport;
