//! Exits a process whose main thread may be blocked in MPI, waiting for a lost rank.

use crate::error::CollectiveError;

/// Runs before the process exits because of a lost rank, and returns the exit code. By default it
/// prints the error.
pub(crate) type OnLost = fn(&CollectiveError) -> u8;

/// Exits the process from any thread. Nothing is dropped: the main thread may never return from
/// MPI.
pub(crate) fn exit(error: &CollectiveError, on_lost: OnLost) -> ! {
    let code = on_lost(error);
    signal_hook::low_level::exit(code.into())
}
