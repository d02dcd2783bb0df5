//! A distributed MNIST trainer on mpienv.

pub mod agreement;
pub mod batch;
pub mod collective;
pub mod data;
pub mod model;
pub mod random;
pub mod shard;
pub mod train;
