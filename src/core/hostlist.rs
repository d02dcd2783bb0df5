//! Slurm's hostlists, as in `SLURM_STEP_NODELIST`: `gpu[01-04,07],login`.

mod error;
mod expand;
mod scan;

pub use error::HostlistError;
pub use expand::Hosts;

use std::borrow::Cow;

use error::Fault;
use scan::Scanner;

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
