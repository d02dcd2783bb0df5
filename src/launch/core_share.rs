//! Divides the cores of a node among its ranks.
//!
//! The division depends on nothing but its arguments: the same cores, ranks and binding give the same
//! shares in every process of the node.

use std::collections::{BTreeMap, BTreeSet};

use crate::bind::Bind;
use crate::topology::{Core, Cpus};

/// The cores of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreShare {
    /// Its cores' CPUs.
    pub cpus: Cpus,
    /// How many cores there are, whatever the number of their hardware threads.
    pub cores: usize,
}

impl CoreShare {
    fn of(cores: &[Core]) -> CoreShare {
        let cpus = cores.iter().flat_map(|core| core.cpus.iter()).collect();
        CoreShare { cpus, cores: cores.len() }
    }
}

/// A NUMA node has too few cores for the ranks whose devices it has, while others are idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFew {
    /// The number of the NUMA node.
    pub node: u32,
    /// How many of its cores may be used.
    pub cores: usize,
    /// How many ranks have a device there.
    pub ranks: usize,
}

/// Returns the share of each of the node's ranks, in the order of their local ranks.
///
/// `cores`: those that may be used, in the order of [`Topology`](crate::topology::Topology).
/// `homes`: the NUMA node of each rank's device, for [`Bind::Device`].
///
/// # Errors
/// Returns an error if ranks with devices on one NUMA node would share cores while others are idle.
pub fn divide(
    cores: &[Core],
    ranks: usize,
    bind: Bind,
    homes: &[u32],
) -> Result<Vec<CoreShare>, TooFew> {
    match bind {
        Bind::Core | Bind::None => Ok(by_core(cores, ranks)),
        Bind::Numa => Ok(by_node(cores, ranks)),
        Bind::Device => near(cores, homes),
    }
}

fn by_core(cores: &[Core], ranks: usize) -> Vec<CoreShare> {
    let nodes: Vec<&[Core]> = cores.chunk_by(|a, b| a.node == b.node).collect();
    let largest = nodes.iter().map(|node| node.len()).max().unwrap_or(0);
    // Whole cores of several NUMA nodes, or cores that several ranks share.
    if ranks > cores.len() || cores.len() / ranks.max(1) > largest {
        return parts(cores, ranks);
    }
    // Each rank goes where it gets the most cores. The lowest NUMA node of several is the first.
    let mut counts = vec![0; nodes.len()];
    for _ in 0..ranks {
        let most = (0..nodes.len()).rev().max_by(|&a, &b| {
            // Compares a.len() / (counts[a] + 1), in whole numbers.
            let (of_a, of_b) = (nodes[a].len() * (counts[b] + 1), nodes[b].len() * (counts[a] + 1));
            of_a.cmp(&of_b)
        });
        if let Some(most) = most {
            counts[most] += 1;
        }
    }
    nodes.iter().zip(counts).flat_map(|(node, count)| parts(node, count)).collect()
}

fn by_node(cores: &[Core], ranks: usize) -> Vec<CoreShare> {
    let nodes: Vec<&[Core]> = cores.chunk_by(|a, b| a.node == b.node).collect();
    let share = |rank: usize| {
        CoreShare::of(nodes.get(rank * nodes.len() / ranks).copied().unwrap_or_default())
    };
    (0..ranks).map(share).collect()
}

fn near(cores: &[Core], homes: &[u32]) -> Result<Vec<CoreShare>, TooFew> {
    let is_crowded = homes.len() > cores.len();
    let mut parts_of = BTreeMap::new();
    for node in homes.iter().copied().collect::<BTreeSet<u32>>() {
        let here: Vec<Core> =
            cores.iter().filter(|core| core.node == Some(node)).cloned().collect();
        let ranks = homes.iter().filter(|home| **home == node).count();
        if here.is_empty() || here.len() < ranks && !is_crowded {
            return Err(TooFew { node, cores: here.len(), ranks });
        }
        parts_of.insert(node, parts(&here, ranks).into_iter());
    }
    Ok(homes.iter().filter_map(|home| parts_of.get_mut(home)?.next()).collect())
}

/// Cuts cores into parts of the same size or one more. If there are more parts than cores, each is
/// one core, and as many parts as possible have a different one.
fn parts(cores: &[Core], count: usize) -> Vec<CoreShare> {
    let total = cores.len();
    if count > total {
        let share = |part: usize| {
            let core = part * total / count;
            CoreShare::of(&cores[core..(core + 1).min(total)])
        };
        return (0..count).map(share).collect();
    }
    let (size, more) = (total / count.max(1), total % count.max(1));
    let start = |part: usize| part * size + part.min(more);
    (0..count).map(|part| CoreShare::of(&cores[start(part)..start(part + 1)])).collect()
}
