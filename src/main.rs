//! The `mpienv` command.

/// Rust's runtime replaces a closed stdout with /dev/null before `main`.
#[expect(
    unsafe_code,
    reason = "the C library calls the functions in this section before Rust's runtime starts"
)]
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = mpienv::command::before_main;

// What walks the stack after a panic, linked into the command: to load `libgcc_s.so` takes a tenth
// of the time of an `export`. A linker that reads libraries in order still takes that one.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "the block declares no function")]
#[link(name = "gcc_eh")]
unsafe extern "C" {}

fn main() -> std::process::ExitCode {
    mpienv::command::main()
}
