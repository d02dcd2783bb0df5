//! Any arguments of a call: a result or a failure, and never memory of another.

use super::*;

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
    let (kind, root, other) =
        (random.kind(), random.root(), [-1, -1, 3, i64::MIN][random.below(4)]);
    let by = ["sum", "mean", "min", "max", "product", "median", ""][random.below(7)];
    let count = [0, 1, 2, 5, 31, 1000, 20_000][random.below(7)];
    let length = count * size_of(kind);
    // A length of more than the buffer has is refused before it is read, or not passed at all.
    let (mut values, mut wide) = (Buffer::new(random, length), Buffer::new(random, length * 2));
    let too_long = usize::MAX / 2 + 1 + random.below(99);
    let is_too_long = random.rarely(20);
    let [own, wide] = [(&mut values, length), (&mut wide, length * 2)]
        .map(|(buffer, length)| Piece { address: buffer.address(length), length });
    let own = Piece { length: if is_too_long { too_long } else { length }, ..own };
    let all = if random.rarely(8) { random.below(length * 2 + 1) } else { wide.length };
    let mut counts = [random.near(2).min(5), random.near(2).min(5)];
    // Without parts, only the root refuses a call, and the other rank learns that from it.
    if root >= 0 {
        counts = [counts[0].max(1), 1];
    }
    let (_parts, parts) = list(random, counts[0], length);
    let (_into, into) = list(random, counts[1], length);
    let lists: (&str, [&[Piece]; 2]) = match random.below(9) {
        0 => (["reduce", "end_reduce"][random.below(2)], [&[], &[own]]),
        1 => ("reduce_scatter", [&[Piece { length: all, ..wide }], &[own]]),
        2 => ("broadcast", [&[], &[own]]),
        3 => ("gather", [&[Piece { length, ..own }], &into]),
        4 => ("scatter", [&parts, &into]),
        5 => ("agree", [&[], &[]]),
        6 => ("pass", [&[own], &[wide]]),
        7 => ("barrier", [&[], &[]]),
        _ => (["reduce", "gather", "barrier", "no call"][random.below(4)], [&parts, &into]),
    };
    let (name, lists) = lists;
    let built = ["all_reduce (band)", "reduce (bor)", "all_gather (uneven)", "any"];
    let by = if name == "agree" { built[random.below(4)] } else { by };
    let root = if name == "pass" { root.min(-1) } else { root };
    let handle = if name == "barrier" && random.rarely(2) { ptr::null() } else { handle };
    call(handle, (name, by), kind, [root, other], lists)
}

#[expect(clippy::disallowed_methods, reason = "tests find settings where the shell does")]
fn duration() -> Duration {
    let seconds = std::env::var("MPIENV_FUZZ_SECONDS").ok();
    Duration::from_secs(seconds.map_or(1, |seconds| seconds.parse().unwrap()))
}

#[test]
fn any_arguments_give_a_result_or_a_failure_on_all_ranks() {
    let begun = Instant::now();
    let results = run_ranks(2, |rank, handle| {
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
            let place = piece(slice::from_mut(&mut is_over));
            let code = call(handle, ("broadcast", ""), kind("u8"), [0, 0], [&[], &[place]]);
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
