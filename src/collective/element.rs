//! The types of numbers that ranks exchange and reduce.

use bytemuck::{cast_slice, cast_slice_mut};
#[cfg(feature = "half")]
use half::{bf16, f16};

/// A number that ranks can exchange and reduce: `f32`, `f64`, `i8`, `i32`, `i64`, `u8`, `u32`,
/// `u64`, `bool` or, with the feature `half`, `f16` and `bf16` of the crate `half`.
///
/// Sums, products and means of `f16` and `bf16` are computed in `f32`, in rank order, and rounded
/// once. Of `bool`, the sum and the maximum are true if any rank's value is, and the product and
/// the minimum if all are. Bytes are `u8`.
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
#[diagnostic::on_unimplemented(
    message = "ranks cannot exchange `{Self}`",
    label = "not a number that ranks can exchange",
    note = "ranks exchange f32, f64, i8, i32, i64, u8, u32, u64 and bool, and with the feature `half` of mpienv also f16 and bf16",
    note = "convert usize to u64, because its size depends on the machine, and split complex numbers"
)]
pub trait Element: sealed::Sealed {
    #[doc(hidden)]
    const KIND: ElementKind;
}

mod sealed {
    pub trait Sealed: bytemuck::NoUninit + Default {
        /// Lets `work` change the bytes of `values`.
        fn with_bytes<R>(values: &mut [Self], work: impl FnOnce(&mut [u8]) -> R) -> R;

        /// Lets `work` change the bytes of each of `parts`.
        fn with_parts<R>(parts: &mut [Vec<Self>], work: impl FnOnce(&mut [&mut [u8]]) -> R) -> R;

        /// Lets `work` overwrite the values of which these are the aligned bytes.
        fn overwrite(bytes: &mut [u8], work: impl FnOnce(&mut [Self]));
    }
}

/// Numbers of any bits: their bytes can be changed in place.
macro_rules! plain {
    ($($(#[$cfg:meta])? $number:ident)*) => {
        $($(#[$cfg])? impl sealed::Sealed for $number {
            fn with_bytes<R>(values: &mut [$number], work: impl FnOnce(&mut [u8]) -> R) -> R {
                work(cast_slice_mut(values))
            }

            fn with_parts<R>(
                parts: &mut [Vec<$number>],
                work: impl FnOnce(&mut [&mut [u8]]) -> R,
            ) -> R {
                let mut parts: Vec<_> = parts.iter_mut().map(|part| cast_slice_mut(part)).collect();
                work(&mut parts)
            }

            fn overwrite(bytes: &mut [u8], work: impl FnOnce(&mut [$number])) {
                work(cast_slice_mut(bytes));
            }
        })*
    };
}

plain! { f32 f64 i32 i64 u32 u64 i8 u8 #[cfg(feature = "half")] f16 #[cfg(feature = "half")] bf16 }

impl sealed::Sealed for bool {
    // Another rank may send a byte that is no bool.
    fn with_bytes<R>(values: &mut [bool], work: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut bytes = cast_slice::<bool, u8>(values).to_vec();
        let result = work(&mut bytes);
        values.iter_mut().zip(bytes).for_each(|(value, byte)| *value = byte != 0);
        result
    }

    fn with_parts<R>(parts: &mut [Vec<bool>], work: impl FnOnce(&mut [&mut [u8]]) -> R) -> R {
        let mut bytes: Vec<Vec<u8>> = parts.iter().map(|part| cast_slice(part).to_vec()).collect();
        let result = u8::with_parts(&mut bytes, work);
        for (part, bytes) in parts.iter_mut().zip(bytes) {
            *part = bytes.into_iter().map(|byte| byte != 0).collect();
        }
        result
    }

    fn overwrite(bytes: &mut [u8], work: impl FnOnce(&mut [bool])) {
        let mut values = vec![false; bytes.len()];
        work(&mut values);
        bytes.copy_from_slice(cast_slice(&values));
    }
}

/// Defines the kinds, from each type's name in Rust, its kind and its number in messages.
macro_rules! kinds {
    ($($(#[$cfg:meta])? $number:ident $kind:ident $code:literal)*) => {
        /// The type of an [`Element`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ElementKind {
            $($(#[$cfg])? #[doc = concat!("`", stringify!($number), "`")] $kind = $code,)*
        }

        $($(#[$cfg])? impl Element for $number {
            const KIND: ElementKind = ElementKind::$kind;
        })*

        impl ElementKind {
            /// All types, in the order of their numbers in messages.
            pub const ALL: &'static [ElementKind] = &[$($(#[$cfg])? ElementKind::$kind),*];

            /// The name in Rust.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($(#[$cfg])? ElementKind::$kind => stringify!($number),)*
                }
            }

            /// The size in bytes.
            #[must_use]
            pub const fn size(self) -> usize {
                match self {
                    $($(#[$cfg])? ElementKind::$kind => size_of::<$number>(),)*
                }
            }
        }
    };
}

kinds! {
    f32 F32 1
    f64 F64 2
    i32 I32 3
    i64 I64 4
    u32 U32 5
    u64 U64 6
    #[cfg(feature = "half")]
    f16 F16 7
    #[cfg(feature = "half")]
    bf16 Bf16 8
    i8 I8 9
    u8 U8 10
    bool Bool 11
}

impl ElementKind {
    /// The kind's number in a message; 0 stands for none.
    pub(super) fn code(kind: Option<ElementKind>) -> u8 {
        kind.map_or(0, |kind| kind as u8)
    }

    /// The kind or none of this number in a message; `None` if no kind has it.
    pub(super) fn from_code(code: u8) -> Option<Option<ElementKind>> {
        if code == 0 {
            return Some(None);
        }
        ElementKind::ALL.iter().find(|kind| **kind as u8 == code).copied().map(Some)
    }

    /// Whether the numbers have fractions, so that they have a mean.
    pub(super) fn has_fractions(self) -> bool {
        matches!(self, ElementKind::F32 | ElementKind::F64) || self.is_half()
    }
}

#[cfg(test)]
mod tests {
    use super::sealed::Sealed as _;
    use super::*;

    #[test]
    fn every_kind_has_a_code_that_leads_back_to_it() {
        for kind in ElementKind::ALL.iter().copied().map(Some).chain([None]) {
            assert_eq!(ElementKind::from_code(ElementKind::code(kind)), Some(kind));
        }
        assert_eq!(ElementKind::from_code(200), None);
    }

    #[test]
    fn a_byte_that_is_no_bool_becomes_one() {
        let mut values = [true, false, false];
        bool::with_bytes(&mut values, |bytes| {
            assert_eq!(bytes, [1, 0, 0]);
            bytes.copy_from_slice(&[0, 1, 255]);
        });
        assert_eq!(values, [false, true, true]);
    }
}
