//! The C functions. They return 0, or a code after which `mpienv_torch_error` has the reason.
#![expect(unsafe_code, reason = "a C ABI takes addresses")]

use std::ffi::c_char;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mpienv_collective::seam::{
    Connection, ElementKind, Numbers, Untyped as _, built_number, connections_of, type_number,
};
use mpienv_collective::{Canceller, Group, Reduction};

use crate::connect::{Meeting, connect};
use crate::failure::Failure;
use crate::memory::{Piece, Sent, bytes_mut, check_place, pieces, places, text};

/// A group, as the caller holds it.
pub struct Handle {
    group: Mutex<Group>,
    canceller: Canceller,
    size: usize,
    /// The connections to the other ranks, outside of the lock.
    pub(crate) connections: Vec<Option<Connection>>,
}

impl Handle {
    pub(crate) fn new(group: Group) -> Handle {
        let (canceller, size) = (group.canceller(), group.size() as usize);
        let connections = connections_of(&group);
        Handle { group: Mutex::new(group), canceller, size, connections }
    }
}

/// The reductions, each at the index that is its number.
const REDUCTIONS: [(&str, Reduction); 5] = [
    ("sum", Reduction::Sum),
    ("mean", Reduction::Mean),
    ("min", Reduction::Min),
    ("max", Reduction::Max),
    ("product", Reduction::Product),
];

fn reduction(number: u8) -> Result<Reduction, Failure> {
    let found = REDUCTIONS.get(usize::from(number)).map(|&(_, reduction)| reduction);
    found.ok_or_else(|| Failure::argument(format!("no reduction has the number {number}")))
}

pub(crate) fn kind(number: u8) -> Result<ElementKind, Failure> {
    let found = ElementKind::ALL.get(usize::from(number)).copied();
    found.ok_or_else(|| Failure::argument(format!("no type has the number {number}")))
}

/// The type that travels, and the number of the type that the caller means, in the byte above.
fn typed(number: u16) -> Result<(ElementKind, u8), Failure> {
    let [travels, meant] = number.to_le_bytes();
    Ok((kind(travels)?, meant))
}

/// A root, or none if it is negative.
fn root(root: i64) -> Result<Option<u32>, Failure> {
    match root {
        ..0 => Ok(None),
        _ => u32::try_from(root).map(Some).map_err(Failure::argument),
    }
}

fn length(count: usize, kind: ElementKind) -> Result<usize, Failure> {
    let length = count.checked_mul(kind.size()).filter(|&length| isize::try_from(length).is_ok());
    length.ok_or_else(|| Failure::argument(format!("{count} {} are too many", kind.name())))
}

fn numbers(kind: ElementKind, bytes: &mut [u8]) -> Result<Numbers<'_>, Failure> {
    Numbers::from_bytes(kind, bytes)
        .ok_or_else(|| Failure::argument(format!("the {} are not aligned in memory", kind.name())))
}

/// Makes a call of a group, and keeps its failure.
///
/// # Safety
/// `handle` comes from `mpienv_torch_connect` and has not been closed.
pub(crate) unsafe fn call(
    handle: *const Handle,
    make: impl FnOnce(&mut Group, usize) -> Result<(), Failure>,
) -> i32 {
    // SAFETY: the caller vouches for the handle.
    let Some(handle) = (unsafe { handle.as_ref() }) else {
        return Failure::argument("the group is closed").keep();
    };
    let mut group = handle.group.lock().unwrap_or_else(PoisonError::into_inner);
    match make(&mut group, handle.size) {
        Ok(()) => 0,
        Err(failure) => failure.keep(),
    }
}

/// Connects a group. Only on rank 0, `listener` is a socket that listens; it is closed here.
///
/// # Safety
/// `host` and `secret` are strings that end with 0, `into` takes an address, and `listener` is
/// negative or a file descriptor that the caller gives away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_connect(
    rank: u32,
    size: u32,
    listener: i32,
    host: *const c_char,
    port: u16,
    secret: *const c_char,
    timeout_ms: u64,
    into: *mut *mut Handle,
) -> i32 {
    // SAFETY: the caller gives it away.
    let listener = (listener >= 0).then(|| unsafe { listener_of(listener) });
    let connected = || {
        check_place(into)?;
        // SAFETY: the caller passes strings.
        let (host, secret) = unsafe { (text(host)?, text(secret)?) };
        let timeout = Duration::from_millis(timeout_ms);
        connect(Meeting { rank, size, listener, host, port, secret, timeout })
    };
    match connected() {
        Ok(group) => {
            // SAFETY: the place was checked.
            unsafe { into.write(Box::into_raw(Box::new(Handle::new(group)))) };
            0
        }
        Err(failure) => failure.keep(),
    }
}

pub(crate) unsafe fn listener_of(descriptor: i32) -> TcpListener {
    use std::os::fd::FromRawFd as _;
    // SAFETY: the caller gives the descriptor away.
    unsafe { TcpListener::from_raw_fd(descriptor) }
}

/// Reduces numbers in place: on all ranks, or on `root` unless it is negative.
///
/// # Safety
/// As [`call`]; `values` are `count` numbers that nothing else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_reduce(
    handle: *const Handle,
    values: *mut u8,
    count: usize,
    kind_number: u16,
    by: u8,
    root_or_all: i64,
) -> i32 {
    // SAFETY: the caller vouches for the handle and the numbers.
    unsafe {
        call(handle, |group, _| {
            let (kind, meant) = typed(kind_number)?;
            let bytes = bytes_mut(values, length(count, kind)?)?;
            let by = reduction(by)?;
            group.mean(meant)?;
            Ok(group.reduce_untyped(numbers(kind, bytes)?, by, root(root_or_all)?)?)
        })
    }
}

/// Reduces `count` numbers and writes this rank's part of the result, `part_count` numbers. Fails
/// unless `count` is as many for each rank.
///
/// # Safety
/// As [`call`]; `values` are `count` numbers and `part` are `part_count`, which nothing else uses
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_reduce_scatter(
    handle: *const Handle,
    values: *const u8,
    count: usize,
    part: *mut u8,
    part_count: usize,
    kind_number: u16,
    by: u8,
) -> i32 {
    // SAFETY: the caller vouches for the handle and the numbers.
    unsafe {
        call(handle, |group, size| {
            let (kind, meant) = typed(kind_number)?;
            let place = Piece { address: part, length: length(part_count, kind)? };
            if part_count.checked_mul(size) != Some(count) {
                let text = format!("{count} numbers are not {size} parts of {part_count}");
                return Err(Failure::argument(text));
            }
            let length = length(count, kind)?;
            let values = Sent::apart_from(values, length, &[place])?;
            let part = numbers(kind, bytes_mut(part, place.length)?)?;
            let by = reduction(by)?;
            group.mean(meant)?;
            Ok(group.reduce_scatter_untyped(values.as_slice(), part, by)?)
        })
    }
}

/// Replaces the numbers of all ranks with those of `root`.
///
/// # Safety
/// As [`call`]; `values` are `count` numbers that nothing else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_broadcast(
    handle: *const Handle,
    values: *mut u8,
    count: usize,
    kind_number: u16,
    root: u32,
) -> i32 {
    // SAFETY: the caller vouches for the handle and the numbers.
    unsafe {
        call(handle, |group, _| {
            let (kind, meant) = typed(kind_number)?;
            let bytes = bytes_mut(values, length(count, kind)?)?;
            group.mean(meant)?;
            Ok(group.broadcast_untyped(kind, bytes, root)?)
        })
    }
}

/// Brings the numbers of every rank to all ranks, or to `root` unless it is negative. Fails unless
/// `all` is null, with a count of 0, or has a buffer of `count` numbers for each rank.
///
/// # Safety
/// As [`call`]; `values` are `count` numbers. `all` is null on a rank that gets none; otherwise, it
/// has `all_count` buffers that nothing else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_gather(
    handle: *const Handle,
    values: *const u8,
    count: usize,
    all: *const Piece,
    all_count: usize,
    kind_number: u16,
    root_or_all: i64,
) -> i32 {
    // SAFETY: the caller vouches for the handle and the numbers.
    unsafe {
        call(handle, |group, size| {
            let ((kind, meant), root) = (typed(kind_number)?, root(root_or_all)?);
            let length = length(count, kind)?;
            let all = pieces(all, all_count, size, length)?;
            let values = Sent::apart_from(values, length, all)?;
            let mut all = places(all)?;
            group.mean(meant)?;
            Ok(group.gather_untyped(kind, values.as_slice(), &mut all, root)?)
        })
    }
}

/// Every rank, or `root` unless it is negative, sends a part to each rank. Fails unless the lists
/// have a buffer of `count` numbers for each rank; `parts` may be null, with a count of 0.
///
/// # Safety
/// As [`call`]; `parts` is null on a rank that sends none; otherwise, it has `parts_count` buffers.
/// `into` has `into_count` buffers, one for each rank that sends, which nothing else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_scatter(
    handle: *const Handle,
    parts: *const Piece,
    parts_count: usize,
    into: *const Piece,
    into_count: usize,
    count: usize,
    kind_number: u16,
    root_or_all: i64,
) -> i32 {
    // SAFETY: the caller vouches for the handle and the numbers.
    unsafe {
        call(handle, |group, size| {
            let ((kind, meant), root) = (typed(kind_number)?, root(root_or_all)?);
            let length = length(count, kind)?;
            let senders = if root.is_some() { 1 } else { size };
            let into = pieces(into, into_count, senders, length)?;
            let sent: Vec<Sent<'_>> = pieces(parts, parts_count, size, length)?
                .iter()
                .map(|part| Sent::apart_from(part.address, length, into))
                .collect::<Result<_, _>>()?;
            let sent: Vec<&[u8]> = sent.iter().map(Sent::as_slice).collect();
            let mut into = places(into)?;
            if into.is_empty() {
                return Err(Failure::argument("no buffer to receive into"));
            }
            group.mean(meant)?;
            Ok(group.scatter_untyped(kind, &sent, &mut into, root)?)
        })
    }
}

/// Sends numbers to rank `to` and receives numbers from rank `from`, or does one of both: a
/// negative rank stands for none.
///
/// # Safety
/// As [`call`]; `sent` and `received` are as many numbers, which nothing else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_pass(
    handle: *const Handle,
    sent: *const u8,
    sent_count: usize,
    to: i64,
    received: *mut u8,
    received_count: usize,
    from: i64,
    kind_number: u16,
) -> i32 {
    // SAFETY: the caller vouches for the handle and the numbers.
    unsafe {
        call(handle, |group, _| {
            let (kind, meant) = typed(kind_number)?;
            let place = Piece { address: received, length: length(received_count, kind)? };
            let sent = Sent::apart_from(sent, length(sent_count, kind)?, &[place])?;
            let received = bytes_mut(received, place.length)?;
            let send = root(to)?.map(|to| (sent.as_slice(), to));
            let receive = root(from)?.map(|from| (received, from));
            group.mean(meant)?;
            Ok(group.pass_untyped(kind, send, receive)?)
        })
    }
}

/// Returns once every rank has made this call.
///
/// # Safety
/// As [`call`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_barrier(handle: *const Handle) -> i32 {
    // SAFETY: the caller vouches for the handle.
    unsafe { call(handle, |group, _| Ok(group.barrier()?)) }
}

/// Compares a call that the caller makes of others before it makes these: what it is by its number,
/// how many numbers of which type it has, and what else the ranks must agree on.
///
/// # Safety
/// As [`call`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_agree(
    handle: *const Handle,
    built: u8,
    count: u64,
    kind_number: u16,
    root: u32,
) -> i32 {
    // SAFETY: the caller vouches for the handle.
    unsafe {
        call(handle, |group, _| {
            let (kind, meant) = typed(kind_number)?;
            group.mean(meant)?;
            Ok(group.agree(built, kind, count, root)?)
        })
    }
}

/// Makes the call that runs now, and all later ones, fail.
///
/// # Safety
/// As [`call`].
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
/// As [`call`]; no call runs, and none is made afterwards.
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
/// As [`call`]; `into` takes `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_describe(
    handle: *const Handle,
    into: *mut u8,
    capacity: usize,
) -> usize {
    // SAFETY: the caller vouches for the handle and the place.
    unsafe {
        let text = handle
            .as_ref()
            .map(|handle| handle.group.lock().unwrap_or_else(PoisonError::into_inner).describe());
        write_text(&text.unwrap_or_default(), into, capacity)
    }
}

/// Writes why this thread's last call that failed has failed, and returns how many bytes that
/// takes. `rank` becomes the rank of the group that the text names, or -1.
///
/// # Safety
/// `into` takes `capacity` bytes, and `rank` a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_error(
    into: *mut u8,
    capacity: usize,
    rank: *mut i64,
) -> usize {
    Failure::with_last(|text, named| {
        if check_place(rank).is_ok() {
            // SAFETY: the place was checked.
            unsafe { rank.write(named.map_or(-1, i64::from)) };
        }
        // SAFETY: the caller vouches for the place.
        unsafe { write_text(text, into, capacity) }
    })
}

/// # Safety
/// `into` takes `capacity` bytes.
pub(crate) unsafe fn write_text(text: &str, into: *mut u8, capacity: usize) -> usize {
    let fits = text.len().min(capacity);
    // SAFETY: the caller vouches for the place.
    if let Ok(place) = unsafe { bytes_mut(into, fits) } {
        place.copy_from_slice(&text.as_bytes()[..fits]);
    }
    text.len()
}

/// The number of a type by its name in Rust, or by the caller's if it travels as another, whose
/// number is then to be added. -1 if there is none.
///
/// # Safety
/// `name` is null, or a string that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_kind(name: *const c_char) -> i32 {
    // SAFETY: the caller passes a string.
    let Ok(name) = (unsafe { text(name) }) else { return -1 };
    match number(ElementKind::ALL.iter().position(|kind| kind.name() == name)) {
        ..0 => type_number(name).map_or(-1, |meant| i32::from(meant) << 8),
        kind => kind,
    }
}

/// The number of a reduction by its name, or -1.
///
/// # Safety
/// `name` is null, or a string that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_reduction(name: *const c_char) -> i32 {
    // SAFETY: the caller passes a string.
    let Ok(name) = (unsafe { text(name) }) else { return -1 };
    number(REDUCTIONS.iter().position(|&(reduction, _)| reduction == name))
}

/// The number of a call that is made of others, by its name, or -1.
///
/// # Safety
/// `name` is null, or a string that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_built(name: *const c_char) -> i32 {
    // SAFETY: the caller passes a string.
    let Ok(name) = (unsafe { text(name) }) else { return -1 };
    built_number(name).map_or(-1, i32::from)
}

fn number(index: Option<usize>) -> i32 {
    index.and_then(|index| i32::try_from(index).ok()).unwrap_or(-1)
}
