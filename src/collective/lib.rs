//! `mpienv::collective`: sums, gathers, broadcasts and barriers of all ranks, over shared memory,
//! TCP or MPI.
//!
//! This is for numbers that all ranks of a job combine, and for naming the rank that is lost. It
//! does not find out a process's rank, start processes, or know what the numbers mean.
//!
//! Every rank computes the gradients of its share of the samples, and one call sums them. Here, the
//! ranks fit the line `y = 2 x + 1`:
//!
//! ```
//! use mpienv::{ClusterInfo, collective::Group};
//!
//! let mut group = Group::connect(&ClusterInfo::from_env()?)?;
//! let mut line = [0.0_f32; 2];
//! for _ in 0..400 {
//!     let mut gradients = [0.0; 2];
//!     for x in group.rank().share_of(64).map(|sample| sample as f32 / 64.0) {
//!         let error = line[0] * x + line[1] - (2.0 * x + 1.0);
//!         gradients = [gradients[0] + error * x, gradients[1] + error];
//!     }
//!     group.all_reduce_sum(&mut gradients)?;
//!     line = [line[0] - 0.02 * gradients[0], line[1] - 0.02 * gradients[1]];
//! }
//! # assert!((line[0] - 2.0).abs() < 1e-3 && (line[1] - 1.0).abs() < 1e-3, "{line:?}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The same program runs alone, under `mpienv launch`, mpirun, srun and every other launcher that
//! mpienv knows. MPI is not needed to build or to run it. For tests, [`threads`] runs the ranks in
//! one process. `examples/candle` in the repository trains a candle model this way, with one sum of
//! the gradients for each batch.
//!
//! # Semantics
//! All ranks of a group must make the same calls in the same order, with the same number and type
//! of values. In [`all_gather`](Group::all_gather), [`all_to_all`](Group::all_to_all) and
//! [`broadcast_vec`](Group::broadcast_vec), the number may differ. [`send`](Group::send),
//! [`receive`](Group::receive) and [`send_receive`](Group::send_receive) are calls of two ranks.
//! Calls block. A group makes one call at a time. It may move to another thread, and
//! [`Group::canceller`] ends its calls from other threads.
//!
//! Before any rank returns, the ranks compare operation, type, count, reduction and root. If they
//! differ, or if a rank's arguments are invalid, all ranks get an error that names two ranks:
//! `rank 2 called barrier, rank 0 all_reduce_sum of 10 f32`. Only TCP notices at once that ranks
//! call different groups, such as a group and one that was split from it; elsewhere, they wait for
//! the timeout. Over MPI, comparing takes one more small all-reduce for each call of all ranks, and
//! two for those that take any number of values.
//!
//! Only the process that connected can use a group. In a forked child, every call is an error, and
//! dropping the group does nothing. The child keeps the connections open, so while it runs, a loss
//! of its parent is noticed only after the timeout: drop the group in the child first.
//!
//! # Order of sums
//! All ranks get the same bits; MPI recommends this but does not guarantee it. Over shared memory
//! and TCP, numbers are added in rank order, regardless of their count and of the ranks'
//! hosts. These transports therefore return the same bits as each other and as any other run. MPI
//! does not guarantee an order for its sums of `f32` and `f64`; all other reductions over MPI also
//! use rank order. `f16` and `bf16` (feature `half`) are added and multiplied in `f32`, in rank
//! order, and the result is rounded once. If any number is NaN, the sum is NaN, but its bits are
//! unspecified.
//!
//! # Errors
//! If a rank is lost, hangs or makes another call, all other ranks get an error that names it by
//! its number in the job, whichever group they use; arguments are numbers of the group's ranks.
//! They notice within milliseconds a process that is killed, and one that [aborts](Group::abort),
//! whose reason is in the error. They notice a hung process or a cut network after the
//! [timeout](GroupBuilder::timeout), which also limits how long a rank may compute between two
//! calls. [`CollectiveError`] says when a group can still be used.
//!
//! If a rank fails after it has done its part of a call, the others complete that call, and their
//! next call fails. If they then get nothing from some other rank for 0.4 s, the current call fails
//! instead.
//!
//! | over | a lost rank | a hung rank |
//! | --- | --- | --- |
//! | shared memory, TCP | an error that names it | an error that names it |
//! | MPI | this process exits in its next call and names it ([`GroupBuilder::on_lost`]) | this process exits and names it after the timeout |
//!
//! # Transports
//! [`Backend::Auto`] chooses a transport. [`Group::describe`] says which one and why.
//!
//! - **Shared memory** connects the ranks of a host (Linux). The memory is an unnamed file that
//!   other users cannot open. It disappears even if ranks are killed, and does not need `/dev/shm`.
//!   Every rank checks that it sees the same memory. If one rank does not, because of another
//!   container or user, all ranks use TCP, and `describe` gives the reason. The TCP connections
//!   stay open to notice lost ranks.
//! - **TCP** connects every rank with every other. Ranks meet at `MASTER_ADDR:MASTER_PORT`, as in
//!   [`rendezvous`](mpienv_rendezvous), whose token keeps other jobs out. If the token is a secret
//!   (`mpienv::guide::security`), all messages are encrypted.
//! - **Both** connect several hosts, if the ranks of each host are consecutive. In a sum, one
//!   rank of each host sends to the next host, and the last host sends the result to all others.
//!   Messages between two ranks of a host go through its memory. Other calls go over TCP.
//! - **MPI** (feature `mpi`) is the launcher's own library, which supports fast networks.
//!
//! # Cost
//! For n bytes on each of p ranks, a rank sends and receives about this much over TCP:
//!
//! | call | bytes | messages to each other rank |
//! | --- | --- | --- |
//! | [`all_reduce_sum`](Group::all_reduce_sum) to 64 KiB (n (p - 1) to 512 KiB) | n (p - 1) | 1 |
//! | [`all_reduce_sum`](Group::all_reduce_sum), larger | 2 n (p - 1) / p | 2 for each MiB of a rank's part |
//! | [`reduce_scatter_into`](Group::reduce_scatter_into), [`all_to_all_into`](Group::all_to_all_into) | n (p - 1) / p | 1 |
//! | [`reduce`](Group::reduce) to 64 KiB | n, but the root 0 | 1 |
//! | [`reduce`](Group::reduce), larger | n, but the root n (p - 1) / p | 2 to the root for each MiB of a rank's part |
//! | [`all_gather_into`](Group::all_gather_into) | n (p - 1) | 1 for each MiB |
//! | [`broadcast`](Group::broadcast) | n (p - 1), root only | 1, and 1 for each further MiB from the root |
//! | [`gather`](Group::gather) | n, but the root 0 | 1, and 1 to the root for each further MiB |
//! | [`scatter`](Group::scatter) | n (p - 1) / p, root only | 1 |
//! | [`send`](Group::send) | n | 1 to the rank that receives, and 1 back |
//! | [`barrier`](Group::barrier) | 0 | 1 |
//!
//! Calls whose parts have any length first exchange 8 bytes, as one message more. Each message adds
//! 28 bytes; encryption adds 16 bytes for the head and 16 for each 64 KiB. A sum over several hosts
//! with shared memory sends n bytes from each host to the next, and n bytes from the last host to
//! every other host. Large sums are sent in blocks that overlap. Over shared memory, a rank writes
//! its n bytes once and reads those of all others. If more than two ranks have over 64 KiB
//! together, a rank reads its part of each, and then the other parts of the sum. Shared memory
//! takes about 1 MiB for each rank, and at most about 64 MiB for each group on a host of fewer than
//! 1,600 of its ranks. Messages take no more: each goes through the memory of the rank that sends
//! it, in pieces of up to 64 KiB.
//!
//! [`all_reduce_in_parts`](Group::all_reduce_in_parts) lets the ranks of a host compute straight
//! into the shared memory, and sums the first values while the last ones are computed.
//! [`all_reduce_in_parts_while`](Group::all_reduce_in_parts_while) hides the wait for the others'
//! last parts behind other work.
//!
//! If every rank has its own core, ranks poll for some microseconds before they yield or sleep.

// docs.rs shows which feature enables each item.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_debug_implementations)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "what only ranks that share memory need")
)]

#[macro_use]
extern crate mpienv_core;

// The names by which the files of this crate know the crates below.
use mpienv_core::{cluster, value};
mod rendezvous {
    pub(crate) use mpienv_rendezvous::seam::*;
    pub(crate) use mpienv_rendezvous::*;
}

/// Systems on which the ranks of a host do not share memory.
#[cfg(not(target_os = "linux"))]
mod hosts {
    use crate::{error::Result, tcp::Tcp, transport::Transport};

    pub(super) fn join(tcp: Tcp) -> Result<Box<dyn Transport>> {
        Ok(Box::new(tcp))
    }

    pub(super) fn join_here(ranks: Vec<Tcp>) -> Vec<Box<dyn Transport>> {
        ranks.into_iter().map(|tcp| Box::new(tcp) as _).collect()
    }
}

mod builder;
mod call;
mod cancel;
mod connecting;
mod element;
mod error;
mod group;
mod host_info;
#[cfg(target_os = "linux")]
mod hosts;
#[cfg(feature = "mpi")]
mod mpi;
mod numbers;
mod reduction;
#[doc(hidden)]
pub mod seam;
#[cfg(target_os = "linux")]
mod shared;
mod tcp;
#[cfg(test)]
mod tests;
pub mod threads;
mod transport;
#[cfg(target_os = "linux")]
mod two_level;

pub use builder::{Backend, GroupBuilder};
pub use cancel::Canceller;
pub use element::Element;
pub use error::CollectiveError;
pub use group::Group;
#[cfg(feature = "half")]
pub use half;
pub use reduction::Reduction;
