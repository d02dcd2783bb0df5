//! The `mpienv` command.

/// Rust's runtime replaces a closed stdout with /dev/null before `main`.
#[expect(
    unsafe_code,
    reason = "the C library calls the functions in this section before Rust's runtime starts"
)]
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = mpienv::command::before_main;

fn main() -> std::process::ExitCode {
    mpienv::command::main()
}
