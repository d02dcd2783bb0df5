//! Threads that take little memory.

use std::io;
use std::thread;

/// The stack size of a thread, in bytes. Its calls are few and shallow.
const STACK: usize = 256 << 10;
/// The memory that must be free before a thread is started, in bytes. A thread that starts, and the
/// rest of the launch, cannot report that they have too little.
const ROOM: usize = 4 << 20;

/// Starts a thread, or fails if too little memory is free.
pub(super) fn small_thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    Vec::<u8>::new().try_reserve_exact(ROOM)?;
    thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work).map(drop)
}
