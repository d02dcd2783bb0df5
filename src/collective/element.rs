//! The numbers that ranks reduce, and how.

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
///
/// ```
/// use mpienv::collective::ElementKind;
///
/// assert_eq!(ElementKind::F32.name(), "f32");
/// assert_eq!(ElementKind::I64.size(), 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
///
/// ```
/// use mpienv::collective::Reduction;
///
/// assert_ne!(Reduction::Sum, Reduction::Max);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reduction {
    /// Adds the numbers. Integers wrap around.
    Sum,
    /// Takes the smallest number. If one is NaN, the result is NaN.
    Min,
    /// Takes the largest number. If one is NaN, the result is NaN.
    Max,
}

mod sealed {
    pub trait Sealed: bytemuck::Pod {
        fn sum(self, other: Self) -> Self;
        fn min(self, other: Self) -> Self;
        fn max(self, other: Self) -> Self;
    }
}

/// Implements each element type, from its Rust name, its kind and its addition.
macro_rules! elements {
    ($($number:ident $kind:ident $add:expr;)*) => {
        $(
            impl sealed::Sealed for $number {
                fn sum(self, other: $number) -> $number {
                    $add(self, other)
                }

                // Only NaN differs from itself.
                fn min(self, other: $number) -> $number {
                    if self <= other || self != self { self } else { other }
                }

                fn max(self, other: $number) -> $number {
                    if self >= other || self != self { self } else { other }
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

            /// Combines each number in `into` with the one in `from`, which comes after it in rank
            /// order.
            pub(super) fn combine(self, by: Reduction, into: &mut [u8], from: &[u8]) {
                match self {
                    // Empty slices may be unaligned, which the casts reject.
                    _ if into.is_empty() => {}
                    $(ElementKind::$kind => combine::<$number>(by, cast_slice_mut(into), cast_slice(from)),)*
                }
            }

            /// Combines each number in `into` with the one in `from`, which comes before it in rank
            /// order.
            pub(super) fn combine_before(self, by: Reduction, into: &mut [u8], from: &[u8]) {
                match self {
                    _ if into.is_empty() => {}
                    $(ElementKind::$kind => combine_before::<$number>(by, cast_slice_mut(into), cast_slice(from)),)*
                }
            }
        }
    };
}

elements! {
    f32 F32 |a, b| a + b;
    f64 F64 |a, b| a + b;
    i32 I32 i32::wrapping_add;
    i64 I64 i64::wrapping_add;
    u32 U32 u32::wrapping_add;
    u64 U64 u64::wrapping_add;
}

impl ElementKind {
    /// The kind's number in a message; 0 stands for none.
    pub(super) fn code(kind: Option<ElementKind>) -> u8 {
        kind.map_or(0, |kind| kind as u8 + 1)
    }

    pub(super) fn from_code(code: u8) -> Option<ElementKind> {
        ElementKind::ALL.get(usize::from(code.checked_sub(1)?)).copied()
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

fn combine_before<T: sealed::Sealed>(by: Reduction, into: &mut [T], from: &[T]) {
    let pairs = into.iter_mut().zip(from);
    match by {
        Reduction::Sum => pairs.for_each(|(b, &a)| *b = a.sum(*b)),
        Reduction::Min => pairs.for_each(|(b, &a)| *b = a.min(*b)),
        Reduction::Max => pairs.for_each(|(b, &a)| *b = a.max(*b)),
    }
}

/// The numbers of one rank, as passed to a [`Transport`](super::Transport): the bytes of any
/// [`Element`] type.
///
/// ```
/// use mpienv::collective::{ElementKind, Numbers};
///
/// let mut values = [1.5_f32, 2.0];
/// let mut numbers = Numbers::new(&mut values);
/// assert_eq!((numbers.kind(), numbers.count()), (ElementKind::F32, 2));
/// assert_eq!(numbers.bytes().len(), 8);
/// numbers.as_mut::<f32>().expect("they are f32")[1] += 1.0;
/// assert_eq!(values, [1.5, 3.0]);
/// ```
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

    /// The byte range of the part that a rank keeps in a reduce-scatter.
    pub(super) fn part(&self, index: usize, size: usize) -> std::ops::Range<usize> {
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
    fn nan_wins_over_every_number_from_either_side() {
        for by in [Reduction::Min, Reduction::Max] {
            for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::NAN, f32::NAN)] {
                let (mut after, mut before) = ([a], [b]);
                combine(by, &mut after, &[b]);
                combine_before(by, &mut before, &[a]);
                assert!(after[0].is_nan() && before[0].is_nan(), "{by:?} {a} {b}");
            }
        }
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
        for &kind in ElementKind::ALL {
            assert_eq!(ElementKind::from_code(ElementKind::code(Some(kind))), Some(kind));
        }
        assert_eq!((ElementKind::code(None), ElementKind::from_code(0)), (0, None));
        assert_eq!(ElementKind::from_code(200), None);
    }
}
