//! Tells a process its place in a cluster: its rank, its node, and where the ranks meet.
//!
//! Each launcher (Open MPI's mpirun, Slurm, AzureML, ...) describes a job in its own variables.
//! This crate reads them and returns one [`ClusterInfo`]: rank, world size, local rank, master
//! address and port, and where each value comes from.
//!
//! ```
//! use mpienv::ClusterInfo;
//!
//! let info = ClusterInfo::from_env()?;
//! // On stderr, once on each node: what is probably wrong, such as a batch script that has not
//! // used srun.
//! info.warn();
//! // This rank's part of the work, here of 60,000 samples:
//! let samples = info.rank().share_of(60_000);
//! println!("rank {} of {} reads samples {samples:?}", info.rank(), info.world_size());
//! # Ok::<(), mpienv::Error>(())
//! ```
//!
//! A process without a launcher is rank 0 of 1, so the program also runs by itself.
//! [`ClusterInfo::require_launcher`] refuses that. [`ClusterInfo::exports`] passes the place on to
//! programs that read PyTorch's variables.
//!
//! Reading does not change variables or open connections. It reads only files that variables name,
//! such as `MPIENV_TOKEN_FILE` and `PBS_NODEFILE`, NCCL's configuration, and Linux's /proc, which
//! shows the parent processes. If variables contradict each other, it returns an [`Error`] that
//! names the launcher, the variable, its value, the reason and the remedy. If variables are only
//! suspicious, it adds a [`Finding`].
//!
//! Programs that ranks start together usually continue with one of these:
//!
//! - [`collective::Group`] sums, gathers and broadcasts numbers over all ranks, and exchanges them
//!   between neighbors.
//! - [`rendezvous::Rendezvous`] lets the ranks exchange a few bytes, such as an NCCL id.
//! - `Launch` starts the ranks of a node, and [`simulate`] imitates a launcher in tests.
//!
//! The [`guide`] answers questions that do not belong to a single item.
//!
//! # Findings
//!
//! [`ClusterInfo::from_env`] prints nothing. [`ClusterInfo::warn`] prints what is probably wrong.
//! Connecting a [`collective::Group`] does so too, unless its builder has `quiet(true)`.
//!
//! # Features
//!
//! None is on by default: a program that only reads its place compiles serde, envy, thiserror and
//! once_cell.
//!
//! | feature | what it is for | includes |
//! | --- | --- | --- |
//! | `ask` | asking the launcher for rank 0's host, the system for routes and interfaces ([`ask`]) | - |
//! | `cli` | the command | `launch`, `rendezvous` |
//! | `collective` | ranks sum, gather and broadcast over shared memory, TCP or (with `mpi`) MPI | `rendezvous` |
//! | `gpu` | the command's `check --gpu` | `cli`, `collective` |
//! | `half` | `collective` with `f16` and `bf16` of the crate `half` | `collective` |
//! | `launch` | starting the ranks of a node (`Launch`), which stop with the process that started them | `ask` |
//! | `mpi` | MPI loaded at run time, and collectives over it; one binary works with Open MPI, MPICH, Intel MPI and MPI 5's standard ABI | - |
//! | `rendezvous` | ranks meet at the master and exchange a few bytes | `ask` |
//! | `testing` | jobs of every launcher as strategies for property tests; your tests also need proptest | - |
//!
//! # Errors and exit codes
//!
//! Errors that involve several ranks have a `kind()`. Its [`ErrorKind`] says whether another
//! attempt may succeed, and [`ErrorKind::exit_code`] returns the code with which `mpienv` exits for
//! it.
//!
//! | error | of | exit code |
//! | --- | --- | --- |
//! | [`Error`] | reading the environment | 1 |
//! | `StartError` | starting a program | 1, 126 or 127 |
//! | `LaunchError` | starting and stopping the workers of a node | by its kind |
//! | `rendezvous::RendezvousError` | meeting at the master | by its kind |
//! | `collective::CollectiveError` | connecting a group, or a call of it | by its kind |
//! | `mpi::MpiError` | a call of MPI | by its kind |

// docs.rs shows which feature enables each item.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_debug_implementations)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod command;
pub mod guide;

#[cfg(feature = "ask")]
#[doc(inline)]
pub use mpienv_ask as ask;
#[cfg(feature = "collective")]
#[doc(inline)]
pub use mpienv_collective as collective;
#[cfg(feature = "testing")]
#[doc(inline)]
pub use mpienv_core::testing;
#[doc(inline)]
pub use mpienv_core::{
    ClusterInfo, ClusterInfoBuilder, Dialect, Environment, Error, ErrorKind, Exports, Finding,
    Host, HostError, Interface, InterfaceError, LaunchStyle, Launcher, MasterPort, Munge,
    MungeError, NcclIfname, OwnAddr, OwnInterface, Port, PortError, PortRange, PortRangeError,
    Provenance, Rank, RankError, ReadError, Reason, Severity, Subnet, SubnetError, Target, Token,
    UnknownName, Unrepresentable, host_name, printable, simulate,
};
#[cfg(feature = "launch")]
#[doc(inline)]
pub use mpienv_launch::{
    Bind, Launch, LaunchError, LaunchReport, Output, StartError, Threads, end_with_parent,
    heartbeat, serve_as_watchdog,
};
#[cfg(feature = "mpi")]
#[doc(inline)]
pub use mpienv_mpi as mpi;
#[cfg(feature = "rendezvous")]
#[doc(inline)]
pub use mpienv_rendezvous as rendezvous;

/// Runs the Rust examples of the README as doctests.
#[cfg(all(doctest, feature = "collective"))]
#[doc = include_str!("../README.md")]
struct Readme;
