//! The `mpienv` command.

fn main() -> std::process::ExitCode {
    mpienv::command::main()
}
