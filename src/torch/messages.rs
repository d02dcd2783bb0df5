//! The C functions for messages from one rank to another, which have connections of their own.
//!
//! The other functions of `abi` take such a pair as they take a group: to cancel, describe and
//! close it.
#![expect(unsafe_code, reason = "a C ABI takes addresses")]

use std::ffi::c_char;
use std::net::ToSocketAddrs as _;
use std::os::fd::{AsFd as _, BorrowedFd, IntoRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use mpienv_collective::seam::{
    Announced, Connection, ElementKind, End, Meeting, Pair, Tagged as _, connect_pair,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::abi::{Handle, call, kind, listener_of, write_text};
use crate::failure::Failure;
use crate::memory::{bytes, bytes_mut, check_place, text};

/// The sender and the receiver in the group of the two.
const SENDER: u32 = 0;
const RECEIVER: u32 = 1;

/// Fails unless as many bytes are whole numbers.
fn check_length(length: usize, kind: ElementKind) -> Result<(), Failure> {
    if length.is_multiple_of(kind.size()) && isize::try_from(length).is_ok() {
        return Ok(());
    }
    Err(Failure::argument(format!("{length} bytes are not {}", kind.name())))
}

/// Duplicates the connection of a group to a rank. The copy belongs to the caller, who can wait for
/// the rank to close the connection. Writes the rank's host, as errors have it, and
/// returns how many bytes that takes. `into_descriptor` becomes 0 if there is no such connection, and
/// the negative number of the system's error if it cannot be duplicated.
///
/// # Safety
/// As [`call`], but another call may run; `host` takes `capacity` bytes, and `into_descriptor` a
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
/// `is_canceled` becomes another number than 0, or if the other rank closes `watched`, a connection
/// to it; it may be -1.
///
/// # Safety
/// The texts are strings that end with 0, `key` is 32 bytes, `into` takes an address, `listener` is
/// negative or a file descriptor that the caller gives away, `watched` is negative or a file
/// descriptor that stays open, and `is_canceled` is a number that only atomic stores change.
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
    is_canceled: *mut i32,
    into: *mut *mut Handle,
) -> i32 {
    // SAFETY: the caller gives it away.
    let listener = (listener >= 0).then(|| unsafe { listener_of(listener) });
    let connected = || -> Result<Handle, Failure> {
        check_place(into)?;
        check_place(is_canceled)?;
        // SAFETY: the caller passes strings, a key, a number and a descriptor.
        let (host, other_host, key, is_canceled, watched) = unsafe {
            (
                text(host)?,
                text(other_host)?.to_owned(),
                bytes(key, 32)?,
                AtomicI32::from_ptr(is_canceled),
                (watched >= 0).then(|| BorrowedFd::borrow_raw(watched)),
            )
        };
        let meeting = match listener {
            Some(listener) => Meeting::At(listener),
            None => {
                let mut found = (host, port).to_socket_addrs().map_err(Failure::argument)?;
                let no_address = || Failure::argument(format!("{host} has no address"));
                Meeting::To(found.next().ok_or_else(no_address)?)
            }
        };
        let key: &[u8; 32] = key.try_into().map_err(Failure::argument)?;
        let timeout = Duration::from_millis(timeout_ms);
        let pair = Pair { names: [sender, receiver], host: other_host, meeting, key, timeout };
        let end = || match watched {
            _ if is_canceled.load(Ordering::SeqCst) != 0 => Some(End::Canceled),
            Some(watched) if has_closed(watched) => Some(End::Lost),
            _ => None,
        };
        Ok(Handle::new(connect_pair(pair, &end)?))
    };
    match connected() {
        Ok(handle) => {
            // SAFETY: the place was checked.
            unsafe { into.write(Box::into_raw(Box::new(handle))) };
            0
        }
        Err(failure) => failure.keep(),
    }
}

/// Whether the other end has closed a connection, although there may be more to read.
fn has_closed(connection: BorrowedFd<'_>) -> bool {
    let closed = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut polled = [PollFd::from_borrowed_fd(connection, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(closed)
}

/// Sends a message. Returns once the receiver has begun to receive it.
///
/// # Safety
/// As [`call`]; `values` are `length` bytes that do not change meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_send(
    handle: *const Handle,
    values: *const u8,
    length: usize,
    kind_number: u8,
    tag: u32,
) -> i32 {
    // SAFETY: the caller vouches for the handle and the numbers.
    unsafe {
        call(handle, |group, _| {
            let kind = kind(kind_number)?;
            check_length(length, kind)?;
            Ok(group.send_tagged(kind, bytes(values, length)?, RECEIVER, tag)?)
        })
    }
}

/// Waits for the next message, for at most `longest_ms`. Writes its tag, its type's number, and how
/// many bytes it has. If the message has the tag and the type that these places have before, and
/// `length` bytes, it is also received, and `is_received` becomes 1, or else 0.
///
/// # Safety
/// As [`call`]; the places take numbers, and `values` are `length` bytes that nothing else uses
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_next(
    handle: *const Handle,
    longest_ms: u64,
    values: *mut u8,
    length: usize,
    into_tag: *mut u32,
    into_kind: *mut u8,
    into_length: *mut u64,
    is_received: *mut u8,
) -> i32 {
    // SAFETY: the caller vouches for the handle and the places.
    unsafe {
        call(handle, |group, _| {
            check_place(into_tag)?;
            check_place(into_kind)?;
            check_place(into_length)?;
            check_place(is_received)?;
            let longest = Duration::from_millis(longest_ms);
            let Announced { tag, kind, count } = group.next_tagged(SENDER, longest)?;
            let number = ElementKind::ALL.iter().position(|&other| other == kind);
            let number = number.and_then(|number| u8::try_from(number).ok());
            let too_many = || Failure::argument(format!("{count} {} are too many", kind.name()));
            let number = number.ok_or_else(too_many)?;
            let found = count.checked_mul(kind.size() as u64).ok_or_else(too_many)?;
            let expected = (into_tag.read(), into_kind.read(), length as u64);
            let is_expected = (tag, number, found) == expected;
            if is_expected {
                group.receive_tagged(kind, bytes_mut(values, length)?, SENDER, tag)?;
            }
            into_tag.write(tag);
            into_kind.write(number);
            into_length.write(found);
            is_received.write(is_expected.into());
            Ok(())
        })
    }
}

/// Receives the next message. If its tag, its type or its length is another one, both ranks get an
/// error.
///
/// # Safety
/// As [`call`]; `values` are `length` bytes that nothing else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_receive(
    handle: *const Handle,
    values: *mut u8,
    length: usize,
    kind_number: u8,
    tag: u32,
) -> i32 {
    // SAFETY: the caller vouches for the handle and the numbers.
    unsafe {
        call(handle, |group, _| {
            let kind = kind(kind_number)?;
            check_length(length, kind)?;
            Ok(group.receive_tagged(kind, bytes_mut(values, length)?, SENDER, tag)?)
        })
    }
}

/// Closes the connections of a group or a pair in a forked process, which has copies of them: they
/// would keep the other ranks from seeing that the parent has ended. Their numbers stay taken, so
/// that nothing else is closed later in their place. It takes no lock, which a thread that was not
/// forked may have.
///
/// # Safety
/// `handle` is as for [`call`], but the process is a forked one, and never closes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_release(handle: *const Handle) {
    // SAFETY: the caller vouches for the handle.
    let Some(handle) = (unsafe { handle.as_ref() }) else { return };
    let Ok(nothing) = std::fs::File::open("/dev/null") else { return };
    for Connection { descriptor, .. } in handle.connections.iter().flatten() {
        // SAFETY: the number is that of a connection, which only the handle uses.
        unsafe { replace(*descriptor, nothing.as_fd()) };
    }
}

/// # Safety
/// The descriptor is open, and its owner does not read from it or write to it any longer.
unsafe fn replace(descriptor: RawFd, by: BorrowedFd<'_>) {
    use std::os::fd::{FromRawFd as _, OwnedFd};
    // SAFETY: it is open, and does not get closed here.
    let mut place = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(descriptor) });
    // If it fails, the connection stays open as before.
    let _ = rustix::io::dup3(by, &mut place, rustix::io::DupFlags::CLOEXEC);
}

#[cfg(test)]
mod tests;
