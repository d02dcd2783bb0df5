//! The C functions, as a program calls them.

use std::ffi::CString;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, IntoRawFd};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use std::{array, ptr, slice, thread};

use super::*;
use crate::call::*;
use crate::memory::Piece;
use crate::messages::*;

mod messages;
mod random;

/// Longer than any call takes on a machine under load.
const TIMEOUT_MS: u64 = 300_000;

/// A connected group, which may move to another thread.
#[derive(Clone, Copy)]
struct Connected(*mut Handle);

// SAFETY: the functions lock the group.
unsafe impl Send for Connected {}

/// The number of a type.
fn kind(name: &str) -> u16 {
    let name = CString::new(name).unwrap();
    // SAFETY: it is a string.
    u16::try_from(unsafe { mpienv_torch_kind(name.as_ptr()) }).unwrap()
}

/// The buffer of some numbers.
fn piece<T>(numbers: &mut [T]) -> Piece {
    Piece { address: numbers.as_mut_ptr().cast(), length: size_of_val(numbers) }
}

/// A request with its buffers.
fn request(kind: u16, [root, other]: [i64; 2], lists: [&[Piece]; 2]) -> Vec<u64> {
    let [sent, received] = lists.map(|list| list.len() as u64);
    let head = [kind.into(), root.cast_unsigned(), other.cast_unsigned(), sent, received];
    let buffers = lists.concat().into_iter();
    let buffers =
        buffers.flat_map(|piece| [piece.address.expose_provenance() as u64, piece.length as u64]);
    head.into_iter().chain(buffers).collect()
}

/// Makes a call; returns its code.
fn call(
    handle: *const Handle,
    (name, by): (&str, &str),
    kind: u16,
    ranks: [i64; 2],
    lists: [&[Piece]; 2],
) -> i32 {
    let [name, by] = [name, by].map(|text| CString::new(text).unwrap());
    let request = request(kind, ranks, lists);
    // SAFETY: these are strings and a request, whose buffers the tests own or the call refuses.
    unsafe { mpienv_torch_call(handle, name.as_ptr(), by.as_ptr(), request.as_ptr().cast()) }
}

/// Reduces numbers on all ranks.
fn reduce<T>(handle: *const Handle, by: &str, kind: u16, values: &mut [T]) -> i32 {
    call(handle, ("reduce", by), kind, [-1, 0], [&[], &[piece(values)]])
}

fn barrier(handle: *const Handle) -> i32 {
    call(handle, ("barrier", ""), 0, [0, 0], [&[], &[]])
}

/// The text of this thread's last failure, and the rank that it names.
fn failure() -> (String, i64) {
    let (mut text, mut rank) = (vec![0_u8; 500], 0);
    // SAFETY: both places are large enough.
    let length = unsafe { mpienv_torch_error(text.as_mut_ptr(), text.len(), &raw mut rank) };
    text.truncate(length);
    (String::from_utf8(text).unwrap(), rank)
}

fn close(Connected(handle): Connected) {
    // SAFETY: it is not used again.
    unsafe { mpienv_torch_close(handle) };
}

/// Fails unless a call was refused for this reason.
fn is_refused(code: i32, expected: &str) {
    assert_eq!(code, 1, "{expected}");
    assert!(failure().0.contains(expected), "{} and not {expected}", failure().0);
}

fn connect(
    rank: u32,
    size: u32,
    listener: Option<TcpListener>,
    port: u16,
    secret: &str,
) -> Result<Connected, i32> {
    let [host, secret] = ["127.0.0.1", secret].map(|text| CString::new(text).unwrap());
    let descriptor = listener.map_or(-1, IntoRawFd::into_raw_fd);
    let mut handle = ptr::null_mut();
    // SAFETY: these are strings, a descriptor that is given away, and a place for the handle.
    let code = unsafe {
        mpienv_torch_connect(
            rank,
            size,
            descriptor,
            host.as_ptr(),
            port,
            secret.as_ptr(),
            TIMEOUT_MS,
            None,
            &raw mut handle,
        )
    };
    if code == 0 { Ok(Connected(handle)) } else { Err(code) }
}

/// Runs `work` on each rank of a group, in a thread, and closes the group.
fn run_ranks<T: Send>(size: u32, work: impl Fn(u32, *mut Handle) -> T + Sync) -> Vec<T> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut listener = Some(listener);
    thread::scope(|scope| {
        let work = &work;
        let rank = |rank| {
            let listener = listener.take();
            scope.spawn(move || {
                let Connected(handle) = connect(rank, size, listener, port, "secret").unwrap();
                let result = work(rank, handle);
                close(Connected(handle));
                result
            })
        };
        let ranks: Vec<_> = (0..size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn numbers_are_reduced_by_type_and_reduction() {
    let results = run_ranks(3, |rank, handle| {
        let mut sum = [rank as f32, 1.0];
        let mut largest = [i64::from(rank), -i64::from(rank)];
        let mut values: Vec<f64> = (0..6).map(|index| f64::from(index * rank)).collect();
        let mut part = [0.0_f64; 2];
        let lists = [&[piece(&mut values)][..], &[piece(&mut part)]];
        let codes = [
            reduce(handle, "sum", kind("f32"), &mut sum),
            call(handle, ("reduce", "max"), kind("i64"), [1, 0], [&[], &[piece(&mut largest)]]),
            call(handle, ("reduce_scatter", "sum"), kind("f64"), [0, 0], lists),
        ];
        assert_eq!(codes, [0; 3]);
        (sum, largest, part)
    });
    for (rank, (sum, largest, part)) in (0..).zip(results) {
        assert_eq!(sum, [3.0, 3.0]);
        assert_eq!(largest, if rank == 1 { [2, 0] } else { [rank, -rank] });
        let first = f64::from(u8::try_from(6 * rank).unwrap());
        assert_eq!(part, [first, first + 3.0]);
    }
}

#[test]
fn values_go_to_places_of_their_own_even_where_the_call_reads() {
    let results = run_ranks(2, |rank, handle| {
        let (own, other, byte) = (rank as usize, 1 - rank as usize, kind("u8"));
        let mut all = [[0_u8; 3]; 2];
        all[own] = [rank as u8 + 1; 3];
        let rows = all.each_mut().map(|row| piece(row));
        // The call reads the row that it also writes.
        assert_eq!(call(handle, ("gather", ""), byte, [-1, 0], [&rows[own..=own], &rows]), 0);
        let (mut sent, mut exchanged) = ([10 * rank as u8, 10 * rank as u8 + 1], [0_u8; 2]);
        let parts = sent.each_mut().map(|part| piece(slice::from_mut(part)));
        let places = exchanged.each_mut().map(|part| piece(slice::from_mut(part)));
        assert_eq!(call(handle, ("scatter", ""), byte, [-1, 0], [&parts, &places]), 0);
        let (mut sent, mut received) = ([rank], [9_u32]);
        let lists = [&[piece(&mut sent)][..], &[piece(&mut received)]];
        assert_eq!(call(handle, ("pass", ""), kind("u32"), [other as i64; 2], lists), 0);
        let mut weights = [if rank == 1 { 0.5_f32 } else { 0.0 }];
        let places = [piece(&mut weights)];
        assert_eq!(call(handle, ("broadcast", ""), kind("f32"), [1, 0], [&[], &places]), 0);
        assert_eq!(weights, [0.5]);
        (all, exchanged, received)
    });
    assert_eq!(results[0], ([[1; 3], [2; 3]], [0, 10], [1]));
    assert_eq!(results[1], ([[1; 3], [2; 3]], [1, 11], [0]));
}

#[test]
fn a_reduction_that_was_begun_ends_once_the_others_have_come() {
    const PATIENT: i64 = 1000 * TIMEOUT_MS as i64;
    let (has_begun, float) = (Barrier::new(2), kind("f32"));
    let step = |handle, name: &str, longest: i64, values: &mut [f32]| {
        call(handle, (name, "mean"), float, [0, longest], [&[], &[piece(values)]])
    };
    // On one core, ranks reduce in one step, and those that meet on one do not wait in the first.
    let both = |handle, values: &mut [f32]| match step(handle, "begin_reduce", PATIENT, values) {
        WAITS => step(handle, "end_reduce", 0, values),
        REFUSED => reduce(handle, "mean", float, values),
        code => code,
    };
    let results = run_ranks(2, |rank, handle| {
        let [mut first, mut second, mut third] = [[rank as f32, 1.0]; 3];
        let mut large = vec![1.0; 5_000_000];
        if rank == 0 {
            let begun = step(handle, "begin_reduce", 0, &mut first);
            has_begun.wait();
            let code = match begun {
                WAITS => step(handle, "end_reduce", 0, &mut first),
                _ => reduce(handle, "mean", float, &mut first),
            };
            assert_eq!(code, 0);
        } else {
            has_begun.wait();
            assert_eq!(reduce(handle, "mean", float, &mut first), 0);
        }
        assert_eq!(both(handle, &mut second), 0);
        // The ranks go on with what they can only do in one step.
        assert_eq!(step(handle, "begin_reduce", 0, &mut large), REFUSED);
        is_refused(step(handle, "end_reduce", 0, &mut large), "no reduction of these numbers");
        assert_eq!(reduce(handle, "mean", float, &mut large), 0);
        let code = if rank == 0 { both(handle, &mut third) } else { barrier(handle) };
        (first, second, code, failure().0)
    });
    for (first, second, code, text) in results {
        assert_eq!((first, second, code), ([0.5, 1.0], [0.5, 1.0], 1));
        assert!(
            text.contains("rank 1 barrier") || text.contains("rank 1 called barrier"),
            "{text}"
        );
    }
}

#[test]
fn a_failure_has_a_code_a_text_and_the_rank_that_it_names() {
    let results = run_ranks(2, |rank, handle| {
        let code = match rank {
            0 => reduce(handle, "sum", kind("f32"), &mut [0.0_f32; 10]),
            _ => barrier(handle),
        };
        (code, failure())
    });
    let text = "rank 1 called barrier, rank 0 all_reduce_sum of 10 f32: all ranks must make the \
                same calls in the same order";
    assert_eq!(results[0], (1, (text.to_owned(), 1)));
    assert_eq!(results[1].0, 1);
    assert_eq!(results[1].1.1, 0);
}

#[test]
fn arguments_that_no_group_can_take_are_failures() {
    let group = connect(0, 1, None, 1, "").unwrap();
    let (Connected(handle), float) = (group, kind("f32"));
    let mut values = [0_u64; 4];
    let first: *mut u8 = values.as_mut_ptr().cast();
    let at = |skipped: usize, length| Piece { address: first.wrapping_add(skipped), length };
    let none = Piece { address: ptr::null_mut(), length: 4 };
    let (one, two) = ([at(0, 4)], [at(0, 4), at(4, 4)]);

    let reduce = |kind, by, values| call(handle, ("reduce", by), kind, [-1, 0], [&[], &[values]]);
    is_refused(reduce(99, "sum", one[0]), "no type has the number 99");
    is_refused(reduce(float | 200 << 8, "sum", one[0]), "no type has the number 200");
    is_refused(reduce(float, "median", one[0]), "no reduction is called \"median\"");
    is_refused(reduce(float, "sum", at(0, usize::MAX - 3)), "more than memory has");
    is_refused(reduce(float, "sum", at(0, 7)), "7 bytes are not f32");
    is_refused(reduce(float, "sum", at(1, 4)), "not aligned");
    is_refused(reduce(float, "sum", none), "at no address");
    let make = |name: &str, root, lists: [&[Piece]; 2]| {
        call(handle, (name, "sum"), float, [root, 0], lists)
    };
    is_refused(make("broadcast", 7, [&[], &one]), "there is no rank 7: the group has rank 0 only");
    for length in [0, 4, 12, usize::MAX - 3] {
        let scatter = make("reduce_scatter", 0, [&[at(0, length)], &[at(16, 8)]]);
        let expected = match length {
            0..100 => format!("{length} bytes are not 1 parts of 8"),
            _ => "more than memory has".to_owned(),
        };
        is_refused(scatter, &expected);
    }
    is_refused(make("agree", 0, [&[], &[]]), "no call is called \"sum\"");
    assert_eq!(make("gather", -1, [&one, &one]), 0);
    is_refused(make("gather", -1, [&one, &two]), "2 buffers for 1 ranks");
    is_refused(make("gather", -1, [&one, &[at(0, 8)]]), "buffers of 4 and 8 bytes");
    is_refused(make("gather", -1, [&one, &[none]]), "at no address");
    is_refused(make("scatter", -1, [&two, &one]), "2 buffers for 1 ranks");
    is_refused(make("scatter", -1, [&one, &two]), "2 buffers for 1 ranks");
    is_refused(make("scatter", -1, [&[at(0, 8)], &one]), "buffers of 4 and 8 bytes");
    is_refused(make("scatter", -1, [&one, &[]]), "no call scatter reads 1 buffers and writes 0");
    is_refused(make("reduce", -1, [&one, &one]), "no call reduce reads 1 buffers and writes 1");
    is_refused(make("sort", -1, [&[], &[]]), "no call sort reads 0 buffers and writes 0");
    is_refused(barrier(ptr::null()), "the group is closed");
    let request = request(float, [-1, 0], [&[], &one]);
    for request in [ptr::null(), request.as_ptr().wrapping_byte_add(1)] {
        // SAFETY: the function refuses before it reads.
        let code = unsafe {
            mpienv_torch_call(handle, c"reduce".as_ptr(), c"sum".as_ptr(), request.cast())
        };
        is_refused(code, "no place for a result");
    }
    // SAFETY: as above.
    let unnamed =
        unsafe { mpienv_torch_call(handle, ptr::null(), ptr::null(), request.as_ptr().cast()) };
    is_refused(unnamed, "no text at an address");
    close(group);
    close(Connected(ptr::null_mut()));
    assert_eq!(connect(2, 2, None, 1, "secret").err(), Some(1));
}

#[test]
fn two_buffers_for_results_cannot_share_memory() {
    let codes = run_ranks(2, |_, handle| {
        let mut values = [0_u64; 2];
        let own = piece(&mut values[..1]);
        let code = call(handle, ("gather", ""), kind("u64"), [-1, 0], [&[own], &[own, own]]);
        (code, failure().0)
    });
    assert_eq!(
        codes,
        array::from_fn::<_, 2, _>(|_| { (1, "two buffers for results share memory".to_owned()) })
    );
}

#[test]
fn ranks_compare_the_types_and_the_calls_that_their_callers_mean() {
    let int = kind("i32");
    let results = run_ranks(2, |rank, handle| {
        let meant = if rank == 0 { int } else { int | kind("int16") };
        let code = reduce(handle, "sum", meant, &mut [1_i32; 4]);
        (code, failure().0)
    });
    let text = "rank 1 called all_reduce_sum of 4 int16, rank 0 all_reduce_sum of 4 i32";
    assert_eq!(results[0].0, 1);
    assert!(results[0].1.starts_with(text), "{}", results[0].1);
    let results = run_ranks(2, |rank, handle| {
        let built = ["all_reduce (band)", "all_reduce (bor)"][rank as usize];
        let code = call(handle, ("agree", built), int, [0, 4], [&[], &[]]);
        (code, failure().0)
    });
    let text = "rank 1 called all_reduce (bor) of 4 i32, rank 0 all_reduce (band) of 4 i32";
    assert_eq!(results[0].0, 1);
    assert!(results[0].1.starts_with(text), "{}", results[0].1);
}

#[test]
fn a_timeout_that_is_set_later_limits_a_call() {
    let is_late = Barrier::new(2);
    let ranks = run_ranks(2, |rank, handle| {
        // SAFETY: the group is open.
        assert_eq!(unsafe { mpienv_torch_set_timeout(handle, 50) }, 0);
        if rank == 1 {
            is_late.wait();
            return String::new();
        }
        assert_eq!(barrier(handle), 3);
        let (text, named) = failure();
        is_late.wait();
        assert_eq!(named, 1);
        text
    });
    assert!(ranks[0].contains("did not arrive within 0.05 s"), "{}", ranks[0]);
}

#[test]
fn a_call_ends_if_another_thread_cancels_it() {
    let results = run_ranks(2, |rank, handle| {
        if rank == 0 {
            let group = Connected(handle);
            let cancel = move || {
                let group = group;
                // SAFETY: the group stays open until this thread has ended.
                unsafe { mpienv_torch_cancel(group.0) };
            };
            thread::spawn(cancel).join().unwrap();
        }
        // That of rank 1 fails too, because rank 0 does not arrive.
        (barrier(handle), failure().0)
    });
    assert_eq!(results[0].0, 4, "{}", results[0].1);
    assert_eq!(results[1].0, 2, "{}", results[1].1);
}
