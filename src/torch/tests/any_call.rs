//! Any arguments of the C functions: a result or a failure, and never memory of another.

use std::ptr;
use std::time::{Duration, Instant};

use super::{failure, run, typed};
use crate::abi::*;
use crate::memory::Piece;

/// Random numbers that are the same on all ranks (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) % limit as u64) as usize
    }

    /// One in `limit`.
    fn rarely(&mut self, limit: usize) -> bool {
        self.below(limit) == 0
    }

    fn root(&mut self) -> i64 {
        [-1, -1, -1, 0, 1, 1, 2, i64::MAX, i64::MIN][self.below(9)]
    }

    /// The number of a type, which may be none.
    fn kind(&mut self) -> u16 {
        let meant = if self.rarely(4) { self.below(20) << 8 } else { 0 };
        (meant | if self.rarely(20) { self.below(256) } else { self.below(11) }) as u16
    }

    /// A count that differs from `count` now and then.
    fn near(&mut self, count: usize) -> usize {
        match self.below(24) {
            0 => 0,
            1 => count + 1 + self.below(9),
            2 => usize::MAX - self.below(9),
            3 => usize::MAX / (1 + self.below(9)),
            _ => count,
        }
    }
}

/// A buffer, of exactly as many bytes as its caller says, so that a sanitizer sees one more.
struct Buffer {
    bytes: Vec<u64>,
    skipped: usize,
    is_null: bool,
}

impl Buffer {
    fn new(random: &mut Random, length: usize) -> Buffer {
        let skipped = if random.rarely(20) { 1 + random.below(7) } else { 0 };
        let words = (length + skipped).div_ceil(8);
        Buffer { bytes: vec![7; words], skipped, is_null: random.rarely(24) }
    }

    /// Where it begins so that it ends with the memory, unless it is not aligned then.
    fn address(&mut self, length: usize) -> *mut u8 {
        if self.is_null {
            return ptr::null_mut();
        }
        let all = self.bytes.len() * 8;
        let first = if self.skipped > 0 { self.skipped } else { (all - length) / 8 * 8 };
        self.bytes.as_mut_ptr().cast::<u8>().wrapping_add(first.min(all))
    }
}

const SIZES: [usize; 11] = [4, 8, 4, 8, 4, 8, 2, 2, 1, 1, 1];

/// The size of a number of a type, or 1.
fn size_of(kind: u16) -> usize {
    SIZES.get(usize::from(kind & 255)).copied().unwrap_or(1)
}

/// A list of buffers, of which some may be of another length.
fn list(random: &mut Random, count: usize, length: usize) -> (Vec<Buffer>, Vec<Piece>) {
    let mut buffers = Vec::new();
    let mut pieces = Vec::new();
    for _ in 0..count {
        let length = if random.rarely(24) { random.below(100) } else { length };
        let mut buffer = Buffer::new(random, length);
        pieces.push(Piece { address: buffer.address(length), length });
        buffers.push(buffer);
    }
    if count > 1 && random.rarely(16) {
        pieces[1] = pieces[0];
    }
    (buffers, pieces)
}

/// Makes any call; returns its code.
fn any_call(random: &mut Random, handle: *const Handle) -> i32 {
    let (kind, by, root) = (random.kind(), random.below(6) as u8, random.root());
    let count = [0, 1, 2, 5, 31, 1000, 20_000][random.below(7)];
    let length = count * size_of(kind);
    // A count of more than the buffer has is refused before it is read, or not passed at all.
    let (mut values, mut other) = (Buffer::new(random, length), Buffer::new(random, length * 2));
    let (place, wide) = (values.address(length), other.address(length * 2));
    let too_many = if random.rarely(20) { usize::MAX / 2 + 1 + random.below(99) } else { count };
    let mut lists = [random.near(2).min(5), random.near(2).min(5)];
    // Without parts, only the root refuses a call, and the other rank learns that from it.
    let needs_parts = root >= 0;
    lists[0] = lists[0].max(usize::from(needs_parts));
    let (_parts, parts) = list(random, lists[0], length);
    let (_into, into) = list(random, if root < 0 { lists[1] } else { 1 }, length);
    let (parts_at, into_at) = (
        if random.rarely(20) && !needs_parts { ptr::null() } else { parts.as_ptr() },
        into.as_ptr(),
    );
    // SAFETY: each buffer has the bytes that the call is told, or the call refuses them.
    unsafe {
        match random.below(8) {
            0 => mpienv_torch_reduce(handle, place, too_many, kind, by, root),
            1 => mpienv_torch_reduce_scatter(
                handle,
                wide,
                random.near(count * 2).max(count * 2),
                place,
                count,
                kind,
                by,
            ),
            2 => mpienv_torch_broadcast(handle, place, too_many, kind, random.below(3) as u32),
            3 => mpienv_torch_gather(handle, place, count, into_at, into.len(), kind, root),
            4 => mpienv_torch_scatter(
                handle,
                parts_at,
                parts.len(),
                into_at,
                into.len(),
                count,
                kind,
                root,
            ),
            5 => mpienv_torch_agree(handle, random.below(20) as u8, count as u64, kind, 3),
            6 => mpienv_torch_barrier(if random.rarely(2) { ptr::null() } else { handle }),
            _ => mpienv_torch_pass(handle, place, count, -1, wide, too_many, -1, kind),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "tests find settings where the shell does")]
fn duration() -> Duration {
    let seconds = std::env::var("MPIENV_FUZZ_SECONDS").ok();
    Duration::from_secs(seconds.map_or(1, |seconds| seconds.parse().unwrap()))
}

#[test]
fn any_arguments_give_a_result_or_a_failure_on_all_ranks() {
    let begun = Instant::now();
    let results = run(2, |rank, handle| {
        let mut random = Random(1);
        let (mut made, mut refused) = (0_u64, 0_u64);
        loop {
            for _ in 0..50 {
                match any_call(&mut random, handle) {
                    0 => made += 1,
                    1 => refused += 1,
                    code => panic!("code {code}: {}", failure().0),
                }
            }
            // The group is as it was: no wrong call has sent a byte.
            let mut is_over = u8::from(rank == 0 && begun.elapsed() > duration());
            // SAFETY: it is one byte.
            let code =
                unsafe { mpienv_torch_broadcast(handle, &raw mut is_over, 1, typed("u8"), 0) };
            assert_eq!(code, 0, "{}", failure().0);
            if is_over == 1 {
                return (made, refused);
            }
        }
    });
    assert_eq!(results[0], results[1]);
    let (made, refused) = results[0];
    eprintln!("any call: {made} made, {refused} refused");
    assert!(made > 0 && refused > 0);
}
