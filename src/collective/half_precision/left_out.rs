//! Without the feature `half`, no number has 16 bits.

use super::element::ElementKind;

impl ElementKind {
    pub(super) fn is_half(self) -> bool {
        false
    }

    pub(super) fn widen(self, _row: &[u8], _wide: &mut [f32]) {}

    pub(super) fn round(self, _wide: &[f32], _into: &mut [u8]) {}
}
