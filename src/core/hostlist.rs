//! Slurm's hostlists, as in `SLURM_STEP_NODELIST`: `gpu[01-04,07],login`.

use std::borrow::Cow;
use std::fmt;
use std::fmt::Write as _;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hostlist<'a> {
    text: &'a str,
    len: u64,
}

#[expect(clippy::len_without_is_empty, reason = "a hostlist names at least one host")]
impl<'a> Hostlist<'a> {
    /// Checks the whole list in one pass, without expanding it and without allocating.
    ///
    /// # Errors
    /// Returns an error if the list is malformed. The error names the column and what was expected
    /// there.
    pub fn parse(text: &'a str) -> Result<Hostlist<'a>, HostlistError> {
        let mut scanner = Scanner::new(text);
        let mut len: u64 = 0;
        while let Some(element) = scanner.element()? {
            let too_many = || HostlistError::new(text, element.start, Fault::TooMany);
            len = len.checked_add(element.count).ok_or_else(too_many)?;
        }
        if len == 0 {
            return Err(HostlistError::new(text, 0, Fault::Empty));
        }
        Ok(Hostlist { text, len })
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
    #[must_use]
    pub fn iter(&self) -> Hosts<'a> {
        Hosts::new(self.text, self.len)
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

/// The hosts of a [`Hostlist`], in Slurm's order.
#[derive(Debug)]
pub struct Hosts<'a> {
    text: &'a str,
    scanner: Scanner<'a>,
    /// The number of hosts that are left.
    left: u64,
    current: Expression<'a>,
    /// The length of the last host, which is a good estimate for the next one.
    length: usize,
}

/// A host expression, at one of its hosts.
#[derive(Debug, Default)]
struct Expression<'a> {
    brackets: Vec<Bracket<'a>>,
    /// The text after the last bracket.
    tail: &'a str,
}

/// A bracket, at one of its numbers.
#[derive(Debug)]
struct Bracket<'a> {
    /// The text before the bracket.
    before: &'a str,
    open: usize,
    range: Range,
    number: u64,
}

impl<'a> Hosts<'a> {
    pub(super) fn new(text: &'a str, len: u64) -> Hosts<'a> {
        let (scanner, current) = (Scanner::new(text), Expression::default());
        Hosts { text, scanner, left: len, current, length: 0 }
    }
}

impl<'a> Expression<'a> {
    /// Returns an expression of a list that was checked, at its first host.
    fn new(text: &'a str, element: Element) -> Option<Expression<'a>> {
        let mut brackets = Vec::new();
        let mut from = element.start;
        for open in opening(text, element) {
            let range = Range::read(text, open, open + 1).ok()?;
            let before = text.get(from..open)?;
            brackets.push(Bracket { before, open, range, number: range.low });
            from = open + text.get(open..)?.find(']')? + 1;
        }
        Some(Expression { brackets, tail: text.get(from..element.end)? })
    }

    /// Advances to the next host. After the last one, returns to the first and returns false.
    fn advance(&mut self, text: &str) -> bool {
        // In Slurm's order: the last varies fastest, then the first, the second and so on.
        let (last, others) = self.brackets.split_last_mut().unzip();
        let mut by_speed = last.into_iter().chain(others.into_iter().flatten());
        by_speed.any(|bracket| bracket.advance(text))
    }

    fn host(&self, capacity: usize) -> Cow<'a, str> {
        if self.brackets.is_empty() {
            return Cow::Borrowed(self.tail);
        }
        let mut name = String::with_capacity(capacity);
        for bracket in &self.brackets {
            name.push_str(bracket.before);
            push_number(&mut name, bracket.number, bracket.range.width);
        }
        name.push_str(self.tail);
        Cow::Owned(name)
    }
}

impl Bracket<'_> {
    /// Advances to the next number. After the last one, returns to the first and returns false.
    fn advance(&mut self, text: &str) -> bool {
        if self.number < self.range.high {
            self.number += 1;
            return true;
        }
        self.next_range(text)
    }

    /// Advances to the next range. After the last one, returns to the first and returns false.
    fn next_range(&mut self, text: &str) -> bool {
        let more = text.as_bytes().get(self.range.end) == Some(&b',');
        let next = if more { self.range.end + 1 } else { self.open + 1 };
        // Never an error, because the list was checked.
        if let Ok(range) = Range::read(text, self.open, next) {
            self.range = range;
        }
        self.number = self.range.low;
        more
    }
}

impl<'a> Iterator for Hosts<'a> {
    type Item = Cow<'a, str>;

    fn next(&mut self) -> Option<Cow<'a, str>> {
        self.left = self.left.checked_sub(1)?;
        if !self.current.advance(self.text) {
            self.current = Expression::new(self.text, self.scanner.element().ok()??)?;
        }
        let host = self.current.host(self.length + 1);
        self.length = host.len();
        Some(host)
    }
}

/// Scans a list, one host expression at a time.
#[derive(Debug)]
pub(super) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

/// One host expression, such as `rack[1-2]n[1-4]-ib`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element {
    /// Its first byte, and the byte after its last.
    pub(super) start: usize,
    pub(super) end: usize,
    /// The number of hosts it stands for, at least 1.
    pub(super) count: u64,
}

/// `low-high` in a bracket, or one number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) low: u64,
    pub(super) high: u64,
    /// The minimum number of digits.
    pub(super) width: usize,
    /// The byte after the range: a comma or the closing bracket.
    pub(super) end: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str) -> Scanner<'a> {
        Scanner { text, at: 0 }
    }

    /// Returns the next host expression, or `None` at the end.
    pub(super) fn element(&mut self) -> Result<Option<Element>, HostlistError> {
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
        let mut count: u64 = 1;
        loop {
            match self.byte() {
                Some(b'[') => {
                    let hosts = self.bracket()?;
                    let all = hosts.and_then(|hosts| count.checked_mul(hosts));
                    let too_many = || HostlistError::new(self.text, start, Fault::TooMany);
                    count = all.ok_or_else(too_many)?;
                }
                Some(b']') => return Err(self.error(Fault::Unopened)),
                Some(b'{' | b'}') => return Err(self.error(Fault::Function(self.found()))),
                None | Some(b',' | b' ' | b'\t' | b'\n') => break,
                Some(_) => self.at += 1,
            }
        }
        Ok(Some(Element { start, end: self.at, count }))
    }

    /// Skips a bracket and counts its numbers. Returns `None` if the count does not fit in `u64`.
    fn bracket(&mut self) -> Result<Option<u64>, HostlistError> {
        let open = self.at;
        let mut count: Option<u64> = Some(0);
        loop {
            let range = Range::read(self.text, open, self.at + 1)?;
            // `high - low + 1` overflows for the range of all numbers.
            let numbers = (range.high - range.low).checked_add(1);
            count = count.zip(numbers).and_then(|(count, numbers)| count.checked_add(numbers));
            self.at = range.end;
            if self.byte() == Some(b']') {
                self.at += 1;
                return Ok(count);
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

impl Range {
    /// Reads the range at byte `start`, in the bracket that opens at byte `open`.
    pub(super) fn read(text: &str, open: usize, start: usize) -> Result<Range, HostlistError> {
        let (low, low_end) = number(text, open, start)?;
        let width = low_end - start;
        let (high, end) = match text.as_bytes().get(low_end) {
            Some(b'-') => number(text, open, low_end + 1)?,
            _ => (low, low_end),
        };
        let error = |at, fault| Err(HostlistError::new(text, at, fault));
        match text.as_bytes().get(end) {
            None => error(open, Fault::Unclosed),
            Some(b'[') => error(end, Fault::Nested),
            Some(b',' | b']') if low > high => error(start, Fault::Backwards { low, high }),
            Some(b',' | b']') => Ok(Range { low, high, width, end }),
            Some(_) => {
                let (found, range) = (Found::at(text, end), end > low_end);
                error(end, Fault::ExpectedNext { found, range })
            }
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

/// Returns the bytes where the brackets of an element open.
pub(super) fn opening(text: &str, element: Element) -> impl Iterator<Item = usize> {
    let bytes = text.as_bytes().get(element.start..element.end).unwrap_or_default();
    bytes.iter().zip(element.start..).filter(|&(&byte, _)| byte == b'[').map(|(_, at)| at)
}

/// Appends a number with at least `width` digits.
pub(super) fn push_number(name: &mut String, number: u64, width: usize) {
    // Not `{:0width$}`, which panics on a width beyond `u16`.
    let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
    name.extend(std::iter::repeat_n('0', width.saturating_sub(digits)));
    let _ = write!(name, "{number}");
}
