//! How a process exits whose main thread waits inside MPI for a rank that never comes.

use crate::collective::error::CollectiveError;

/// What a program does before it exits because of a lost rank: it prints the error, and returns the exit code.
pub(in crate::collective) type OnLost = fn(&CollectiveError) -> u8;

/// Exits the process from any thread. Nothing is dropped: the main thread may be somewhere it never returns from.
pub(in crate::collective) fn exit(error: &CollectiveError, on_lost: OnLost) -> ! {
    let code = on_lost(error);
    #[cfg(unix)]
    signal_hook::low_level::exit(code.into());
    #[cfg(not(unix))]
    #[expect(clippy::disallowed_methods, reason = "main cannot return")]
    std::process::exit(code.into())
}
