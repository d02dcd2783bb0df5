//! Tests that measure their own process.

#[path = "../support"]
mod support {
    #[path = "../../../../tests/support/mutation.rs"]
    pub mod mutation;
}

mod fuzz;
