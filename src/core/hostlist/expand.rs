//! Expands a list into its hosts, one by one.

use std::borrow::Cow;
use std::iter::FusedIterator;

use super::scan::{Range, Scanner, brackets, push_number};

/// The hosts of a [`Hostlist`](super::Hostlist), in Slurm's order.
///
/// ```
/// use mpienv::hostlist::{Hostlist, Hosts};
///
/// // A long list costs no more than the hosts that are requested.
/// let mut hosts: Hosts<'_> = Hostlist::parse("gpu[1-65000]")?.iter();
/// assert_eq!(hosts.next().as_deref(), Some("gpu1"));
/// assert_eq!(hosts.size_hint(), (64_999, Some(64_999)));
/// # Ok::<(), mpienv::hostlist::HostlistError>(())
/// ```
pub struct Hosts<'a> {
    text: &'a str,
    scanner: Scanner<'a>,
    /// The number of hosts that are left.
    left: u64,
    /// The brackets of the current host expression, each at its current number.
    wheels: Vec<Wheel<'a>>,
    /// The text after the last bracket.
    tail: &'a str,
    /// The length of the last host, which is a good estimate for the next one.
    length: usize,
}

/// One bracket, at one of its numbers.
struct Wheel<'a> {
    /// The text before the bracket.
    before: &'a str,
    open: usize,
    range: Range,
    number: u64,
}

impl<'a> Hosts<'a> {
    pub(super) fn new(text: &'a str, len: u64) -> Hosts<'a> {
        Hosts {
            text,
            scanner: Scanner::new(text),
            left: len,
            wheels: Vec::new(),
            tail: "",
            length: 0,
        }
    }

    /// Advances to the next host: turns the wheels, or begins the next host expression.
    fn advance(&mut self) -> Option<()> {
        // The last bracket varies fastest, then the first, the second and so on: Slurm's order.
        if let Some((last, others)) = self.wheels.split_last_mut()
            && (last.turn(self.text) || others.iter_mut().any(|wheel| wheel.turn(self.text)))
        {
            return Some(());
        }
        let element = self.scanner.element().ok()??;
        self.wheels.clear();
        let mut from = element.start;
        for open in brackets(self.text, element) {
            let range = Range::read(self.text, open, open + 1).ok()?;
            let before = self.text.get(from..open)?;
            self.wheels.push(Wheel { before, open, range, number: range.low });
            from = open + self.text.get(open..)?.find(']')? + 1;
        }
        self.tail = self.text.get(from..element.end)?;
        Some(())
    }
}

impl Wheel<'_> {
    /// Advances to the bracket's next number. After the last number, returns to the first and
    /// returns false.
    fn turn(&mut self, text: &str) -> bool {
        if self.number < self.range.high {
            self.number += 1;
            return true;
        }
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
        self.advance()?;
        if self.wheels.is_empty() {
            return Some(Cow::Borrowed(self.tail));
        }
        let mut name = String::with_capacity(self.length + 1);
        for wheel in &self.wheels {
            name.push_str(wheel.before);
            push_number(&mut name, wheel.number, wheel.range.width);
        }
        name.push_str(self.tail);
        self.length = name.len();
        Some(Cow::Owned(name))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left);
        (left.unwrap_or(usize::MAX), left.ok())
    }
}

impl FusedIterator for Hosts<'_> {}
