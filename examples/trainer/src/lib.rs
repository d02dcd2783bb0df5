//! A distributed MNIST trainer on mpienv.
pub mod collective;
