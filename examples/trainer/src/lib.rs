//! A distributed MNIST trainer on mpienv.

pub mod collective;
pub mod data;
pub mod random;
