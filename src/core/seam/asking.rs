//! Asking the launcher, for the command.

pub use crate::cluster::ask::{Connection, asked, keep_pmix, would_ask};
pub use crate::launcher::context::Server;
#[cfg(target_os = "linux")]
pub use crate::pmi::{Answer, Link, Nodes, PmiError, Question, inherited};
pub use crate::pmix::precludes_mpi;
