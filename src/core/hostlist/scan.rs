//! The grammar: reads one host expression, one bracket, one range. Nothing is allocated.

use std::fmt::Write as _;

use super::error::{Fault, Found, HostlistError};

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
