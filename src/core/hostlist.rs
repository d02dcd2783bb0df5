//! Slurm's hostlists, as in `SLURM_STEP_NODELIST`: `gpu[01-04,07],login`.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::{fmt, iter};

/// A hostlist in Slurm's grammar, checked as a whole and expanded only on demand.
///
/// ```
/// use mpienv_core::seam::Hostlist;
///
/// let list = Hostlist::parse("gpu[09-11],login")?;
/// assert_eq!(list.first(), "gpu09");
/// assert_eq!(list.len(), 4);
/// assert_eq!(list.iter().collect::<Vec<_>>(), ["gpu09", "gpu10", "gpu11", "login"]);
///
/// let error = Hostlist::parse("gpu[1-2").unwrap_err();
/// assert_eq!(error.to_string(), r#"column 4: "[" is never closed"#);
/// # Ok::<(), mpienv_core::seam::HostlistError>(())
/// ```
///
/// # The grammar
/// - Hosts are separated by a comma, by blanks, tabs or line breaks, or by a comma with any of
///   these around it (Slurm 22.05 does not split at line breaks, newer ones do). Blanks at both
///   ends are ignored. Slurm skips empty places between commas
///   (`a,,b`); here they are errors, as is a list without a host.
/// - A bracket holds numbers and ranges: `n[1,3-5]`. The length of the low number is the minimum
///   number of digits: `n[08-10]` is `n08 n09 n10`, and `n[8-010]` is `n8 n9 n10`.
/// - A host may have several brackets, and text after the last one: `rack[1-2]n[1-2]-ib`
///   (Slurm 22.05 refuses text after the last bracket, newer ones accept it).
/// - Order and duplicates are kept. The last bracket varies fastest, then the first, the second and
///   so on, as in Slurm: of three brackets, the middle one varies slowest. `[0-1][0-1][0-1]` is
///   `000 001 100 101 010 011 110 111`.
/// - Slurm reads `n[1-]` as `n1`, an unclosed `n[1` as a host `n]`, and signs or blanks before a
///   number; all of these are errors here. So are host functions (`{feature}`), which only
///   Slurm's controller can expand.
/// - Slurm limits a range to 64 Ki hosts. Here, each number and the number of hosts must fit in
///   `u64`.
///
/// The names are not checked beyond this grammar: [`Host`](crate::Host) does that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hostlist<'a> {
    expressions: Vec<Expression<'a>>,
    len: u64,
}

#[expect(clippy::len_without_is_empty, reason = "a hostlist names at least one host")]
impl<'a> Hostlist<'a> {
    /// Checks the whole list in one pass, without expanding it.
    ///
    /// # Errors
    /// Returns an error if the list is malformed. The error names the column and what was expected
    /// there.
    pub fn parse(text: &'a str) -> Result<Hostlist<'a>, HostlistError> {
        let mut scanner = Scanner { text, at: 0 };
        let (mut expressions, mut len) = (Vec::new(), 0u64);
        while let Some((start, expression)) = scanner.expression()? {
            let too_many = || HostlistError::new(text, start, Fault::TooMany);
            len = len.checked_add(expression.count).ok_or_else(too_many)?;
            expressions.push(expression);
        }
        if len == 0 {
            return Err(HostlistError::new(text, 0, Fault::Empty));
        }
        Ok(Hostlist { expressions, len })
    }

    /// Returns the first host, without expanding the list.
    #[must_use]
    pub fn first(&self) -> Cow<'a, str> {
        self.iter().next().unwrap_or_default()
    }

    /// Returns the number of hosts, at least 1. A host that is named twice counts twice.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns an iterator over all hosts in Slurm's order.
    pub fn iter(&self) -> impl Iterator<Item = Cow<'a, str>> {
        self.expressions
            .iter()
            .flat_map(|expression| (0..expression.count).map(|index| expression.host(index)))
    }
}

/// Why a text is not a [`Hostlist`].
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
    fn new(text: &str, at: usize, fault: Fault) -> HostlistError {
        let before = text.char_indices().take_while(|&(start, _)| start < at);
        HostlistError { column: before.count() + 1, fault }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Fault {
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
enum Found {
    Character(char),
    End,
}

impl Found {
    /// Returns what is at byte `at`.
    fn at(text: &str, at: usize) -> Found {
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

/// A host expression, such as `rack[1-2]n[1-4]-ib`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Expression<'a> {
    brackets: Vec<Bracket<'a>>,
    /// The text after the last bracket.
    tail: &'a str,
    /// The number of hosts it stands for, at least 1.
    count: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Bracket<'a> {
    /// The text before the bracket.
    before: &'a str,
    ranges: Vec<Range>,
    /// How many numbers it stands for.
    count: u64,
}

/// `low-high` in a bracket, or one number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    low: u64,
    high: u64,
    /// The minimum number of digits.
    width: usize,
    /// How many of the bracket's numbers come before this range.
    before: u64,
}

impl<'a> Expression<'a> {
    /// Returns the host of this number, below `count`.
    fn host(&self, index: u64) -> Cow<'a, str> {
        let Some((last, others)) = self.brackets.split_last() else {
            return Cow::Borrowed(self.tail);
        };
        // In Slurm's order: the last varies fastest, then the first, the second and so on.
        let (mut rest, of_last) = (index / last.count, index % last.count);
        let mut name = String::new();
        for bracket in others {
            bracket.push(&mut name, rest % bracket.count);
            rest /= bracket.count;
        }
        last.push(&mut name, of_last);
        name += self.tail;
        Cow::Owned(name)
    }
}

impl Bracket<'_> {
    /// Appends the text before the bracket and the number at this place, below `count`.
    fn push(&self, name: &mut String, place: u64) {
        name.push_str(self.before);
        let next = self.ranges.partition_point(|range| range.before <= place);
        if let Some(range) = next.checked_sub(1).and_then(|at| self.ranges.get(at)) {
            let number = range.low + (place - range.before);
            // Not `{:0width$}`, which panics on a width beyond `u16`.
            let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
            name.extend(iter::repeat_n('0', range.width.saturating_sub(digits)));
            let _ = write!(name, "{number}");
        }
    }
}

/// Scans a list, one host expression at a time.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    /// Returns the next host expression and its first byte, or `None` at the end.
    fn expression(&mut self) -> Result<Option<(usize, Expression<'a>)>, HostlistError> {
        let first = self.at == 0;
        let mut comma = false;
        self.skip_blanks();
        if !first && self.byte() == Some(b',') {
            comma = true;
            self.at += 1;
            self.skip_blanks();
        }
        match self.byte() {
            None if !comma => return Ok(None),
            None | Some(b',') => return Err(self.error(Fault::ExpectedHost(self.found()))),
            Some(_) => {}
        }
        let start = self.at;
        let (mut brackets, mut from, mut count) = (Vec::new(), start, 1u64);
        loop {
            match self.byte() {
                Some(b'[') => {
                    let bracket = self.bracket(from)?;
                    let too_many = || HostlistError::new(self.text, start, Fault::TooMany);
                    let all = bracket.as_ref().and_then(|own| count.checked_mul(own.count));
                    count = all.ok_or_else(too_many)?;
                    brackets.extend(bracket);
                    from = self.at;
                }
                Some(b']') => return Err(self.error(Fault::Unopened)),
                Some(b'{' | b'}') => return Err(self.error(Fault::Function(self.found()))),
                None | Some(b',' | b' ' | b'\t' | b'\n') => break,
                Some(_) => self.at += 1,
            }
        }
        let tail = &self.text[from..self.at];
        Ok(Some((start, Expression { brackets, tail, count })))
    }

    /// Reads a bracket, with the text before it from byte `from` on. Returns `None` if the number
    /// of its numbers does not fit in `u64`.
    fn bracket(&mut self, from: usize) -> Result<Option<Bracket<'a>>, HostlistError> {
        let (open, before) = (self.at, &self.text[from..self.at]);
        let (mut ranges, mut count) = (Vec::new(), Some(0u64));
        loop {
            let (mut range, end) = range(self.text, open, self.at + 1)?;
            range.before = count.unwrap_or_default();
            // `high - low + 1` overflows for the range of all numbers.
            let numbers = (range.high - range.low).checked_add(1);
            count = count.zip(numbers).and_then(|(count, numbers)| count.checked_add(numbers));
            ranges.push(range);
            self.at = end;
            if self.byte() == Some(b']') {
                self.at += 1;
                return Ok(count.map(|count| Bracket { before, ranges, count }));
            }
        }
    }

    fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\n') = self.byte() {
            self.at += 1;
        }
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn error(&self, fault: Fault) -> HostlistError {
        HostlistError::new(self.text, self.at, fault)
    }

    fn found(&self) -> Found {
        Found::at(self.text, self.at)
    }
}

/// Reads the range at byte `start`, in the bracket that opens at byte `open`. Returns it, and the
/// byte after it: a comma or the closing bracket.
fn range(text: &str, open: usize, start: usize) -> Result<(Range, usize), HostlistError> {
    let (low, low_end) = number(text, open, start)?;
    let (high, end) = match text.as_bytes().get(low_end) {
        Some(b'-') => number(text, open, low_end + 1)?,
        _ => (low, low_end),
    };
    let error = |at, fault| Err(HostlistError::new(text, at, fault));
    match text.as_bytes().get(end) {
        None => error(open, Fault::Unclosed),
        Some(b'[') => error(end, Fault::Nested),
        Some(b',' | b']') if low > high => error(start, Fault::Backwards { low, high }),
        Some(b',' | b']') => Ok((Range { low, high, width: low_end - start, before: 0 }, end)),
        Some(_) => {
            let (found, range) = (Found::at(text, end), end > low_end);
            error(end, Fault::ExpectedNext { found, range })
        }
    }
}

/// Reads the digits at byte `start`. Returns their value, and the byte after them.
fn number(text: &str, open: usize, start: usize) -> Result<(u64, usize), HostlistError> {
    let mut value: u64 = 0;
    let mut at = start;
    while let Some(digit @ b'0'..=b'9') = text.as_bytes().get(at) {
        value = value
            .checked_mul(10)
            .and_then(|value| value.checked_add(u64::from(digit - b'0')))
            .ok_or_else(|| HostlistError::new(text, start, Fault::TooBig))?;
        at += 1;
    }
    if at > start {
        return Ok((value, at));
    }
    let (at, fault) = match Found::at(text, start) {
        Found::End => (open, Fault::Unclosed),
        Found::Character('[') => (start, Fault::Nested),
        found => (start, Fault::ExpectedNumber(found)),
    };
    Err(HostlistError::new(text, at, fault))
}
