//! Lists as text.

use std::fmt::Display;

/// The items with a separator between them.
pub(crate) fn join<T: Display>(items: impl IntoIterator<Item = T>, separator: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(separator)
}
