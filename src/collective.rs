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
//! The same program runs alone, under `mpienv launch`, mpirun, srun and every other launcher that mpienv knows. No MPI is
//! needed, to build or to run. For tests, [`threads`] has ranks in one process. `examples/candle` in the repository trains so
//! with candle: one sum for the gradients of each batch.
//!
//! # Semantics
//! Every rank of a group makes the same calls in the same order, with as many numbers. Each call of [`Group`] has an
//! example. Calls block; a group does one call at a time, and stays in its thread.
//!
//! Over shared memory, TCP and threads, ranks compare their calls. If they differ, all ranks get an error that names two of
//! them: `rank 2 called barrier, rank 0 all_reduce_sum of 10 f32`. MPI does not compare calls.
//!
//! # Order of sums
//! All ranks get the same bits. Over shared memory, TCP and threads, numbers are added in rank order, whatever their count
//! and on whatever hosts the ranks are: the transports give the same bits as each other, and another run gives them again.
//! MPI does not promise an order. It sums `f32` and `f64`; all other reductions are made in rank order over MPI too. If
//! numbers are NaN, so is the sum, but the bits of the NaN are not promised.
//!
//! # Errors
//! A rank that is lost, hangs or makes another call is named by all others, by its number in the job, whatever group they
//! use. A killed process is noticed within milliseconds, a hung one after the [timeout](GroupBuilder::timeout), a cut
//! network as well. A group cannot be used after an error, except [`CollectiveError::Argument`]: every later call fails at
//! once. A rank that fails after it has done its part in a call does not end that call on the others: their next call fails.
//!
//! | over | a lost rank | a hung rank |
//! | --- | --- | --- |
//! | shared memory, TCP | an error that names it | an error that names it |
//! | MPI | this process exits and names it ([`GroupBuilder::on_lost`]) | same, after the timeout |
//!
//! # Transports
//! [`Backend::Auto`] chooses, [`Group::describe`] says what and why.
//!
//! - **Shared memory** joins the ranks of a host (Linux). It is a file without a name, which other users cannot open, so
//!   nothing is left when ranks are killed, and `/dev/shm` is not needed. Ranks prove to each other that they see the same
//!   memory; if one does not, in another container or as another user, all use TCP, and `describe` has the reason. The TCP
//!   connections stay, to notice lost ranks.
//! - **TCP** joins every rank with every other. Ranks meet at `MASTER_ADDR:MASTER_PORT`, as in
//!   [`rendezvous`](crate::rendezvous), whose [token](crate::guide::security) keeps other jobs out. If it is a
//!   secret, all messages are encrypted.
//! - **Both** join several hosts, if the ranks of each host follow each other: for a sum, only one rank of each host sends,
//!   and to the next host only.
//! - **MPI** (feature `mpi`) is the launcher's own library, which knows fast networks.
//!
//! # Cost
//! For n bytes on each of p ranks, a rank sends and receives about
//!
//! | call | bytes | messages to each other rank |
//! | --- | --- | --- |
//! | [`all_reduce_sum`](Group::all_reduce_sum) to 64 KiB (n (p - 1) to 512 KiB) | n (p - 1) | 1 |
//! | [`all_reduce_sum`](Group::all_reduce_sum), larger | 2 n (p - 1) / p | 2 for each MiB of a rank's part |
//! | [`reduce_scatter_sum`](Group::reduce_scatter_sum), [`all_to_all`](Group::all_to_all) | n (p - 1) / p | 1 |
//! | [`all_gather`](Group::all_gather) | n (p - 1) | 2 |
//! | [`broadcast`](Group::broadcast) | n (p - 1), root only | 2 |
//! | [`barrier`](Group::barrier) | 0 | 1 |
//!
//! and 24 bytes more for each message. A sum over several hosts with shared memory sends n bytes from each host to the next,
//! and n bytes from the last host to each other one, one after the other; large ones go in blocks that overlap. Over shared
//! memory a rank writes its n bytes once, and reads those of all others; of more than 128 KiB in all, it reads its part of
//! each, and then the other parts of the sum. Memory takes up to 1 MiB for each rank, 64 MiB for each group of a host.
//!
//! Ranks poll for some microseconds before they sleep, if every rank has a core to itself; otherwise they let others run.

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
#[cfg(test)]
mod tests;
pub mod threads;
mod transport;
#[cfg(target_os = "linux")]
mod two_level;

pub use builder::{Backend, GroupBuilder};
pub use element::{Element, ElementKind, Numbers, Reduction};
pub use error::{CollectiveError, ConnectError};
pub use group::Group;
pub use transport::Transport;
