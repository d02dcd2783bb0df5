//! The C functions for messages from one rank to another, which have connections of their own.
//! `mpienv_torch_call` sends and receives them.

use std::ffi::c_char;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::net::{TcpListener, ToSocketAddrs as _};
use std::os::fd::{BorrowedFd, FromRawFd as _, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use mpienv_collective::Group;
use mpienv_collective::seam::{Announced, Connection, End, Meeting, Pair, connect_pair};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::call::number_of;
use crate::memory::{bytes, bytes_mut, check_place, text};
use crate::{Failure, Handle, Question, open, run, write_text};

/// The sender and the receiver in the group of the two.
pub(crate) const SENDER: u32 = 0;
pub(crate) const RECEIVER: u32 = 1;

/// Duplicates the connection of a group to a rank. The copy belongs to the caller, who can wait for
/// the rank to close the connection. Writes the rank's host, as errors have it, and
/// returns how many bytes that takes. `into_descriptor` becomes 0 if there is no such connection, and
/// the negative number of the system's error if it cannot be duplicated.
///
/// # Safety
/// As `run`, but another call may run; `host` takes `capacity` bytes, and `into_descriptor` a
/// number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_connection(
    handle: *const Handle,
    rank: u32,
    host: *mut u8,
    capacity: usize,
    into_descriptor: *mut i32,
) -> usize {
    // SAFETY: the caller vouches for the handle and the places.
    unsafe {
        if check_place(into_descriptor).is_err() {
            return 0;
        }
        into_descriptor.write(0);
        let connections = handle.as_ref().map_or(&[][..], |handle| &handle.connections);
        let Some(Some(connection)) = connections.get(rank as usize) else { return 0 };
        // The connection stays open as long as the handle.
        let copy = BorrowedFd::borrow_raw(connection.descriptor).try_clone_to_owned();
        let number = |error: std::io::Error| -error.raw_os_error().unwrap_or(1);
        into_descriptor.write(copy.map_or_else(number, IntoRawFd::into_raw_fd));
        write_text(&connection.host, host, capacity)
    }
}

/// Connects a sender and a receiver of messages. The sender passes a `listener`, a socket that
/// listens and is closed here; the receiver passes -1, and where the sender listens. Errors call
/// the two ranks `sender` and `receiver`, and the other rank's host `other_host`. It ends early if
/// `is_ended` becomes another number than 0, or if the other rank closes `watched`, a connection to
/// it; it may be -1.
///
/// # Safety
/// As `open`. The texts are strings that end with 0, `key` is 32 bytes, `watched` is negative or
/// a file descriptor that stays open, and `is_ended` is a number that only atomic stores change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_pair(
    sender: u32,
    receiver: u32,
    listener: i32,
    host: *const c_char,
    port: u16,
    key: *const u8,
    other_host: *const c_char,
    timeout_ms: u64,
    watched: i32,
    is_ended: *mut i32,
    is_canceled: Option<Question>,
    into: *mut *mut Handle,
) -> i32 {
    // SAFETY: the caller vouches for all of them, and the place of the number is checked.
    let connect = |listener: Option<TcpListener>| unsafe {
        check_place(is_ended)?;
        let (is_ended, watched) = (AtomicI32::from_ptr(is_ended), watched);
        let end = || {
            let has_closed = || watched >= 0 && has_closed(BorrowedFd::borrow_raw(watched));
            let is_ended = is_ended.load(Ordering::SeqCst) != 0;
            if is_ended { Some(End::Canceled) } else { has_closed().then_some(End::Lost) }
        };
        let no_address = || Failure::argument("the host has no address");
        let address = || (text(host)?, port).to_socket_addrs().map_err(Failure::argument);
        let meeting = match listener {
            Some(listener) => Meeting::At(listener),
            None => Meeting::To(address()?.next().ok_or_else(no_address)?),
        };
        let pair = Pair {
            names: [sender, receiver],
            host: text(other_host)?.to_owned(),
            meeting,
            key: bytes(key, 32)?.try_into().map_err(Failure::argument)?,
            timeout: Duration::from_millis(timeout_ms),
        };
        Ok(connect_pair(pair, &end)?)
    };
    // SAFETY: the caller vouches for them.
    unsafe { open(into, listener, is_canceled, connect) }
}

/// Whether the other end has closed a connection, although there may be more to read.
pub(crate) fn has_closed(connection: BorrowedFd<'_>) -> bool {
    let closed = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut polled = [PollFd::from_borrowed_fd(connection, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(closed)
}

/// A message that is expected or, after `mpienv_torch_next`, the one that is next.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// In bytes.
    pub length: u64,
    pub tag: u32,
    /// [`NONE`] if no message has come.
    pub kind: u16,
    /// 1 if it was the expected message, and was received.
    pub is_received: u8,
}

/// The kind of a message that has not come.
pub(crate) const NONE: u16 = u16::MAX;

/// Waits for the next message, for at most `longest_ms`, and writes which it is. It is also
/// received if it is the one that `next` says before. If `longest_ms` is 0, it does not wait, and
/// the group goes on if no message has come.
///
/// # Safety
/// As `run`; `next` is a message, and `values` are as many bytes as it says before, which nothing
/// else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_next(
    handle: *const Handle,
    longest_ms: u64,
    values: *mut u8,
    next: *mut Next,
) -> i32 {
    let receive = |group: &mut Group| {
        check_place(next)?;
        if longest_ms == 0 && !group.has_tagged(SENDER)? {
            // SAFETY: the place was checked.
            unsafe { next.write(Next { length: 0, tag: 0, kind: NONE, is_received: 0 }) };
            return Ok(0);
        }
        let longest = Duration::from_millis(longest_ms);
        let Announced { tag, kind, count } = group.next_tagged(SENDER, longest)?;
        let too_many = || Failure::argument(format!("{count} {} are too many", kind.name()));
        let length = count.checked_mul(kind.size() as u64).ok_or_else(too_many)?;
        // SAFETY: the place was checked, and the caller vouches for the message and the bytes.
        unsafe {
            let found = Next { length, tag, kind: number_of(kind), is_received: 1 };
            let is_received = Next { is_received: 1, ..*next } == found;
            if is_received {
                let values = bytes_mut(values, length as usize)?;
                group.receive_tagged(kind, values, SENDER, tag)?;
            }
            next.write(Next { is_received: is_received.into(), ..found });
        }
        Ok(0)
    };
    // SAFETY: the caller vouches for the handle.
    unsafe { run(handle, receive) }
}

/// Closes the connections of a group or a pair in a forked process, which has copies of them: they
/// would keep the other ranks from seeing that the parent has ended. Their numbers stay taken, so
/// that nothing else is closed later in their place. It takes no lock, which a thread that was not
/// forked may have.
///
/// # Safety
/// `handle` is as for `run`, but the process is a forked one, and never closes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_release(handle: *const Handle) {
    // SAFETY: the caller vouches for the handle.
    let Some(handle) = (unsafe { handle.as_ref() }) else { return };
    let Ok(nothing) = File::open("/dev/null") else { return };
    for Connection { descriptor, .. } in handle.connections.iter().flatten() {
        // SAFETY: it is open, only the handle uses it, and it does not get closed here.
        let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(*descriptor) });
        // If it fails, the connection stays open as before.
        let _ = rustix::io::dup3(&nothing, &mut place, rustix::io::DupFlags::CLOEXEC);
    }
}
