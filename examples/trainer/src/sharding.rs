//! Operator sharding: each operator of a network is cut over the ranks according to its strategy.
//!
//! A [`network::Network`] and its strategies become a [`plan::Plan`]: a list of instructions that
//! is the same for all ranks and can be printed without being run. An [`execute::Executor`] runs
//! the plan over any [`Group`](mpienv::collective::Group). Losses and parameters equal those of a
//! single process, up to rounding.
//!
//! ```
//! use mpienv_trainer::sharding::network::Chain;
//! use mpienv_trainer::sharding::plan::{Collectives, Plan, Terms};
//!
//! let mut network = Chain::new(16, 32).matmul("matmul", "w", 16).relu("relu").matmul("matmul2", "w2", 16).mse("loss");
//! network.shard("matmul", "((2,4),(4,1))".parse()?)?;
//! let terms = Terms { world: 8, data_cut: 8, collectives: Collectives::Min, learning_rate: 0.2, momentum: 0.1 };
//! let plan = Plan::new(&network, &terms)?;
//! assert_eq!(plan.traffic().bytes_per_rank(8), 2503.0);
//! assert!(plan.instructions_of(0).contains("ReLU"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod assignment;
pub mod checkpoint;
pub mod exchange;
pub mod execute;
pub mod gather;
pub mod init;
pub mod layout;
pub mod mesh;
pub mod network;
pub mod number;
pub mod operator;
pub mod plan;
pub mod propagate;
pub mod redistribute;
pub mod run_id;
pub mod strategy;
pub mod tensor;
pub mod traffic;
