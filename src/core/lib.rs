//! A process's place in its cluster, read from the variables of the launcher that started it.
//!
//! This crate is the part of mpienv that every other part builds on: the values ([`Rank`],
//! [`Host`], [`Port`], ...), the launchers, [`ClusterInfo`], and its exports to the variables of
//! other programs. It reads the environment, the files that variables name, and Linux's /proc. It
//! opens no connection, looks no name up and starts no process: mpienv-ask does.
//!
//! Programs depend on `mpienv`, which re-exports all of it.

// docs.rs shows which feature enables each item.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_debug_implementations)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[cfg(not(unix))]
compile_error!("mpienv is for Linux; on macOS, the library reads, meets and computes too");

#[doc(hidden)]
#[macro_use]
pub mod error;

#[doc(hidden)]
pub mod cluster {
    //! A process's place in its cluster, and how mpienv determines it.

    pub(crate) mod answer;
    pub(crate) mod attempt;
    pub(crate) mod azure;
    pub(crate) mod context;
    pub(crate) mod device;
    pub(crate) mod discover;
    pub mod info;
    pub(crate) mod interface;
    pub(crate) mod master;
    pub(crate) mod nccl;
    pub(crate) mod overrides;
    pub(crate) mod own_variables;
    pub(crate) mod threads;
    pub(crate) mod warn;
    pub(crate) mod workers;
}
#[doc(hidden)]
pub mod environment;
#[doc(hidden)]
pub mod export;
#[doc(hidden)]
pub mod finding;
mod hostlist;
mod launcher;
mod plan;
#[doc(hidden)]
pub mod seam;
pub mod simulate;
#[cfg(feature = "testing")]
pub mod testing;
#[doc(hidden)]
pub mod value {
    //! Values that are valid by construction, and the texts that go with them.

    pub mod host;
    pub(crate) mod job;
    pub(crate) mod json;
    pub mod name;
    pub mod port;
    pub mod printable;
    pub mod rank;
    pub(crate) mod sourced;
    pub mod subnet;
    pub mod token;
}

pub use cluster::discover::ClusterInfoBuilder;
pub use cluster::info::{ClusterInfo, Provenance};
pub use cluster::interface::{Interface, InterfaceError, OwnAddr, OwnInterface};
pub use cluster::nccl::NcclIfname;
pub use cluster::overrides::MasterPort;
pub use environment::{Environment, ReadError};
pub use error::{Error, ErrorKind, Reason};
pub use export::{Dialect, Exports, Target, Unrepresentable};
pub use finding::{Finding, Severity};
#[doc(inline)]
pub use launcher::Launcher;
pub use launcher::placement::LaunchStyle;
pub use value::host::{Host, HostError, host_name};
pub use value::name::UnknownName;
pub use value::port::{Port, PortError, PortRange, PortRangeError};
pub use value::printable::printable;
pub use value::rank::{Rank, RankError};
pub use value::subnet::{Subnet, SubnetError};
pub use value::token::{Munge, MungeError, Token};
