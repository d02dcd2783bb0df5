//! Nearly valid inputs: valid ones with a few bytes changed, tried for as long as the tests may
//! take.

use std::cell::Cell;
use std::fs;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestCaseResult, TestError, TestRunner};

/// The time limit for one input; the machine may be busy with other work.
const LONGEST: Duration = Duration::from_secs(20 * 60);
/// The memory limits of the process in KiB: resident memory, and all reserved memory.
const MOST: [(&str, u64); 2] = [("VmHWM:", 512 << 10), ("VmPeak:", 8 << 20)];

/// The number of a valid input, and the changes to make to its bytes one after the other.
type Recipe = (Index, Vec<Change>);

/// A change of some bytes.
#[derive(Clone, Debug)]
enum Change {
    Flip {
        at: Index,
        bit: u8,
    },
    Put {
        at: Index,
        byte: u8,
    },
    Insert {
        at: Index,
        bytes: Vec<u8>,
    },
    /// Inserts one of the words that mean something to the parser.
    Say {
        at: Index,
        word: Index,
    },
    Remove {
        at: Index,
        length: usize,
    },
    Repeat {
        at: Index,
        length: usize,
        times: usize,
    },
    Cut {
        at: Index,
    },
    /// Takes the rest from another valid input.
    Cross {
        at: Index,
        seed: Index,
        from: Index,
    },
    /// Replaces the number at this position.
    Count {
        at: Index,
        number: u64,
    },
}

fn change() -> impl Strategy<Value = Change> {
    let at = || any::<Index>();
    let number = prop_oneof![
        0u64..20,
        prop::sample::select(vec![
            255,
            256,
            65_535,
            65_536,
            (1 << 31) - 1,
            1 << 31,
            (1 << 32) - 1,
            1 << 32,
            u64::MAX
        ]),
        any::<u64>(),
    ];
    prop_oneof![
        1 => (at(), 0u8..8).prop_map(|(at, bit)| Change::Flip { at, bit }),
        1 => (at(), any::<u8>()).prop_map(|(at, byte)| Change::Put { at, byte }),
        1 => (at(), prop::collection::vec(any::<u8>(), 1..6)).prop_map(|(at, bytes)| Change::Insert { at, bytes }),
        3 => (at(), at()).prop_map(|(at, word)| Change::Say { at, word }),
        1 => (at(), 1usize..12).prop_map(|(at, length)| Change::Remove { at, length }),
        1 => (at(), 1usize..12, 1usize..40).prop_map(|(at, length, times)| Change::Repeat { at, length, times }),
        1 => (at(),).prop_map(|(at,)| Change::Cut { at }),
        1 => (at(), at(), at()).prop_map(|(at, seed, from)| Change::Cross { at, seed, from }),
        2 => (at(), number).prop_map(|(at, number)| Change::Count { at, number }),
    ]
}

/// A position in the bytes, including their end.
fn place(index: Index, bytes: &[u8]) -> usize {
    index.index(bytes.len() + 1)
}

fn apply(change: &Change, bytes: &mut Vec<u8>, seeds: &[Vec<u8>], words: &[&[u8]]) {
    match change {
        Change::Flip { at, bit } if !bytes.is_empty() => {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        Change::Put { at, byte } if !bytes.is_empty() => {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        Change::Flip { .. } | Change::Put { .. } => {}
        Change::Insert { at, bytes: more } => {
            let at = place(*at, bytes);
            bytes.splice(at..at, more.iter().copied());
        }
        Change::Say { at, word } => {
            let at = place(*at, bytes);
            bytes.splice(at..at, word.get(words).iter().copied());
        }
        Change::Remove { at, length } => {
            let at = place(*at, bytes);
            bytes.drain(at..(at + length).min(bytes.len()));
        }
        Change::Repeat { at, length, times } => {
            let at = place(*at, bytes);
            let part = bytes[at..(at + length).min(bytes.len())].repeat(*times);
            bytes.splice(at..at, part);
        }
        Change::Cut { at } => bytes.truncate(place(*at, bytes)),
        Change::Cross { at, seed, from } => {
            bytes.truncate(place(*at, bytes));
            let other = seed.get(seeds);
            bytes.extend(&other[place(*from, other)..]);
        }
        Change::Count { at, number } => count(place(*at, bytes), *number, bytes),
    }
}

/// Replaces the digits from `at` on with a number; without digits there, replaces the four or eight
/// bytes.
fn count(at: usize, number: u64, bytes: &mut Vec<u8>) {
    let Some(digits) = bytes[at..].iter().position(u8::is_ascii_digit) else { return };
    if digits < 16 {
        let from = at + digits;
        let length = bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        bytes.splice(from..from + length, number.to_string().into_bytes());
        return;
    }
    let binary: &[u8] = &match number % 3 {
        0 => number.to_le_bytes().to_vec(),
        1 => (number as u32).to_be_bytes().to_vec(),
        _ => (number as u32).to_le_bytes().to_vec(),
    };
    let end = (at + binary.len()).min(bytes.len());
    bytes.splice(at..end, binary.iter().copied());
}

/// How long one test may try inputs: `MPIENV_FUZZ_SECONDS`, or else one second.
#[expect(clippy::disallowed_methods, reason = "tests find settings where the shell does")]
fn duration() -> Duration {
    let seconds = std::env::var("MPIENV_FUZZ_SECONDS").ok();
    Duration::from_secs(
        seconds.map_or(1, |seconds| {
            seconds.parse().expect("MPIENV_FUZZ_SECONDS is a number of seconds")
        }),
    )
}

/// Tries inputs until the time is up and prints on stderr how many. Shrinks a failing input to a
/// few changes and shows it.
pub fn fuzz(
    name: &str,
    seeds: &[Vec<u8>],
    words: &[&[u8]],
    check: impl Fn(&[u8]) -> TestCaseResult,
) {
    for seed in seeds {
        check(seed).unwrap_or_else(|error| panic!("a true input: {error}"));
    }
    let recipe = (any::<Index>(), prop::collection::vec(change(), 1..8));
    let begun = Instant::now();
    let mut tried = 0;
    // Shows inputs that make the code under test wait.
    let longest = Cell::new(Duration::ZERO);
    while begun.elapsed() < duration() {
        let config = Config {
            cases: 32,
            failure_persistence: None,
            max_shrink_time: 20_000,
            ..Config::default()
        };
        tried += u64::from(config.cases);
        let run = TestRunner::new(config).run(&recipe, |(seed, changes): Recipe| {
            let mut bytes = seed.get(seeds).clone();
            changes.iter().for_each(|change| apply(change, &mut bytes, seeds, words));
            let begun = Instant::now();
            // The resulting bytes are of interest, not the recipe.
            let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&bytes)));
            longest.set(longest.get().max(begun.elapsed()));
            let shown = String::from_utf8_lossy(&bytes);
            match seen {
                Ok(done) => done.map_err(|error| {
                    TestCaseError::fail(format!("{error}: {shown:?} {bytes:?}"))
                })?,
                Err(_) => return Err(TestCaseError::fail(format!("a panic: {shown:?} {bytes:?}"))),
            }
            prop_assert!(
                begun.elapsed() < LONGEST,
                "{:?} for {shown:?} {bytes:?}",
                begun.elapsed()
            );
            Ok(())
        });
        if let Err(TestError::Fail(why, _) | TestError::Abort(why)) = run {
            panic!("{name}: {why}");
        }
    }
    bounded();
    let (took, longest) = (begun.elapsed().as_secs_f64(), longest.get().as_secs_f64());
    eprintln!("{name}: {tried} inputs in {took:.0} s, the longest in {longest:.2} s");
}

/// Asserts that no input has made the process use too much memory.
fn bounded() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (field, most) in MOST {
        let Some(held) = status.lines().find_map(|line| line.strip_prefix(field)) else { continue };
        let held: u64 = held.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(held < most, "{field} {held} KiB");
    }
}
