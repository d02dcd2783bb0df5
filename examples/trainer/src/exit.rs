//! How the programs end: their exit codes, and their last words.

use std::fmt::Display;
use std::io::{self, Write};

use mpienv::collective::CollectiveError;

/// The run went to its end.
pub const OK: u8 = 0;

/// The environment, an input file or the data is wrong; nothing was trained.
pub const WRONG_INPUT: u8 = 1;

/// The arguments are wrong.
pub const USAGE: u8 = 2;

/// The training itself failed: the loss is no finite number, a rank was lost, or ranks hold different parameters.
pub const TRAINING_FAILED: u8 = 3;

/// A rank did not come within the timeout.
pub const TIMED_OUT: u8 = 124;

/// A signal asked to stop, and every rank did: this and the signal's number, as shells have it. 130 is SIGINT's, 143
/// SIGTERM's.
pub const SIGNALLED: u8 = 128;

/// The program that read stdout has exited, as `head` does: what shells have for SIGPIPE.
pub const READER_GONE: u8 = 141;

/// The code of a run whose ranks could not do a thing together.
pub fn of_collective(error: &CollectiveError) -> u8 {
    if error.is_timeout() { TIMED_OUT } else { TRAINING_FAILED }
}

/// Says why a program ends, in one write: what ranks that share a terminal say does not mix.
pub fn say(program: &str, why: &dyn Display) {
    let why = why.to_string();
    // Any file or connection may be the one too many: EMFILE is 24 on Linux and macOS.
    let is_limit = why.contains("(os error 24)") && !why.contains("ulimit -n");
    let remedy = if is_limit { "; raise this process's limit of open files (ulimit -n)" } else { "" };
    // If it cannot be written, the exit code still says that the run failed.
    let _ = io::stderr().write_all(format!("{program}: {why}{remedy}\n").as_bytes());
}

/// Ends the process with the help, the version, or what is wrong with its arguments.
///
/// Nothing else has begun yet.
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

/// Says why, as the program does at its end, from any of its threads; returns the exit code.
pub fn say_last(why: &dyn Display, code: u8) -> u8 {
    let program = std::env::current_exe().unwrap_or_default();
    say(&program.file_stem().unwrap_or_default().to_string_lossy(), why);
    code
}
