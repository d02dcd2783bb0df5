//! What each process of a job finds in its environment, for `simulate` and for the tests.

use std::fmt::Display;

/// The variables that one version of a launcher sets, as recorded or documented.
#[derive(Debug)]
pub(crate) struct Sample {
    /// The launcher with its version. `None` if this is its only sample: its own title is enough.
    pub title: Option<&'static str>,
    pub set: fn(&Process<'_>, &mut Setter),
}

impl Sample {
    /// The only sample of a launcher.
    pub(crate) const fn of(set: fn(&Process<'_>, &mut Setter)) -> Sample {
        Sample { title: None, set }
    }
}

/// Where one rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node's number.
    pub node: u32,
    /// The rank among those on the node.
    pub local_rank: u32,
}

/// One process of a job.
pub(crate) struct Process<'a> {
    pub rank: u32,
    pub size: u32,
    pub node: u32,
    pub local_rank: u32,
    pub local_size: u32,
    /// The number of nodes.
    pub nodes: u32,
    /// The number of ranks on each node.
    pub counts: &'a [u32],
    /// Where each rank is.
    pub places: &'a [Place],
    /// Whether ranks are assigned to nodes one by one.
    pub is_cyclic: bool,
    /// The number of this job among several jobs of the same shape.
    pub job: u32,
}

impl Process<'_> {
    /// Returns the rank, the world size, the local rank and the local size.
    pub(crate) fn place(&self) -> [u32; 4] {
        [self.rank, self.size, self.local_rank, self.local_size]
    }

    /// Returns a node's name.
    pub(crate) fn name(&self, node: u32) -> String {
        format!("node{node}")
    }

    /// Returns a node's address. Other jobs have other addresses.
    pub(crate) fn address(&self, node: u32) -> String {
        let number = node + 1 + self.job * 0x900;
        format!("10.{}.{}.{}", (number >> 16) & 255, (number >> 8) & 255, number & 255)
    }

    /// Returns the addresses of all nodes, a line each.
    pub(crate) fn addresses(&self) -> String {
        (0..self.nodes).map(|node| self.address(node)).collect::<Vec<_>>().join("\n")
    }
}

/// Collects variables in order.
#[derive(Default)]
pub(crate) struct Setter(pub Vec<(String, String)>);

impl Setter {
    pub(crate) fn set(&mut self, name: &str, value: impl Display) {
        self.0.push((name.to_owned(), value.to_string()));
    }

    pub(crate) fn set_all<const N: usize>(&mut self, names: [&str; N], values: [u32; N]) {
        names.into_iter().zip(values).for_each(|(name, value)| self.set(name, value));
    }
}
