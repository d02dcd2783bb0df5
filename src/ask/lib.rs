//! Asks the launcher, the system and the name service for what no variable says.
//!
//! [`ClusterInfo::from_env`](mpienv_core::ClusterInfo::from_env) only reads. These functions also
//! ask, which takes time and may fail:
//!
//! - [`read`] asks the launcher for rank 0's host if no variable names it.
//! - [`own_addr`] finds this host's own address on the way to rank 0.
//! - [`on_interface`] finds the network interface that a program's libraries are to use.
//!
//! ```no_run
//! use mpienv::{ClusterInfo, ask};
//!
//! let info = ask::read(&ClusterInfo::builder())?;
//! println!("rank 0 runs on {}", info.master_addr()?);
//! println!("this host is {}", ask::own_addr(&info)?.address);
//! # Ok::<(), mpienv::Error>(())
//! ```

// docs.rs shows which feature enables each item.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_debug_implementations)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod interface;
mod launcher;
mod pmi;
mod pmix;
mod process;
mod program;
mod route;
#[doc(hidden)]
pub mod seam;

pub use interface::on_interface;
pub use launcher::read;
pub use mpienv_core::OwnAddr;
pub use route::own_addr;
