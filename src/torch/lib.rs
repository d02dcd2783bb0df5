//! The library that mpienv's backend for PyTorch loads: groups of ranks behind a C ABI.
//!
//! The Python package `mpienv_rs` brings it and calls it through `ctypes`, so that it depends
//! neither on a version of Python nor on PyTorch's C++. It does not know PyTorch: it gets
//! addresses, counts and types. The order of calls, threads and PyTorch's own types are Python's.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod abi;
mod connect;
mod failure;
mod interrupt;
mod memory;
mod messages;
#[cfg(test)]
mod tests;
