//! The `mpienv` command.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
