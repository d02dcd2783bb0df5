//! The programs' exit codes and final messages.

use std::fmt::Display;
use std::io::{self, Write};

use mpienv::ErrorKind;
use mpienv::collective::CollectiveError;

/// Success.
pub const OK: u8 = 0;

/// The environment, a file or the data is wrong.
pub const WRONG_INPUT: u8 = 1;

/// Invalid command line.
pub const USAGE: u8 = 2;

/// The training failed: the loss is not finite, a rank was lost, or ranks hold different
/// parameters.
pub const TRAINING_FAILED: u8 = 3;

/// A rank did not arrive within the timeout.
pub const TIMED_OUT: u8 = 124;

/// A signal stopped all ranks. As in shells, add the signal's number: 130 for SIGINT, 143 for
/// SIGTERM.
pub const SIGNALLED: u8 = 128;

/// The program reading stdout, such as `head`, has exited. Shells use this code for SIGPIPE.
pub const READER_GONE: u8 = 141;

/// The exit code of a failed collective call.
pub fn of_collective(error: &CollectiveError) -> u8 {
    if error.kind() == ErrorKind::TimedOut { TIMED_OUT } else { TRAINING_FAILED }
}

/// Prints why a program fails. A single write keeps the lines of ranks that share a terminal apart.
pub fn say(program: &str, why: &dyn Display) {
    let why = why.to_string();
    // EMFILE is 24 on Linux and macOS. Opening any file or connection can hit this limit.
    let is_limit = why.contains("(os error 24)") && !why.contains("ulimit -n");
    let remedy =
        if is_limit { "; raise this process's limit of open files (ulimit -n)" } else { "" };
    // If stderr cannot be written, the exit code still shows the failure.
    let _ = io::stderr().write_all(format!("{program}: {why}{remedy}\n").as_bytes());
}

/// Prints the help, the version or the usage error, and exits.
pub fn with_usage(program: &str, usage: &clap::Error) -> ! {
    let printed = usage.print().and_then(|()| io::stdout().flush());
    let code = match printed {
        _ if usage.use_stderr() => USAGE,
        Ok(()) => OK,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => READER_GONE,
        Err(error) => {
            say(program, &format_args!("cannot write stdout: {error}; check the disk"));
            WRONG_INPUT
        }
    };
    signal_hook::low_level::exit(code.into())
}

/// Prints, from any thread, why this program fails. Returns `code`.
pub fn say_last(why: &dyn Display, code: u8) -> u8 {
    let program = std::env::current_exe().unwrap_or_default();
    say(&program.file_stem().unwrap_or_default().to_string_lossy(), why);
    code
}
