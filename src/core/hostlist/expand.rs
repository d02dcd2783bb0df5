//! Expands a list into its hosts, one by one.

use std::borrow::Cow;

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
