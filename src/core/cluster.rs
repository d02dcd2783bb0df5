//! A process's place in its cluster, and how mpienv determines it.

pub(crate) mod answer;
pub(crate) mod attempt;
pub(crate) mod azure;
pub(crate) mod device;
pub(crate) mod discover;
pub mod info;
pub(crate) mod interface;
pub(crate) mod master;
pub(crate) mod meeting;
pub(crate) mod nccl;
pub(crate) mod overrides;
pub(crate) mod own_variables;
pub(crate) mod provenance;
mod require;
pub(crate) mod threads;
pub(crate) mod warn;
mod workers;
