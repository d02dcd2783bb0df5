//! The exit codes of `mnist`.

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
