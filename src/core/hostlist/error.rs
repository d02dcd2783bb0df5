//! Why a text is not a hostlist, and where.

use std::fmt;

/// Why a text is not a [`Hostlist`](super::Hostlist). Columns are counted in characters, from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostlistError {
    /// The list is empty or contains only blanks.
    #[error("column 1: expected a host, found an empty list")]
    Empty,
    /// A host is missing between two commas, before the first comma, or after the last one.
    #[error("column {column}: expected a host, found {found}")]
    ExpectedHost {
        /// Where the host should be.
        column: usize,
        /// What is there.
        found: Found,
    },
    /// A bracket is never closed.
    #[error("column {column}: \"[\" is never closed")]
    Unclosed {
        /// Where the bracket opens.
        column: usize,
    },
    /// A closing bracket has no opening bracket.
    #[error("column {column}: \"]\" closes nothing, expected a \"[\" before it")]
    Unopened {
        /// Where the bracket is.
        column: usize,
    },
    /// A bracket is inside another bracket.
    #[error(
        "column {column}: \"[\" stands inside brackets, expected a number, \",\", \"-\" or \"]\""
    )]
    Nested {
        /// Where the inner bracket opens.
        column: usize,
    },
    /// A number has no digits.
    #[error("column {column}: expected a number, found {found}")]
    ExpectedNumber {
        /// Where the number should be.
        column: usize,
        /// What is there.
        found: Found,
    },
    /// Something other than the next number or the end of the bracket follows.
    #[error("column {column}: expected {}\",\" or \"]\", found {found}", if *range { "" } else { "\"-\", " })]
    ExpectedNext {
        /// Where the unexpected text is.
        column: usize,
        /// What is there.
        found: Found,
        /// Whether a whole range was read, after which no second dash may follow.
        range: bool,
    },
    /// A range runs from a high number to a low one.
    #[error(
        "column {column}: the range {low}-{high} runs backwards, expected the lower number first"
    )]
    Backwards {
        /// Where the range begins.
        column: usize,
        /// Its first number.
        low: u64,
        /// Its last number.
        high: u64,
    },
    /// A number does not fit in `u64`.
    #[error("column {column}: the number is too big, expected at most {}", u64::MAX)]
    TooBig {
        /// Where the number begins.
        column: usize,
    },
    /// The number of hosts does not fit in `u64`.
    #[error("column {column}: the list has too many hosts, expected at most {}", u64::MAX)]
    TooMany {
        /// Where the host expression that exceeds the limit begins.
        column: usize,
    },
    /// A brace begins a host function, which is not a list.
    #[error(
        "column {column}: expected a host, found {found}: host functions are known to slurm's \
         controller only, `scontrol show hostnames` lists the hosts"
    )]
    Function {
        /// Where the brace is.
        column: usize,
        /// The brace.
        found: Found,
    },
}

impl HostlistError {
    /// Returns the column of the error, counted in characters from 1.
    #[must_use]
    pub fn column(&self) -> usize {
        match *self {
            HostlistError::Empty => 1,
            HostlistError::ExpectedHost { column, .. }
            | HostlistError::Unclosed { column }
            | HostlistError::Unopened { column }
            | HostlistError::Nested { column }
            | HostlistError::ExpectedNumber { column, .. }
            | HostlistError::ExpectedNext { column, .. }
            | HostlistError::Backwards { column, .. }
            | HostlistError::TooBig { column }
            | HostlistError::TooMany { column }
            | HostlistError::Function { column, .. } => column,
        }
    }
}

/// What is at the column of a [`HostlistError`]: a character, or the end of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// This character.
    Character(char),
    /// The end of the list.
    End,
}

impl Found {
    /// Returns what is at byte `at`.
    pub(super) fn at(text: &str, at: usize) -> Found {
        text.get(at..).and_then(|rest| rest.chars().next()).map_or(Found::End, Found::Character)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Found::Character('"') => f.write_str("'\"'"),
            Found::Character(character) => write!(f, "\"{}\"", character.escape_debug()),
            Found::End => f.write_str("the end"),
        }
    }
}

/// Returns the column of byte `at`.
pub(super) fn column(text: &str, at: usize) -> usize {
    text.char_indices().take_while(|&(start, _)| start < at).count() + 1
}
