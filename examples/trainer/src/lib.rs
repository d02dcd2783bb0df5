//! A distributed MNIST trainer on mpienv: what the `mnist` program is made of.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![expect(
    missing_docs,
    reason = "the names of fields and variants, and the texts of errors, are enough"
)]

pub(crate) mod atomic_write;
pub mod backend;
pub mod batch;
pub(crate) mod bounded_read;
pub mod checkpoint;
pub mod checksum;
pub mod cli;
pub mod cluster;
pub(crate) mod config_check;
pub mod data;
pub(crate) mod digest;
pub mod exit;
#[cfg(feature = "fetch")]
pub mod fetch;
pub(crate) mod folder_lock;
pub mod job;
pub(crate) mod list;
pub(crate) mod log;
pub(crate) mod metrics;
pub mod mnist;
pub mod model;
pub(crate) mod parameters;
#[cfg(feature = "plot")]
pub(crate) mod plot;
#[cfg(feature = "progress")]
pub(crate) mod progress;
pub mod quickstart;
pub mod random;
pub(crate) mod readiness;
pub(crate) mod regular_file;
pub(crate) mod replicas;
pub mod sampler;
pub mod sharding;
pub mod stop;
pub mod tensor_file;
pub mod train;
pub mod weights;
