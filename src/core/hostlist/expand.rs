//! Expands a list into its hosts, one by one.

use std::borrow::Cow;
use std::iter::FusedIterator;

use super::scan::{Element, Range, Scanner, opening, push_number};

/// The hosts of a [`Hostlist`](super::Hostlist), in Slurm's order.
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
pub(super) struct Expression<'a> {
    brackets: Vec<Bracket<'a>>,
    /// The text after the last bracket.
    tail: &'a str,
}

/// A bracket, at one of its numbers.
#[derive(Clone, Copy, Debug)]
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
    pub(super) fn new(text: &'a str, element: Element) -> Option<Expression<'a>> {
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

    /// The brackets from the one that varies fastest: the last, then the first, the second and so
    /// on, which is Slurm's order.
    fn by_speed(&mut self) -> impl Iterator<Item = &mut Bracket<'a>> {
        let (last, others) = self.brackets.split_last_mut().unzip();
        last.into_iter().chain(others.into_iter().flatten())
    }

    /// Advances to the next host. After the last one, returns to the first and returns false.
    fn advance(&mut self, text: &str) -> bool {
        self.by_speed().any(|bracket| bracket.advance(text))
    }

    /// Advances from the first host by this many.
    pub(super) fn skip(&mut self, text: &str, mut index: u64) {
        for bracket in self.by_speed() {
            let size = bracket.size(text);
            bracket.skip(text, index % size);
            index /= size;
        }
    }

    pub(super) fn host(&self, capacity: usize) -> Cow<'a, str> {
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

    /// Returns how many numbers it holds, from the first one, which is where it must be. At least 1.
    fn size(mut self, text: &str) -> u64 {
        let mut size: u64 = 0;
        loop {
            size = size.saturating_add(self.range.high - self.range.low).saturating_add(1);
            if !self.next_range(text) {
                return size;
            }
        }
    }

    /// Advances from the first number by fewer than it holds.
    fn skip(&mut self, text: &str, mut place: u64) {
        while let Some(rest) = place.checked_sub(self.range.high - self.range.low)
            && rest > 0
        {
            place = rest - 1;
            self.next_range(text);
        }
        self.number = self.range.low + place;
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

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left);
        (left.unwrap_or(usize::MAX), left.ok())
    }
}

impl FusedIterator for Hosts<'_> {}
