//! The numbers that ranks reduce, and how.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};

use mpienv_core::seam::share;

/// A number that ranks can reduce: `f32`, `f64`, `i32`, `i64`, `u32` or `u64`.
///
/// ```
/// use mpienv::collective::{CollectiveError, Element, Group};
///
/// fn largest<T: Element>(group: &mut Group, value: T) -> Result<T, CollectiveError> {
///     let mut values = [value];
///     group.all_reduce_max(&mut values)?;
///     Ok(values[0])
/// }
/// assert_eq!(largest(&mut Group::alone(), 7_u64)?, 7);
/// # Ok::<(), CollectiveError>(())
/// ```
pub trait Element: sealed::Sealed {
    #[doc(hidden)]
    const KIND: ElementKind;
}

/// The type of an [`Element`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementKind {
    /// `f32`
    F32,
    /// `f64`
    F64,
    /// `i32`
    I32,
    /// `i64`
    I64,
    /// `u32`
    U32,
    /// `u64`
    U64,
}

/// How the numbers of all ranks are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Adds the numbers. Integers wrap around.
    Sum,
    /// Takes the smallest number, of 0.0 and -0.0 the latter. If one is NaN, the result is NaN.
    Min,
    /// Takes the largest number, of 0.0 and -0.0 the former. If one is NaN, the result is NaN.
    Max,
}

mod sealed {
    pub trait Sealed: bytemuck::Pod {
        fn sum(self, other: Self) -> Self;
        fn min(self, other: Self) -> Self;
        fn max(self, other: Self) -> Self;
    }
}

/// Implements each element type, from its Rust name, its kind, its addition, and what is true of
/// -0.0.
macro_rules! elements {
    ($($number:ident $kind:ident $add:expr, $is_negative:expr;)*) => {
        $(
            impl sealed::Sealed for $number {
                fn sum(self, other: $number) -> $number {
                    $add(self, other)
                }

                // Only NaN differs from itself. -0.0 is less than 0.0, which equals it.
                fn min(self, other: $number) -> $number {
                    let is_first = self < other || self == other && $is_negative(self);
                    if is_first || self != self { self } else { other }
                }

                fn max(self, other: $number) -> $number {
                    let is_first = self > other || self == other && !$is_negative(self);
                    if is_first || self != self { self } else { other }
                }
            }

            impl Element for $number {
                const KIND: ElementKind = ElementKind::$kind;
            }
        )*

        impl ElementKind {
            const ALL: &'static [ElementKind] = &[$(ElementKind::$kind),*];

            /// The name in Rust.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(ElementKind::$kind => stringify!($number),)*
                }
            }

            /// The size in bytes.
            #[must_use]
            pub const fn size(self) -> usize {
                match self {
                    $(ElementKind::$kind => size_of::<$number>(),)*
                }
            }

            /// Combines each number in `into` with the one in `from`, which comes before or after
            /// it in rank order: the bits are the same.
            pub(super) fn combine(self, by: Reduction, into: &mut [u8], from: &[u8]) {
                match self {
                    // Empty slices may be unaligned, which the casts reject.
                    _ if into.is_empty() => {}
                    $(ElementKind::$kind => {
                        combine::<$number>(by, cast_slice_mut(into), cast_slice(from));
                    })*
                }
            }
        }
    };
}

elements! {
    f32 F32 |a, b| a + b, f32::is_sign_negative;
    f64 F64 |a, b| a + b, f64::is_sign_negative;
    i32 I32 i32::wrapping_add, |_| false;
    i64 I64 i64::wrapping_add, |_| false;
    u32 U32 u32::wrapping_add, |_| false;
    u64 U64 u64::wrapping_add, |_| false;
}

impl ElementKind {
    /// The kind's number in a message; 0 stands for none.
    pub(super) fn code(kind: Option<ElementKind>) -> u8 {
        kind.map_or(0, |kind| kind as u8 + 1)
    }

    /// The kind or none of this number in a message; `None` if no kind has it.
    pub(super) fn from_code(code: u8) -> Option<Option<ElementKind>> {
        match usize::from(code).checked_sub(1) {
            None => Some(None),
            Some(index) => ElementKind::ALL.get(index).copied().map(Some),
        }
    }
}

fn combine<T: sealed::Sealed>(by: Reduction, into: &mut [T], from: &[T]) {
    let pairs = into.iter_mut().zip(from);
    match by {
        Reduction::Sum => pairs.for_each(|(a, &b)| *a = a.sum(b)),
        Reduction::Min => pairs.for_each(|(a, &b)| *a = a.min(b)),
        Reduction::Max => pairs.for_each(|(a, &b)| *a = a.max(b)),
    }
}

/// The numbers of one rank, as passed to a transport: the bytes of any [`Element`] type.
#[derive(Debug)]
pub struct Numbers<'a> {
    kind: ElementKind,
    bytes: &'a mut [u8],
}

impl<'a> Numbers<'a> {
    /// The numbers of a slice.
    pub fn new<T: Element>(values: &'a mut [T]) -> Numbers<'a> {
        Numbers { kind: T::KIND, bytes: cast_slice_mut(values) }
    }

    /// The type of the numbers.
    #[must_use]
    pub fn kind(&self) -> ElementKind {
        self.kind
    }

    /// How many numbers there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes.len() / self.kind.size()
    }

    /// The numbers as a slice; `None` if they have another type.
    pub fn as_mut<T: Element>(&mut self) -> Option<&mut [T]> {
        (T::KIND == self.kind).then(|| cast_slice_mut(self.bytes))
    }

    /// The bytes of the numbers, in the byte order of this machine.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// Replaces these numbers with the reduction of all ranks' `rows`, in rank order.
    pub(super) fn reduce<'r>(&mut self, by: Reduction, rows: impl Iterator<Item = &'r [u8]>) {
        // A vector of bytes may be unaligned for numbers.
        let mut aligned = Scratch::default();
        for (rank, row) in rows.enumerate() {
            if rank == 0 {
                self.bytes.copy_from_slice(row);
            } else {
                let aligned = aligned.bytes(row.len());
                aligned.copy_from_slice(row);
                self.kind.combine(by, self.bytes, aligned);
            }
        }
    }

    /// The bytes of the parts of all ranks, in rank order.
    pub(super) fn parts(&mut self, size: usize) -> Vec<&mut [u8]> {
        let ranges = self.ranges(size);
        let mut rest = &mut *self.bytes;
        let next = |range: Range<usize>| {
            let part;
            (part, rest) = std::mem::take(&mut rest).split_at_mut(range.len());
            part
        };
        ranges.into_iter().map(next).collect()
    }

    /// The byte ranges of the parts of all ranks.
    pub(super) fn ranges(&self, size: usize) -> Vec<Range<usize>> {
        (0..size).map(|rank| self.part(rank, size)).collect()
    }

    /// The byte range of the part that a rank keeps in a reduce-scatter.
    pub(super) fn part(&self, index: usize, size: usize) -> Range<usize> {
        let part = share(self.count(), index, size);
        part.start * self.kind.size()..part.end * self.kind.size()
    }

    /// Like [`Numbers::blocks`], but with a single empty block if there are no numbers, so that
    /// ranks still meet.
    #[cfg(target_os = "linux")]
    pub(super) fn blocks_or_none(&mut self, bytes: usize) -> impl Iterator<Item = Numbers<'_>> {
        let kind = self.kind;
        let none = self.bytes.is_empty().then_some(Numbers { kind, bytes: &mut [] });
        none.into_iter().chain(self.blocks(bytes))
    }

    /// The numbers, `bytes` bytes at a time.
    pub(super) fn blocks(&mut self, bytes: usize) -> impl Iterator<Item = Numbers<'_>> {
        let kind = self.kind;
        self.bytes.chunks_mut(bytes).map(move |bytes| Numbers { kind, bytes })
    }
}

/// Combines the `rows` of all ranks in rank order, into `into`.
pub(super) fn in_rank_order<'r>(
    kind: ElementKind,
    by: Reduction,
    rows: impl IntoIterator<Item = &'r [u8]>,
    into: &mut [u8],
) {
    for (rank, row) in rows.into_iter().enumerate() {
        if rank == 0 {
            into.copy_from_slice(row);
        } else {
            kind.combine(by, into, row);
        }
    }
}

/// A reusable buffer, aligned for every element type. It grows to what the largest call needs and
/// never shrinks.
#[derive(Debug, Default)]
pub(super) struct Scratch(Vec<u64>);

impl Scratch {
    /// The first `length` bytes.
    pub(super) fn bytes(&mut self, length: usize) -> &mut [u8] {
        let words = length.div_ceil(size_of::<u64>());
        if self.0.len() < words {
            self.0.resize(words, 0);
        }
        &mut cast_slice_mut(&mut self.0[..words])[..length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_wins_over_every_number_and_zeros_are_ordered_from_either_side() {
        let combined = |by, a: f32, b: f32| {
            let mut values = [a, b];
            combine(by, &mut values, &[b, a]);
            values.map(f32::to_bits)
        };
        for by in [Reduction::Min, Reduction::Max] {
            for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::NAN, f32::NAN)] {
                assert!(combined(by, a, b).map(f32::from_bits).iter().all(|value| value.is_nan()));
            }
        }
        assert_eq!(combined(Reduction::Min, -0.0, 0.0), [(-0.0_f32).to_bits(); 2]);
        assert_eq!(combined(Reduction::Max, -0.0, 0.0), [0; 2]);
    }

    #[test]
    fn integers_wrap_around_and_are_compared() {
        let mut values = [i32::MAX, -3];
        combine(Reduction::Sum, &mut values, &[1, 1]);
        assert_eq!(values, [i32::MIN, -2]);
        combine(Reduction::Max, &mut values, &[0, -9]);
        assert_eq!(values, [0, -2]);
        combine(Reduction::Min, &mut values, &[5, -9]);
        assert_eq!(values, [0, -9]);
    }

    #[test]
    fn every_kind_has_a_code_that_leads_back_to_it() {
        for kind in ElementKind::ALL.iter().copied().map(Some).chain([None]) {
            assert_eq!(ElementKind::from_code(ElementKind::code(kind)), Some(kind));
        }
        assert_eq!(ElementKind::from_code(200), None);
    }
}
