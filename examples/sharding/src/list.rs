//! Formats lists.

use std::fmt::Display;

/// Joins the items with a separator.
pub fn join<T: Display>(items: impl IntoIterator<Item = T>, separator: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(separator)
}
