//! Sets of CPUs.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use mpienv_core::seam::ranges;

/// A set of CPUs, by Linux's numbers. Its text is a list as in `/sys`: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus(BTreeSet<u32>);

impl Cpus {
    /// Returns how many CPUs there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no CPU.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the lowest CPU.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        self.0.first().copied()
    }

    /// Returns whether a CPU is in the set.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Returns the CPUs, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Returns the CPUs that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Cpus) -> Cpus {
        Cpus(self.0.intersection(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for Cpus {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> Cpus {
        Cpus(cpus.into_iter().collect())
    }
}

impl FromStr for Cpus {
    type Err = Infallible;

    /// Parses a list of the kernel. Linux writes no other entries than these, so that others are
    /// left out.
    fn from_str(text: &str) -> Result<Cpus, Infallible> {
        let run = |entry: &str| {
            let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
            Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
        };
        Ok(text.split(',').filter_map(run).flatten().collect())
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus: Vec<u32> = self.iter().collect();
        f.write_str(&ranges(&cpus))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_written_as_linux_writes_it() {
        for list in ["", "0", "0-3", "0-3,8,10-11"] {
            assert_eq!(list.parse::<Cpus>().unwrap().to_string(), list);
        }
        assert_eq!(" 2, 0-1\n".parse::<Cpus>().unwrap().to_string(), "0-2");
    }
}
