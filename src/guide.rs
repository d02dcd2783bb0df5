//! What does not fit beside an item.

#[doc = include_str!("guide/test_results.md")]
pub mod test_results {}
