//! Why a text is not a hostlist, and where.

use std::fmt;

/// Why a text is not a [`Hostlist`](super::Hostlist).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {fault}")]
#[non_exhaustive]
pub struct HostlistError {
    /// Where, counted in characters from 1.
    pub column: usize,
    fault: Fault,
}

impl HostlistError {
    /// A fault at byte `at`.
    pub(super) fn new(text: &str, at: usize, fault: Fault) -> HostlistError {
        let before = text.char_indices().take_while(|&(start, _)| start < at);
        HostlistError { column: before.count() + 1, fault }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("expected a host, found an empty list")]
    Empty,
    /// A host is missing between two commas, before the first comma, or after the last one.
    #[error("expected a host, found {0}")]
    ExpectedHost(Found),
    #[error("\"[\" is never closed")]
    Unclosed,
    #[error("\"]\" closes nothing, expected a \"[\" before it")]
    Unopened,
    #[error("\"[\" stands inside brackets, expected a number, \",\", \"-\" or \"]\"")]
    Nested,
    #[error("expected a number, found {0}")]
    ExpectedNumber(Found),
    #[error("expected {}\",\" or \"]\", found {found}", if *range { "" } else { "\"-\", " })]
    ExpectedNext {
        found: Found,
        /// Whether a whole range was read, after which no second dash may follow.
        range: bool,
    },
    #[error("the range {low}-{high} runs backwards, expected the lower number first")]
    Backwards { low: u64, high: u64 },
    #[error("the number is too big, expected at most {}", u64::MAX)]
    TooBig,
    #[error("the list has too many hosts, expected at most {}", u64::MAX)]
    TooMany,
    /// A brace begins a host function, which is not a list.
    #[error(
        "expected a host, found {0}: host functions are known to slurm's controller only, `scontrol \
         show hostnames` lists the hosts"
    )]
    Function(Found),
}

/// What is at the column of an error: a character, or the end of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Character(char),
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
