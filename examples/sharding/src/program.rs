//! What a program of ranks needs from its command line to its exit code.

pub mod arguments;
pub mod backend;
pub mod cluster;
pub mod exit;
pub mod job;
pub mod readiness;
