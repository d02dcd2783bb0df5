//! A distributed MNIST trainer on mpienv: what the `mnist` program is made of.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![expect(missing_docs, reason = "the text of an error names its fields")]

pub mod atomic_write;
pub mod backend;
pub mod batch;
pub mod bounded_read;
pub mod checkpoint;
pub mod cli;
pub mod cluster;
pub mod config_check;
pub mod data;
pub(crate) mod digest;
pub mod exit;
#[cfg(feature = "fetch")]
pub mod fetch;
pub mod folder_lock;

pub(crate) mod list;
pub mod log;
pub mod metrics;
pub mod mnist;
pub mod model;
pub mod parameters;
#[cfg(feature = "plot")]
pub mod plot;
#[cfg(feature = "progress")]
pub mod progress;
pub mod quickstart;
pub mod random;
pub mod readiness;
pub mod replicas;
pub mod sampler;
pub mod sharding;
pub mod stop;
pub mod tensor_file;
pub mod train;
pub mod weights;
