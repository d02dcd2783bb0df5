//! The library that mpienv's backend for PyTorch loads: groups of ranks behind a C ABI.
//!
//! The Python package `mpienv_rs` brings it and calls it through `ctypes`, so that it depends
//! neither on a version of Python nor on PyTorch's C++. It does not know PyTorch: it gets
//! addresses, lengths and types. The order of calls, threads and PyTorch's own types are Python's.
//!
//! The functions return 0, or a positive code after which `mpienv_torch_error` has the reason.
//! Those of this file are for a group from `mpienv_torch_connect` and a pair from
//! `mpienv_torch_pair` alike.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![expect(unsafe_code, reason = "a C ABI takes addresses")]

mod call;
mod memory;
mod messages;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ffi::c_char;
use std::fmt;
use std::net::TcpListener;
use std::os::fd::FromRawFd as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mpienv_collective::seam::Connection;
use mpienv_collective::{Backend, Canceller, CollectiveError, Group};
use mpienv_core::{ClusterInfo, ErrorKind, Host, Port};

use crate::memory::{bytes_mut, check_place, text};

/// A group, as the caller holds it.
pub struct Handle {
    group: Mutex<Group>,
    canceller: Canceller,
    /// The connections to the other ranks, outside of the lock.
    connections: Vec<Option<Connection>>,
}

/// Why a call failed.
#[derive(Debug)]
struct Failure {
    code: i32,
    text: String,
    /// The rank of the group that the text names.
    rank: Option<u32>,
}

thread_local! {
    /// The failure of this thread's last call that failed.
    static LAST: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

impl Failure {
    fn new(kind: ErrorKind, reason: impl fmt::Display, rank: Option<u32>) -> Failure {
        let code = match kind {
            ErrorKind::Lost => 2,
            ErrorKind::TimedOut => 3,
            ErrorKind::Canceled => 4,
            // The system or the network does not allow it.
            ErrorKind::Environment => 5,
            // The call or its arguments are wrong, on this rank or another.
            _ => 1,
        };
        Failure { code, text: reason.to_string(), rank }
    }

    fn argument(reason: impl fmt::Display) -> Failure {
        Failure::new(ErrorKind::Refused, reason, None)
    }
}

impl From<CollectiveError> for Failure {
    fn from(error: CollectiveError) -> Failure {
        Failure::new(error.kind(), &error, error.rank())
    }
}

/// The code of a result. This thread keeps a failure.
fn code(result: Result<i32, Failure>) -> i32 {
    result.unwrap_or_else(|failure| {
        let code = failure.code;
        LAST.set(Some(failure));
        code
    })
}

/// Makes a call of a group.
///
/// # Safety
/// `handle` is null, or from `mpienv_torch_connect` or `mpienv_torch_pair` and not yet closed.
unsafe fn run(handle: *const Handle, make: impl FnOnce(&mut Group) -> Result<i32, Failure>) -> i32 {
    // SAFETY: the caller vouches for the handle.
    code(match unsafe { handle.as_ref() } {
        Some(handle) => make(&mut handle.group.lock().unwrap_or_else(PoisonError::into_inner)),
        None => Err(Failure::argument("the group is closed")),
    })
}

/// What a call that waits in the process's main thread asks several times a second. Unless it
/// returns 0, the call is canceled.
///
/// Python runs the handlers of signals in its main thread, between two steps of the program. A call
/// is one step, so Ctrl-C would end it only when the other ranks have come. No other thread may
/// ask: Python ends a thread that enters it while it shuts down.
type Question = extern "C" fn() -> i32;

/// Connects a group, and writes its handle. A listener that the caller gives away, by a number that
/// is not negative, is closed here.
///
/// # Safety
/// `into` takes an address, `listener` is negative or a file descriptor, and the question stays as
/// long as the group.
unsafe fn open(
    into: *mut *mut Handle,
    listener: i32,
    is_canceled: Option<Question>,
    connect: impl FnOnce(Option<TcpListener>) -> Result<Group, Failure>,
) -> i32 {
    // SAFETY: the caller gives it away.
    let listener = (listener >= 0).then(|| unsafe { TcpListener::from_raw_fd(listener) });
    code(check_place(into).and_then(|()| connect(listener)).map(|group| {
        if let Some(is_canceled) = is_canceled {
            let is_main_thread = || rustix::thread::gettid() == rustix::process::getpid();
            group.ask_while_waiting(move || is_main_thread() && is_canceled() != 0);
        }
        let (canceller, connections) = (group.canceller(), group.connections());
        let handle = Handle { group: Mutex::new(group), canceller, connections };
        // SAFETY: the place was checked.
        unsafe { into.write(Box::into_raw(Box::new(handle))) };
        0
    }))
}

/// Connects a group, whose ranks meet at an address that PyTorch's store has carried. Only rank 0
/// passes a `listener`, a socket that listens there; it is closed here.
///
/// # Safety
/// As `open`; `host` and `secret` are strings that end with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_connect(
    rank: u32,
    size: u32,
    listener: i32,
    host: *const c_char,
    port: u16,
    secret: *const c_char,
    timeout_ms: u64,
    is_canceled: Option<Question>,
    into: *mut *mut Handle,
) -> i32 {
    let connect = |listener: Option<TcpListener>| {
        // SAFETY: the caller passes strings.
        let (host, secret) = unsafe { (text(host)?, text(secret)?) };
        if (rank, size) == (0, 1) {
            return Ok(Group::alone());
        }
        let vars = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", size.to_string()),
            ("MPIENV_TOKEN", secret.to_owned()),
        ];
        let info = ClusterInfo::from_vars(vars).map_err(Failure::argument)?;
        let host: Host = host.parse().map_err(Failure::argument)?;
        let port = Port::try_from(port).map_err(Failure::argument)?;
        let builder = Group::builder(&info)
            .quiet(true)
            .backend(Backend::SharedMemory)
            .timeout(Duration::from_millis(timeout_ms))
            .meet_at(host, port);
        let builder = match listener {
            Some(listener) => builder.listener(listener),
            None => builder,
        };
        Ok(builder.connect()?)
    };
    // SAFETY: the caller vouches for them.
    unsafe { open(into, listener, is_canceled, connect) }
}

/// Sets how long each later call waits for another rank.
///
/// # Safety
/// As `run`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_set_timeout(handle: *const Handle, timeout_ms: u64) -> i32 {
    let set = |group: &mut Group| {
        group.set_timeout(Duration::from_millis(timeout_ms));
        Ok(0)
    };
    // SAFETY: the caller vouches for the handle.
    unsafe { run(handle, set) }
}

/// Makes the call that runs now, and all later ones, fail.
///
/// # Safety
/// As `run`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_cancel(handle: *const Handle) {
    // SAFETY: the caller vouches for the handle.
    if let Some(handle) = unsafe { handle.as_ref() } {
        handle.canceller.cancel();
    }
}

/// Closes the group. In a forked process, this closes what the process has inherited.
///
/// # Safety
/// As `run`; no call runs, and none is made afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_close(handle: *mut Handle) {
    if !handle.is_null() {
        // SAFETY: it comes from a box, and the caller gives it away.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// Writes what carries the calls of a group, and returns how many bytes that takes.
///
/// # Safety
/// As `run`; `into` takes `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_describe(
    handle: *const Handle,
    into: *mut u8,
    capacity: usize,
) -> usize {
    let describe =
        |handle: &Handle| handle.group.lock().unwrap_or_else(PoisonError::into_inner).describe();
    // SAFETY: the caller vouches for the handle and the place.
    unsafe { write_text(&handle.as_ref().map(describe).unwrap_or_default(), into, capacity) }
}

/// Writes why this thread's last call that failed has failed, and returns how many bytes that
/// takes. Writes the rank that the text names, or -1.
///
/// # Safety
/// `into` takes `capacity` bytes, and `rank` a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_error(
    into: *mut u8,
    capacity: usize,
    rank: *mut i64,
) -> usize {
    LAST.with_borrow(|last| {
        let (text, named) = last.as_ref().map_or(("", None), |last| (&*last.text, last.rank));
        // SAFETY: the place of the rank was checked, and the caller vouches for that of the text.
        unsafe {
            if check_place(rank).is_ok() {
                rank.write(named.map_or(-1, i64::from));
            }
            write_text(text, into, capacity)
        }
    })
}

/// # Safety
/// `into` takes `capacity` bytes.
unsafe fn write_text(text: &str, into: *mut u8, capacity: usize) -> usize {
    let fits = text.len().min(capacity);
    // SAFETY: the caller vouches for the place.
    if let Ok(place) = unsafe { bytes_mut(into, fits) } {
        place.copy_from_slice(&text.as_bytes()[..fits]);
    }
    text.len()
}
