//! What the `mnist` program is made of: a distributed trainer of classifiers of digits.
//!
//! For reading MNIST, its two models, data-parallel training, checkpoints, metrics and plots. Not
//! for cutting operators over the ranks, and not for meeting the other ranks: those are
//! [`mpienv_sharding`] and [`mpienv`].

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![expect(
    missing_docs,
    reason = "the names of fields and variants, and the texts of errors, are enough"
)]

pub(crate) mod agreement;
pub mod batch;
pub mod checkpoint;
pub mod cli;
pub mod data;
#[cfg(feature = "fetch")]
pub mod fetch;
pub(crate) mod log;
pub(crate) mod metrics;
pub mod mnist;
pub mod model;
pub mod parameters;
#[cfg(feature = "plot")]
pub(crate) mod plot;
#[cfg(feature = "progress")]
pub(crate) mod progress;
pub mod stop;
pub mod train;
