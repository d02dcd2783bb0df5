//! The numbers of one rank, as a transport sees them.

use std::ops::Range;

use bytemuck::{Pod, cast_slice_mut};

use super::element::{Element, ElementKind};
use mpienv_core::seam::share;

/// The numbers of one rank, as passed to a transport: the bytes of any [`Element`] type.
#[derive(Debug)]
pub struct Numbers<'a> {
    kind: ElementKind,
    bytes: &'a mut [u8],
}

impl<'a> Numbers<'a> {
    /// The numbers of a slice.
    pub fn new<T: Element + Pod>(values: &'a mut [T]) -> Numbers<'a> {
        Numbers::of(T::KIND, cast_slice_mut(values))
    }

    /// Numbers of a type that is known only at run time, from their bytes; `None` if these are not
    /// aligned for the type or not a whole number of it.
    pub fn from_bytes(kind: ElementKind, bytes: &'a mut [u8]) -> Option<Numbers<'a>> {
        if bytes.is_empty() {
            // Aligned for every type.
            return Some(Numbers::of(kind, cast_slice_mut::<u64, u8>(&mut [])));
        }
        let size = kind.size();
        // The alignment of a number is its size.
        let is_aligned = bytes.as_ptr().addr().is_multiple_of(size);
        (is_aligned && bytes.len().is_multiple_of(size)).then(|| Numbers::of(kind, bytes))
    }

    /// Numbers of a type, which are aligned for it.
    pub(super) fn of(kind: ElementKind, bytes: &'a mut [u8]) -> Numbers<'a> {
        Numbers { kind, bytes }
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
    pub fn as_mut<T: Element + Pod>(&mut self) -> Option<&mut [T]> {
        (T::KIND == self.kind).then(|| cast_slice_mut(self.bytes))
    }

    /// How many bytes the numbers have.
    pub(super) fn length(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of the numbers, in the byte order of this machine.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// The bytes of the numbers, for as long as these live.
    pub(super) fn into_bytes(self) -> &'a mut [u8] {
        self.bytes
    }

    /// Lets `compute` overwrite the numbers, `part` bytes at a time.
    pub(super) fn compute(&mut self, part: usize, compute: &mut dyn FnMut(usize, &mut [u8])) {
        for (index, bytes) in self.bytes.chunks_mut(part).enumerate() {
            compute(index * part, bytes);
        }
    }

    /// The bytes of the parts of all ranks, in rank order.
    pub(super) fn parts(&mut self, size: usize) -> Vec<&mut [u8]> {
        let ranges = self.ranges(size);
        let mut rest = &mut *self.bytes;
        let next = |range: Range<usize>| rest.split_off_mut(..range.len()).unwrap_or_default();
        ranges.into_iter().map(next).collect()
    }

    /// The byte ranges of the parts of all ranks.
    pub(super) fn ranges(&self, size: usize) -> Vec<Range<usize>> {
        self.kind.ranges(self.count(), size)
    }

    /// The numbers, `bytes` bytes at a time. If there are none, a single empty block, so that ranks
    /// still meet.
    pub(super) fn blocks(&mut self, bytes: usize) -> impl Iterator<Item = Numbers<'_>> {
        let kind = self.kind;
        let none = self.bytes.is_empty().then_some(&mut [][..]);
        none.into_iter()
            .chain(self.bytes.chunks_mut(bytes))
            .map(move |bytes| Numbers { kind, bytes })
    }
}

impl ElementKind {
    /// The byte ranges of the parts of all ranks in a reduce-scatter of `count` numbers.
    pub(super) fn ranges(self, count: usize, size: usize) -> Vec<Range<usize>> {
        (0..size).map(|rank| self.part(count, rank, size)).collect()
    }

    /// The byte range of one rank's part.
    pub(super) fn part(self, count: usize, index: usize, size: usize) -> Range<usize> {
        let part = share(count, index, size);
        part.start * self.size()..part.end * self.size()
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
