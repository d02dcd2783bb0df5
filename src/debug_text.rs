//! Errors whose `Debug` is their text.
//!
//! `fn main() -> Result<(), mpienv::Error>` and `unwrap` print it.

macro_rules! debug_is_text {
    ($error:ty) => {
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}
