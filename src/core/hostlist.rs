//! Slurm's hostlists, as in `SLURM_STEP_NODELIST`: `gpu[01-04,07],login`.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::iter;

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
            let all = len.checked_add(expression.count);
            len = all.ok_or_else(|| scanner.too_many(start))?;
            expressions.push(expression);
        }
        if len == 0 {
            return Err(scanner.error(0, "expected a host, found an empty list"));
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
    fault: String,
}

const UNCLOSED: &str = "\"[\" is never closed";
const UNOPENED: &str = "\"]\" closes nothing, expected a \"[\" before it";
const NESTED: &str = "\"[\" stands inside brackets, expected a number, \",\", \"-\" or \"]\"";

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

/// Numbers in a bracket that follow each other, from `low` on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    low: u64,
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
        self.skip_blanks();
        let comma = !first && self.takes(b',');
        self.skip_blanks();
        match self.byte() {
            None if !comma => return Ok(None),
            None | Some(b',') => {
                return Err(self.error(self.at, format!("expected a host, found {}", self.found())));
            }
            Some(_) => {}
        }
        let start = self.at;
        let (mut brackets, mut from, mut count) = (Vec::new(), start, 1u64);
        loop {
            match self.byte() {
                Some(b'[') => {
                    let bracket = self.bracket(from)?;
                    let all = bracket.as_ref().and_then(|own| count.checked_mul(own.count));
                    count = all.ok_or_else(|| self.too_many(start))?;
                    brackets.extend(bracket);
                    from = self.at;
                }
                Some(b']') => return Err(self.error(self.at, UNOPENED)),
                // A brace begins a host function, which is not a list.
                Some(b'{' | b'}') => {
                    let fault = format!(
                        "expected a host, found {}: host functions are known to slurm's controller only, \
                         `scontrol show hostnames` lists the hosts",
                        self.found()
                    );
                    return Err(self.error(self.at, fault));
                }
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
        while !self.takes(b']') {
            // The opening bracket, or a comma.
            self.at += 1;
            let (low, high, width) = self.range(open)?;
            ranges.push(Range { low, width, before: count.unwrap_or_default() });
            // `high - low + 1` overflows for the range of all numbers.
            let numbers = (high - low).checked_add(1);
            count = count.zip(numbers).and_then(|(count, numbers)| count.checked_add(numbers));
        }
        Ok(count.map(|count| Bracket { before, ranges, count }))
    }

    /// Reads one range of the bracket that opens at byte `open`: its first and last number, and the
    /// digits of the first. What follows is a comma or the closing bracket.
    fn range(&mut self, open: usize) -> Result<(u64, u64, usize), HostlistError> {
        let start = self.at;
        let low = self.number(open)?;
        let width = self.at - start;
        let is_range = self.takes(b'-');
        let high = if is_range { self.number(open)? } else { low };
        let (at, fault) = match self.byte() {
            None => (open, UNCLOSED.to_owned()),
            Some(b'[') => (self.at, NESTED.to_owned()),
            Some(b',' | b']') if low > high => {
                let range = format!("the range {low}-{high}");
                (start, format!("{range} runs backwards, expected the lower number first"))
            }
            Some(b',' | b']') => return Ok((low, high, width)),
            Some(_) => {
                let dash = if is_range { "" } else { "\"-\", " };
                (self.at, format!("expected {dash}\",\" or \"]\", found {}", self.found()))
            }
        };
        Err(self.error(at, fault))
    }

    /// Reads a number of the bracket that opens at byte `open`.
    fn number(&mut self, open: usize) -> Result<u64, HostlistError> {
        let start = self.at;
        while self.byte().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        match (&self.text[start..self.at], self.byte()) {
            ("", None) => Err(self.error(open, UNCLOSED)),
            ("", Some(b'[')) => Err(self.error(start, NESTED)),
            ("", Some(_)) => {
                Err(self.error(start, format!("expected a number, found {}", self.found())))
            }
            (digits, _) => digits.parse().map_err(|_| {
                let fault = format!("the number is too big, expected at most {}", u64::MAX);
                self.error(start, fault)
            }),
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

    fn takes(&mut self, expected: u8) -> bool {
        let is_next = self.byte() == Some(expected);
        self.at += usize::from(is_next);
        is_next
    }

    /// Returns the error for a fault at byte `at`.
    fn error(&self, at: usize, fault: impl Into<String>) -> HostlistError {
        let before = self.text.char_indices().take_while(|&(start, _)| start < at);
        HostlistError { column: before.count() + 1, fault: fault.into() }
    }

    fn too_many(&self, at: usize) -> HostlistError {
        self.error(at, format!("the list has too many hosts, expected at most {}", u64::MAX))
    }

    /// Shows the next character, or that the list ends.
    fn found(&self) -> String {
        match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some('"') => "'\"'".to_owned(),
            Some(character) => format!("\"{}\"", character.escape_debug()),
            None => "the end".to_owned(),
        }
    }
}
