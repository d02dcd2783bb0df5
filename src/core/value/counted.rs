//! A number of things in a sentence.

/// Returns `1 rank` or `4 ranks`, for nouns whose plural ends in s.
#[must_use]
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
