//! Threads that take little memory.

use std::io;
use std::thread::Builder;

/// The stack size of a thread, in bytes. Its calls are few and shallow.
const STACK: usize = 256 << 10;
/// The address space that must be free before a thread is started, in bytes.
///
/// glibc reserves up to 128 MiB for the allocations of a thread. If it cannot, each allocation
/// takes a page or more, and the first that fails ends the process before it can report why.
const ROOM: usize = 136 << 20;

/// Returns what starts a thread, or an error if too little memory is free.
pub(crate) fn small_thread(name: &str) -> io::Result<Builder> {
    Vec::<u8>::new().try_reserve_exact(ROOM)?;
    Ok(Builder::new().name(name.to_owned()).stack_size(STACK))
}
