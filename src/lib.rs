//! Tells a process its place in a cluster.
//!
//! Each launcher (Open MPI's mpirun, Slurm, AzureML, ...) describes a job in its own variables.
//! This crate reads them and returns one [`ClusterInfo`]: rank, world size, local rank, master
//! address and port, and where each value comes from.
//!
//! ```
//! use mpienv::ClusterInfo;
//!
//! let info = ClusterInfo::from_env()?;
//! // On stderr, once on each node: what is probably wrong, such as a batch script that has not used srun.
//! info.warn();
//! println!("rank {} of {}", info.rank(), info.world_size());
//! // Pass it on to a program that reads PyTorch's variables:
//! let mut python = std::process::Command::new("python");
//! info.exports()?.apply_to(python.arg("train.py"));
//! # Ok::<(), mpienv::Error>(())
//! ```
//!
//! Reading does not change variables or open connections. It reads no files other than those in
//! `MPIENV_TOKEN_FILE` and `PBS_NODEFILE`, and Linux's /proc, which shows the parent processes. If
//! variables contradict each other, it returns an [`Error`] that names the launcher, the variable,
//! its value, the reason and the remedy. If variables are only suspicious, it adds a [`Finding`].
//!
//! The [`guide`] describes the variables, the findings, and how mpienv compares with other
//! libraries.

// docs.rs shows which feature enables each item.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[macro_use]
mod error;

mod cluster;
#[cfg(feature = "collective")]
pub mod collective;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod command;
mod environment;
mod export;
mod finding;
pub mod guide;
pub mod hostlist;
mod launch;
pub mod launcher;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "pmix")]
pub mod pmix;
#[cfg(any(feature = "collective", feature = "mpi"))]
mod process;
#[cfg(feature = "rendezvous")]
pub mod rendezvous;
#[cfg(any(feature = "cli", feature = "testing"))]
pub mod simulate;
#[cfg(feature = "testing")]
pub mod testing;
mod value;

pub use cluster::azure::AzureVars;
pub use cluster::discover::ClusterInfoBuilder;
pub use cluster::info::ClusterInfo;
pub use cluster::nccl::NcclIfname;
pub use cluster::overrides::MasterPort;
pub use cluster::provenance::Provenance;
#[cfg(feature = "rendezvous")]
pub use cluster::route::OwnAddr;
pub use environment::{Environment, ReadError, Variable, Variables};
pub use error::{Error, Reason};
pub use export::{
    Dialect, Exports, Placeholders, Target, TargetVariable, TemplateError, Unrepresentable,
};
pub use finding::{Finding, Severity};
#[cfg(feature = "launch")]
pub use launch::binding::widen_default_binding;
#[cfg(all(feature = "launch", target_os = "linux"))]
pub use launch::end_with_parent;
#[cfg(unix)]
pub use launch::exec::exec;
#[cfg(all(feature = "launch", unix))]
pub use launch::serve_as_watchdog;
pub use launch::start_error::StartError;
pub use launch::{Launch, LaunchError, LaunchReport, Output};
#[doc(inline)]
pub use launcher::Launcher;
pub use value::host::{Host, HostError};
pub use value::host_name::host_name;
pub use value::munge::{Munge, MungeError};
pub use value::name::UnknownName;
pub use value::placement::LaunchStyle;
pub use value::port::{Port, PortError};
pub use value::port_range::{PortRange, PortRangeError};
pub use value::printable::printable;
pub use value::rank::{Local, Rank, RankError};
pub use value::token::Token;

/// Runs the Rust examples of the README as doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
