//! Types of a caller whose values travel as others.

use crate::element::ElementKind;

/// The types, each with its size in bytes. The index and 1 is the number in messages, which leave
/// it 6 bits. A new type goes to the end.
const TYPES: &[(&str, u64)] = &[
    ("int16", 2),
    ("uint16", 2),
    ("complex32", 4),
    ("complex64", 8),
    ("complex128", 16),
    ("float8_e4m3fn", 1),
    ("float8_e4m3fnuz", 1),
    ("float8_e5m2", 1),
    ("float8_e5m2fnuz", 1),
    ("float8_e8m0fnu", 1),
    ("float4_e2m1fn_x2", 1),
    ("qint8", 1),
    ("quint8", 1),
    ("qint32", 4),
    ("bytes of another type", 1),
];

const _: () = assert!(TYPES.len() < 1 << 6, "messages have 6 bits for the number");

/// The number of a type whose values travel as others, by its name.
#[must_use]
pub fn type_number(name: &str) -> Option<u8> {
    u8::try_from(TYPES.iter().position(|(other, _)| *other == name)? + 1).ok()
}

/// The number, or `None` if no type has it and it is not 0.
pub(crate) fn check(number: u8) -> Option<u8> {
    (usize::from(number) <= TYPES.len()).then_some(number)
}

/// How many values of which type a caller means by `count` numbers of a kind.
pub(super) fn as_meant(number: u8, kind: Option<ElementKind>, count: u64) -> (u64, &'static str) {
    let Some(kind) = kind else { return (count, "bytes") };
    let meant = usize::from(number).checked_sub(1).and_then(|index| TYPES.get(index));
    let Some(&(name, size)) = meant else { return (count, kind.name()) };
    // A narrower type is reduced as a wider one, number by number.
    let parts = (size / kind.size() as u64).max(1);
    (count / parts, name)
}

/// All types with their numbers.
#[cfg(test)]
pub(super) fn numbered() -> impl Iterator<Item = (u8, &'static str)> {
    (1..).zip(TYPES.iter().map(|(name, _)| *name))
}
