//! The C function for what the ranks of a group do together.

use std::ffi::c_char;
use std::fmt;
use std::time::Duration;

use mpienv_collective::seam::{Begun, ElementKind, Numbers, built_number, type_number};
use mpienv_collective::{Group, Reduction};

use crate::memory::{bytes_apart, check_place, pieces, places, text};
use crate::messages::{RECEIVER, SENDER};
use crate::{Failure, Handle, run};

/// What a call is about. Its buffers follow: those that it reads, and then those that it writes.
///
/// A rank that is negative is none.
///
/// | call | `by` | `root` | `other` | reads | writes |
/// | --- | --- | --- | --- | --- | --- |
/// | `reduce` | the reduction | gets the result, or all do | | | the values, which the result replaces |
/// | `begin_reduce` | the reduction | | how many microseconds to wait for the other ranks, once or twice | | the values |
/// | `end_reduce` | the reduction | | | | the values |
/// | `reduce_scatter` | the reduction | | | the values | this rank's part |
/// | `broadcast` | | has the values | | | the values |
/// | `gather` | | gets the values, or all do | | the values | those of each rank, or nothing |
/// | `scatter` | | sends the parts, or all do | | a part for each rank, or nothing | a part of each rank that sends |
/// | `pass` | | gets what is sent | sends what is received | the values | the values |
/// | `barrier` | | | | | |
/// | `agree` | what the caller builds of other calls | what else the ranks must agree on | the count of the values | | |
/// | `send`, in a pair | | | the tag | the values | |
/// | `receive`, in a pair | | | the tag | | the values |
///
/// `begin_reduce` reduces to all ranks and returns 0, or [`WAITS`] if other ranks have not come.
/// Then `end_reduce` with the same values is the next call. It returns [`REFUSED`] if the group
/// only has `reduce` for as many values.
///
/// `send` returns once the receiver has begun to receive. If the next message has not the tag, type
/// and length that `receive` has, both ranks get an error.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The number of the type that travels and, in the byte above, that of the type that the caller
    /// means.
    pub kind: u64,
    pub root: i64,
    pub other: i64,
    /// How many buffers the call reads.
    pub sent: usize,
    /// How many buffers the call writes.
    pub received: usize,
}

/// What `begin_reduce` returns if it has not reduced, and has not failed.
pub(crate) const WAITS: i32 = -1;
pub(crate) const REFUSED: i32 = -2;

/// Makes a call by its name.
///
/// # Safety
/// As `run`. `name` is a string that ends with 0, and `by` too unless it is null. `request` is
/// followed by as many buffers as it says, and nothing else uses these meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpienv_torch_call(
    handle: *const Handle,
    name: *const c_char,
    by: *const c_char,
    request: *const Request,
) -> i32 {
    // SAFETY: the caller vouches for the handle, the texts, the request and its buffers.
    unsafe {
        run(handle, |group| {
            check_place(request)?;
            let (list, request) = (request.add(1).cast(), &*request);
            let ((kind, meant), counts) = (typed(request.kind)?, [request.sent, request.received]);
            let (sent, into) = pieces(list, counts, group.size() as usize, kind)?;
            let sent: Vec<_> =
                sent.iter().map(|piece| bytes_apart(*piece, into)).collect::<Result<_, _>>()?;
            let sent: Vec<&[u8]> = sent.iter().map(|bytes| &**bytes).collect();
            let (name, by) = (text(name)?, if by.is_null() { "" } else { text(by)? });
            group.mean(meant)?;
            make(group, (name, by, kind), request, &sent, &mut places(into)?)
        })
    }
}

fn make(
    group: &mut Group,
    (name, by, kind): (&str, &str, ElementKind),
    &Request { root, other, .. }: &Request,
    sent: &[&[u8]],
    received: &mut [&mut [u8]],
) -> Result<i32, Failure> {
    let (size, [reads, writes]) = (group.size() as usize, [sent.len(), received.len()]);
    let is_list = |count: usize| count == 0 || count == size;
    let lengths =
        sent.iter().map(|bytes| bytes.len()).chain(received.iter().map(|into| into.len()));
    let [shortest, longest] = [lengths.clone().min(), lengths.max()].map(Option::unwrap_or_default);
    let refuse = |text: String| Err(Failure::argument(text));
    match (name, sent, received) {
        ("reduce_scatter", [values], [part]) => {
            if part.len().checked_mul(size) != Some(values.len()) {
                let [all, part] = [values.len(), part.len()];
                return refuse(format!("{all} bytes are not {size} parts of {part}"));
            }
            let (part, by) = reduced(part, kind, by)?;
            group.reduce_scatter_untyped(values, part, by)?;
        }
        ("pass", [values], [into]) => {
            let (send, receive) = (rank(root)?, rank(other)?);
            let receive = receive.map(|from| (&mut **into, from));
            group.pass_untyped(kind, send.map(|to| (*values, to)), receive)?;
        }
        _ if shortest != longest => {
            return refuse(format!("buffers of {shortest} and {longest} bytes"));
        }
        ("reduce", [], [values]) => {
            let (values, by) = reduced(values, kind, by)?;
            group.reduce_untyped(values, by, rank(root)?)?;
        }
        ("begin_reduce", [], [values]) => {
            let (values, by) = reduced(values, kind, by)?;
            return Ok(
                match group.begin_reduce(values, by, Duration::from_micros(number(other)?))? {
                    Begun::Done => 0,
                    Begun::Waits => WAITS,
                    Begun::Refused => REFUSED,
                },
            );
        }
        ("end_reduce", [], [values]) => {
            let (values, by) = reduced(values, kind, by)?;
            group.end_reduce(values, by)?;
        }
        ("broadcast", [], [values]) => group.broadcast_untyped(kind, values, number(root)?)?,
        ("gather", [values], all) if is_list(writes) => {
            group.gather_untyped(kind, values, all, rank(root)?)?;
        }
        ("scatter", parts, into) if is_list(reads) && writes == if root < 0 { size } else { 1 } => {
            group.scatter_untyped(kind, parts, into, rank(root)?)?;
        }
        ("barrier", [], []) => group.barrier()?,
        ("agree", [], []) => {
            let no_call = || Failure::argument(format!("no call is called {by:?}"));
            let built = built_number(by).ok_or_else(no_call)?;
            group.agree(built, kind, number(other)?, number(root)?)?;
        }
        ("send", [values], []) => group.send_tagged(kind, values, RECEIVER, number(other)?)?,
        ("receive", [], [into]) => group.receive_tagged(kind, into, SENDER, number(other)?)?,
        _ => return refuse(format!("no call {name} reads {reads} buffers and writes {writes}")),
    }
    Ok(0)
}

/// The numbers to reduce, and how.
fn reduced<'a>(
    bytes: &'a mut [u8],
    kind: ElementKind,
    by: &str,
) -> Result<(Numbers<'a>, Reduction), Failure> {
    let by = match by {
        "sum" => Reduction::Sum,
        "mean" => Reduction::Mean,
        "min" => Reduction::Min,
        "max" => Reduction::Max,
        "product" => Reduction::Product,
        _ => return Err(Failure::argument(format!("no reduction is called {by:?}"))),
    };
    let misaligned = || Failure::argument(format!("the {} are not aligned in memory", kind.name()));
    Ok((Numbers::from_bytes(kind, bytes).ok_or_else(misaligned)?, by))
}

fn number<N: TryFrom<i64, Error: fmt::Display>>(number: i64) -> Result<N, Failure> {
    number.try_into().map_err(Failure::argument)
}

/// A rank, or none if it is negative.
fn rank(rank: i64) -> Result<Option<u32>, Failure> {
    if rank < 0 { Ok(None) } else { number(rank).map(Some) }
}

/// The type that travels, and the number of the type that the caller means, in the byte above.
fn typed(number: u64) -> Result<(ElementKind, u8), Failure> {
    let no_type = || Failure::argument(format!("no type has the number {number}"));
    let [travels, meant] = u16::try_from(number).map_err(|_| no_type())?.to_le_bytes();
    let kind = ElementKind::ALL.get(usize::from(travels)).copied();
    Ok((kind.ok_or_else(no_type)?, meant))
}

/// The number of a type that travels.
pub(crate) fn number_of(kind: ElementKind) -> u16 {
    ElementKind::ALL.iter().take_while(|&&other| other != kind).count() as u16
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
    let travels = ElementKind::ALL.iter().find(|kind| kind.name() == name);
    match (travels, type_number(name)) {
        (Some(&travels), _) => number_of(travels).into(),
        (None, Some(meant)) => i32::from(meant) << 8,
        (None, None) => -1,
    }
}
