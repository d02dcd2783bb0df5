//! Operator sharding: each operator of a network is cut over the ranks according to its strategy.
//!
//! For programs that train one network on the ranks of a job, such as `quickstart` in this package
//! and `mnist`: the planner, the executor, initial weights and checkpoints of cut parameters. Not
//! for reading data sets, choosing models or data-parallel training, which `mnist` does itself.
//!
//! A [`network::Network`] and its strategies become a [`plan::Plan`]: a list of instructions that
//! is the same for all ranks and can be printed without being run. An [`execute::Executor`] runs
//! the plan over any [`Group`](mpienv::collective::Group). Losses and parameters equal those of a
//! single process, up to rounding.
//!
//! Both programs also stand on [`file`](mod@file), files that are whole or not there, and
//! [`job`], how a rank joins the others and exits with them.
//!
//! ```
//! use mpienv_sharding::network::Chain;
//! use mpienv_sharding::plan::{Collectives, Plan, Terms};
//!
//! let chain = Chain::new(16, 32).matmul("matmul", "w", 16).relu("relu");
//! let mut network = chain.matmul("matmul2", "w2", 16).mse("loss");
//! network.shard("matmul", "((2,4),(4,1))".parse()?)?;
//! let (collectives, learning_rate, momentum) = (Collectives::Min, 0.2, 0.1);
//! let terms = Terms { world: 8, data_cut: 8, collectives, learning_rate, momentum };
//! let plan = Plan::new(&network, &terms)?;
//! assert_eq!(plan.traffic().bytes_per_rank(8), 2503.0);
//! assert!(plan.instructions_of(0).contains("ReLU"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![expect(
    missing_docs,
    reason = "the names of fields and variants, and the texts of errors, are enough"
)]

pub mod arguments;
pub mod checkpoint;
pub mod error;
pub mod exchange;
pub mod execute;
pub mod file;
pub mod init;
pub mod job;
pub mod mesh;
pub mod network;
pub mod operator;
pub mod plan;
pub mod propagate;
pub mod random;
pub mod redistribute;
pub mod strategy;
pub mod tensor;

use std::fmt::Display;

/// Joins the items with a separator.
pub fn join<T: Display>(items: impl IntoIterator<Item = T>, separator: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(separator)
}
