//! A call, as other ranks read it in the memory.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::call::Call;

/// A call. It is stored and loaded relaxed: what the rank publishes next shows it to the others.
#[repr(C)]
pub(super) struct Described {
    codes: AtomicU32,
    root: AtomicU32,
    count: AtomicU64,
}

impl Described {
    pub(super) fn store(&self, call: Call) {
        let [operation, kind, how] = call.codes();
        self.codes.store(u32::from_le_bytes([operation, kind, how, 0]), Ordering::Relaxed);
        self.root.store(call.root, Ordering::Relaxed);
        self.count.store(call.count, Ordering::Relaxed);
    }

    /// The call; `None` if it cannot be read.
    pub(super) fn load(&self) -> Option<Call> {
        let [operation, kind, how, _] = self.codes.load(Ordering::Relaxed).to_le_bytes();
        let root = self.root.load(Ordering::Relaxed);
        Call::from_codes([operation, kind, how], self.count.load(Ordering::Relaxed), root)
    }
}
