//! The C functions, as a program calls them.
#![expect(unsafe_code, reason = "the C functions take addresses")]

mod any_call;

use std::ffi::CString;
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::ptr;
use std::thread;

use crate::abi::*;
use crate::memory::Piece;

/// Longer than any call takes on a machine under load.
pub(crate) const TIMEOUT_MS: u64 = 300_000;

/// A connected group, which may move to another thread.
#[derive(Clone, Copy)]
pub(crate) struct Connected(pub(crate) *mut Handle);

// SAFETY: the functions lock the group.
unsafe impl Send for Connected {}

/// The number of a type, for calls of a group; that of a message is its low byte.
pub(crate) fn typed(name: &str) -> u16 {
    let name = CString::new(name).unwrap();
    // SAFETY: it is a string.
    u16::try_from(unsafe { mpienv_torch_kind(name.as_ptr()) }).unwrap()
}

pub(crate) fn kind(name: &str) -> u8 {
    u8::try_from(typed(name)).unwrap()
}

/// Buffers of this length, as a list.
fn pieces<const N: usize>(addresses: [*mut u8; N], length: usize) -> [Piece; N] {
    addresses.map(|address| Piece { address, length })
}

fn reduction(name: &str) -> u8 {
    let name = CString::new(name).unwrap();
    // SAFETY: it is a string.
    u8::try_from(unsafe { mpienv_torch_reduction(name.as_ptr()) }).unwrap()
}

/// The text of this thread's last failure, and the rank that it names.
pub(crate) fn failure() -> (String, i64) {
    let (mut text, mut rank) = (vec![0_u8; 500], 0);
    // SAFETY: both places are large enough.
    let length = unsafe { mpienv_torch_error(text.as_mut_ptr(), text.len(), &raw mut rank) };
    text.truncate(length);
    (String::from_utf8(text).unwrap(), rank)
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
            &raw mut handle,
        )
    };
    if code == 0 { Ok(Connected(handle)) } else { Err(code) }
}

/// Runs `work` on each rank of a group, in a thread, and closes the group.
pub(crate) fn run<T: Send>(size: u32, work: impl Fn(u32, *mut Handle) -> T + Sync) -> Vec<T> {
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
                // SAFETY: it is not used again.
                unsafe { mpienv_torch_close(handle) };
                result
            })
        };
        let ranks: Vec<_> = (0..size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn numbers_are_reduced_by_type_and_reduction() {
    let results = run(3, |rank, handle| {
        let mut sum = [rank as f32, 1.0];
        let mut largest = [i64::from(rank), -i64::from(rank)];
        let values: Vec<f64> = (0..6).map(|index| f64::from(index * rank)).collect();
        let mut part = [0.0_f64; 2];
        // SAFETY: these are the numbers and their counts.
        let codes = unsafe {
            [
                mpienv_torch_reduce(
                    handle,
                    sum.as_mut_ptr().cast(),
                    2,
                    typed("f32"),
                    reduction("sum"),
                    -1,
                ),
                mpienv_torch_reduce(
                    handle,
                    largest.as_mut_ptr().cast(),
                    2,
                    typed("i64"),
                    reduction("max"),
                    1,
                ),
                mpienv_torch_reduce_scatter(
                    handle,
                    values.as_ptr().cast(),
                    values.len(),
                    part.as_mut_ptr().cast(),
                    2,
                    typed("f64"),
                    reduction("sum"),
                ),
            ]
        };
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
    let results = run(2, |rank, handle| {
        let (own, other) = (rank as usize, 1 - rank as usize);
        let mut all = [[0_u8; 3]; 2];
        all[own] = [rank as u8 + 1; 3];
        let base = all.as_mut_ptr().cast::<u8>();
        // SAFETY: both rows are of three bytes.
        let places = unsafe { [base, base.add(3)] };
        let byte = typed("u8");
        // SAFETY: the call reads the row that it also writes.
        let list = pieces(places, 3);
        // SAFETY: as above.
        let code =
            unsafe { mpienv_torch_gather(handle, places[own], 3, list.as_ptr(), 2, byte, -1) };
        assert_eq!(code, 0);
        let mut exchanged = [0_u8; 2];
        let into = exchanged.as_mut_ptr();
        let sent = [10 * rank as u8, 10 * rank as u8 + 1];
        let parts = [0, 1].map(|index| (&raw const sent[index]).cast_mut());
        // SAFETY: each part is one byte.
        let places = unsafe { [into, into.add(1)] };
        // SAFETY: as above.
        let (parts, places) = (pieces(parts, 1), pieces(places, 1));
        // SAFETY: as above.
        let code = unsafe {
            mpienv_torch_scatter(handle, parts.as_ptr(), 2, places.as_ptr(), 2, 1, byte, -1)
        };
        assert_eq!(code, 0);
        let (sent, mut received) = ([rank], [9_u32]);
        // SAFETY: one number is sent and one is received.
        let code = unsafe {
            mpienv_torch_pass(
                handle,
                sent.as_ptr().cast(),
                1,
                other as i64,
                received.as_mut_ptr().cast(),
                1,
                other as i64,
                typed("u32"),
            )
        };
        assert_eq!(code, 0);
        let mut weights = [if rank == 1 { 0.5_f32 } else { 0.0 }];
        // SAFETY: it is one number.
        let code = unsafe {
            mpienv_torch_broadcast(handle, weights.as_mut_ptr().cast(), 1, typed("f32"), 1)
        };
        assert_eq!((code, weights), (0, [0.5]));
        (all, exchanged, received)
    });
    assert_eq!(results[0], ([[1; 3], [2; 3]], [0, 10], [1]));
    assert_eq!(results[1], ([[1; 3], [2; 3]], [1, 11], [0]));
}

#[test]
fn a_failure_has_a_code_a_text_and_the_rank_that_it_names() {
    let results = run(2, |rank, handle| {
        let mut values = [0.0_f32; 10];
        let (values, by) = (values.as_mut_ptr().cast(), reduction("sum"));
        // SAFETY: there are ten numbers.
        let code = unsafe {
            match rank {
                0 => mpienv_torch_reduce(handle, values, 10, typed("f32"), by, -1),
                _ => mpienv_torch_barrier(handle),
            }
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
    let Connected(handle) = connect(0, 1, None, 1, "").unwrap();
    let mut values = [0_u64; 4];
    let place: *mut u8 = values.as_mut_ptr().cast();
    let (float, sum) = (typed("f32"), reduction("sum"));
    let refused = |call: &dyn Fn() -> i32, expected: &str| {
        assert_eq!(call(), 1);
        assert!(failure().0.contains(expected), "{}", failure().0);
    };
    // SAFETY: the functions refuse before they read.
    unsafe {
        refused(
            &|| mpienv_torch_reduce(handle, place, 1, 99, sum, -1),
            "no type has the number 99",
        );
        refused(&|| mpienv_torch_reduce(handle, place, 1, float, 99, -1), "no reduction has");
        refused(&|| mpienv_torch_reduce(handle, place, usize::MAX, float, sum, -1), "too many");
        refused(&|| mpienv_torch_reduce(handle, place.add(1), 1, float, sum, -1), "not aligned");
        refused(&|| mpienv_torch_broadcast(handle, place, 1, float, 7), "rank 7 of a group of 1");
        for count in [0, 1, 3, usize::MAX] {
            let scatter = || {
                let into = place.add(16);
                mpienv_torch_reduce_scatter(handle, place, count, into, 2, float, sum)
            };
            refused(&scatter, &format!("{count} numbers are not 1 parts of 2"));
        }
        refused(
            &|| mpienv_torch_reduce(handle, ptr::null_mut(), 1, float, sum, -1),
            "at no address",
        );
        refused(
            &|| mpienv_torch_reduce(handle, place, 1, float | 200 << 8, sum, -1),
            "no type has the number 200",
        );
        refused(&|| mpienv_torch_agree(handle, 200, 1, float, 0), "no call has the number 200");
        let (one, two) = (pieces([place], 4), pieces([place, place.add(4)], 4));
        let gather = |all: &[Piece]| {
            mpienv_torch_gather(handle, place, 1, all.as_ptr(), all.len(), float, -1)
        };
        assert_eq!(gather(&one), 0);
        refused(&|| gather(&two), "2 buffers for 1 ranks");
        refused(&|| gather(&pieces([place], 3)), "a buffer of 3 bytes in place of 4");
        refused(&|| gather(&pieces([ptr::null_mut()], 4)), "at no address");
        let null = ptr::null();
        refused(&|| mpienv_torch_gather(handle, place, 1, null, 1, float, -1), "no place");
        let scatter = |parts: &[Piece], into: &[Piece]| {
            let lists = (parts.as_ptr(), parts.len(), into.as_ptr(), into.len());
            mpienv_torch_scatter(handle, lists.0, lists.1, lists.2, lists.3, 1, float, -1)
        };
        refused(&|| scatter(&two, &one), "2 buffers for 1 ranks");
        refused(&|| scatter(&one, &two), "2 buffers for 1 ranks");
        refused(&|| scatter(&pieces([place], 8), &one), "a buffer of 8 bytes in place of 4");
        refused(&|| mpienv_torch_barrier(ptr::null()), "the group is closed");
        mpienv_torch_close(handle);
        mpienv_torch_close(ptr::null_mut());
    }
    assert_eq!(connect(2, 2, None, 1, "secret").err(), Some(1));
}

#[test]
fn ranks_compare_the_types_and_the_calls_that_their_callers_mean() {
    let int = typed("i32");
    let short = typed("int16");
    let name = CString::new("all_reduce (band)").unwrap();
    // SAFETY: it is a string.
    let built = u8::try_from(unsafe { mpienv_torch_built(name.as_ptr()) }).unwrap();
    let results = run(2, |rank, handle| {
        let (mut values, by) = ([1_i32; 4], reduction("sum"));
        let place = values.as_mut_ptr().cast();
        let meant = if rank == 0 { int } else { int | short };
        // SAFETY: there are four numbers.
        let code = unsafe { mpienv_torch_reduce(handle, place, 4, meant, by, -1) };
        (code, failure().0)
    });
    let text = "rank 1 called all_reduce_sum of 4 int16, rank 0 all_reduce_sum of 4 i32";
    assert_eq!(results[0].0, 1);
    assert!(results[0].1.starts_with(text), "{}", results[0].1);
    let results = run(2, |rank, handle| {
        // SAFETY: the group is open.
        let code = unsafe { mpienv_torch_agree(handle, built + rank as u8, 4, int, 0) };
        (code, failure().0)
    });
    let text = "rank 1 called all_reduce (bor) of 4 i32, rank 0 all_reduce (band) of 4 i32";
    assert_eq!(results[0].0, 1);
    assert!(results[0].1.starts_with(text), "{}", results[0].1);
}

#[test]
fn a_call_ends_if_another_thread_cancels_it() {
    let results = run(2, |rank, handle| {
        if rank == 1 {
            // It fails too, because rank 0 does not arrive.
            // SAFETY: the group is open.
            return (unsafe { mpienv_torch_barrier(handle) }, failure().0);
        }
        let group = Connected(handle);
        let canceling = thread::spawn(move || {
            let group = group;
            // SAFETY: the group stays open until this thread has ended.
            unsafe { mpienv_torch_cancel(group.0) };
        });
        canceling.join().unwrap();
        // SAFETY: the group is open.
        (unsafe { mpienv_torch_barrier(handle) }, failure().0)
    });
    assert_eq!(results[0].0, 4, "{}", results[0].1);
    assert_eq!(results[1].0, 2, "{}", results[1].1);
}
