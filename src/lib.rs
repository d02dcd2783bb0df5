//! Tells a process its place in a cluster.
//!
//! Each launcher (Open MPI's mpirun, Slurm, AzureML, ...) describes a job in its own variables. This crate reads them
//! and returns one [`ClusterInfo`]: rank, world size, local rank, master address and port, and where each value comes
//! from.
//!
//! ```
//! use mpienv::ClusterInfo;
//!
//! let info = ClusterInfo::from_env()?;
//! println!("rank {} of {}", info.rank(), info.world_size());
//! // Pass it on to a program that reads PyTorch's variables:
//! std::process::Command::new("python").arg("train.py").envs(info.exports()?);
//! # Ok::<(), mpienv::Error>(())
//! ```
//!
//! Reading changes no variable, opens no connection and touches no disk. Variables that contradict each other cause an
//! [`Error`] that names launcher, variable, value, reason and remedy. Variables that are only suspicious cause a
//! [`Finding`].
//!
//! The [`guide`] describes the variables, the findings, and how mpienv compares with other libraries.

// docs.rs says beside an item which feature brings it.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[macro_use]
mod debug_text;

mod azure;
#[cfg(feature = "cli")]
mod binding;
#[cfg(feature = "cli")]
pub mod check;
mod context;
mod discover;
#[cfg(feature = "cli")]
pub mod doctor;
mod environment;
mod error;
#[cfg(unix)]
mod exec;
mod export;
mod finding;
pub mod guide;
mod host;
mod host_name;
pub mod hostlist;
mod info;
mod job;
mod launch;
pub mod launcher;
mod master;
#[cfg(feature = "mpi")]
pub mod mpi;
mod nccl;
mod placement;
#[cfg(feature = "pmix")]
pub mod pmix;
mod port;
mod printable;
mod rank;
#[cfg(feature = "rendezvous")]
pub mod rendezvous;
#[cfg(any(feature = "cli", feature = "testing"))]
pub mod simulate;
mod start_error;
#[cfg(feature = "testing")]
pub mod testing;
mod token;
mod wish;
mod workers;

pub use azure::AzureVars;
#[cfg(feature = "cli")]
pub use binding::widen_default_binding;
pub use discover::Builder;
pub use environment::{Environment, ReadError};
pub use error::{Error, Reason};
#[cfg(unix)]
pub use exec::exec;
pub use export::{Dialect, Exports, Unrepresentable, VariableSet};
pub use finding::{Finding, Severity};
pub use host::{Host, HostError};
pub use host_name::host_name;
pub use info::{ClusterInfo, Provenance};
#[cfg(all(feature = "launch", target_os = "linux"))]
pub use launch::end_with_parent;
#[cfg(all(feature = "launch", unix))]
pub use launch::serve_as_watchdog;
pub use launch::{Launch, LaunchError, Output};
pub use nccl::NcclIfname;
pub use placement::{LaunchStyle, Launcher};
pub use port::{Port, PortError};
pub use printable::printable;
pub use rank::{Local, Rank, RankError};
pub use start_error::StartError;
pub use token::Token;
pub use wish::PortWish;

/// README's Rust runs too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
