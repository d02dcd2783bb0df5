//! Chooses strategies for operators that have none, so that they exchange the least with their
//! neighbors.

use std::collections::VecDeque;

use super::mesh::{Layout, Mesh};
use super::network::{Network, Node};
use super::redistribute::redistribute;
use crate::error::Error;
use crate::join;

/// The size of a number in bytes. Plans assume f32.
pub const NUMBER_BYTES: u64 = 4;

/// The cuts of each operator's loops, and the mesh that all of them fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cuts {
    /// The coarsest mesh in which every cut consists of whole axes.
    pub mesh: Mesh,
    /// The arrangement of each operator: the cuts, then the number of ranks that do the same work.
    pub arrangements: Vec<Vec<u32>>,
}

/// Formats an arrangement as a tuple, without sizes of 1.
fn without_ones(dims: &[u32]) -> String {
    format!("({})", join(dims.iter().filter(|&&size| size != 1), ","))
}

/// Returns the cuts of all operators of `network` on `world` ranks, with the data cut into
/// `data_cut` parts.
///
/// Operators keep their strategies. Starting from them, each neighbor without a strategy uses as
/// many ranks as possible and, among the legal strategies, gets the one that moves the fewest
/// bytes, forward and backward, to and from its known neighbors. Ties go to the neighbor's
/// arrangement, then to the one that cuts rows the most. If no operator has a strategy, the search
/// starts with the first operator and the data set's arrangement.
///
/// # Errors
/// If strategies do not fit their operators, each other or the data.
pub fn propagate(network: &Network, world: u32, data_cut: u32) -> Result<Cuts, Error> {
    let nodes = &network.nodes;
    let rows = nodes[0].shapes[0][0];
    if world == 0
        || data_cut == 0
        || !world.is_multiple_of(data_cut)
        || !rows.is_multiple_of(data_cut as usize)
    {
        return Err(Error::input(format!(
            "the data set: {rows} rows on {world} ranks cannot be cut in {data_cut}: the number of parts must divide both"
        )));
    }
    let mut search = Search {
        nodes,
        world,
        data: vec![data_cut, world / data_cut],
        known: vec![None; nodes.len()],
    };
    for (index, node) in nodes.iter().enumerate() {
        if let Some(strategy) = &node.strategy {
            let mut cuts = strategy.check(node, world)?;
            cuts.push(world / cuts.iter().product::<u32>());
            search.fits_others(&node.name, &cuts)?;
            search.known[index] = Some(cuts);
        }
    }
    search.spread();
    let arrangements: Vec<Vec<u32>> = search.known.iter().flatten().cloned().collect();
    let Some(mesh) = search.mesh_with(&[]) else {
        unreachable!("each arrangement was accepted only with a mesh in common with all before it");
    };
    Ok(Cuts { mesh, arrangements })
}

/// Returns the layout of the samples or labels, whose rows are cut into `data_cut` parts.
pub fn fed(mesh: &Mesh, data_cut: u32, shape: &[usize]) -> Layout {
    let rows = mesh.axes_of(&[data_cut, mesh.world() / data_cut]).swap_remove(0);
    // Labels that are class numbers have rows alone.
    Layout::new([rows, Vec::new()].into_iter().take(shape.len()).collect())
}

struct Search<'a> {
    nodes: &'a [Node],
    world: u32,
    /// The data set's arrangement.
    data: Vec<u32>,
    /// The arrangement of each operator, if it is known yet.
    known: Vec<Option<Vec<u32>>>,
}

impl Search<'_> {
    fn mesh_with(&self, more: &[u32]) -> Option<Mesh> {
        let known = self.known.iter().flatten().map(Vec::as_slice);
        Mesh::refining(self.world, known.chain([self.data.as_slice(), more]))
    }

    /// Checks that an arrangement has a common mesh with each known one, and therefore with all of
    /// them.
    fn fits_others(&self, name: &str, arrangement: &[u32]) -> Result<(), Error> {
        let named = self.nodes.iter().zip(&self.known);
        let known = named.filter_map(|(node, known)| Some((node.name.as_str(), known.as_ref()?)));
        for (first, first_dims) in known.chain([("the data set", &self.data)]) {
            if Mesh::refining(self.world, [first_dims.as_slice(), arrangement]).is_none() {
                let dims = [first_dims, arrangement].map(without_ones);
                return Err(Error::input(format!(
                    "arrangements {} of {first} and {} of {name} have no common refinement",
                    dims[0], dims[1]
                )));
            }
        }
        Ok(())
    }

    /// Chooses arrangements outward from the known operators, neighbor by neighbor.
    fn spread(&mut self) {
        let mut queue: VecDeque<usize> =
            (0..self.nodes.len()).filter(|&node| self.known[node].is_some()).collect();
        if queue.is_empty() {
            self.choose(0, &self.data.clone());
            queue.push_back(0);
        }
        while let Some(node) = queue.pop_front() {
            let Some(from) = self.known[node].clone() else { continue };
            for neighbour in [node.checked_sub(1), Some(node + 1)].into_iter().flatten() {
                if self.known.get(neighbour).is_some_and(Option::is_none) {
                    self.choose(neighbour, &from);
                    queue.push_back(neighbour);
                }
            }
        }
    }

    /// Chooses the best arrangement for an operator whose neighbor is arranged as `from`.
    fn choose(&mut self, node: usize, from: &[u32]) {
        let Node { operator, shapes, .. } = &self.nodes[node];
        // Use as many ranks as possible. All strategies for the same number of ranks need equal
        // computation.
        let fitting = (1..=self.world)
            .rev()
            .filter(|ranks| self.world.is_multiple_of(*ranks))
            .find_map(|ranks| {
                let mut all = operator.candidates(shapes, ranks);
                all.iter_mut().for_each(|cuts| cuts.push(self.world / ranks));
                all.retain(|arrangement| self.mesh_with(arrangement).is_some());
                (!all.is_empty()).then_some(all)
            });
        let best = fitting.into_iter().flatten().min_by_key(|arrangement| {
            let other = without_ones(arrangement) != without_ones(from);
            (self.bytes(node, arrangement), other)
        });
        self.known[node] = best;
    }

    /// Returns the bytes that move between an operator with this arrangement and its known
    /// neighbors or the data set.
    fn bytes(&self, node: usize, arrangement: &[u32]) -> Option<u64> {
        let mesh = self.mesh_with(arrangement)?;
        // An operator's rule and the axes that cut its loops, if it is cut yet.
        let cut = |index: usize| {
            let known = self.known.get(index)?.as_deref();
            let arrangement = if index == node { arrangement } else { known? };
            Some((self.nodes[index].operator.rule(), mesh.axes_of(arrangement)))
        };
        let fed = |input: usize| {
            let (rule, axes) = cut(node)?;
            let shape = &self.nodes[node].shapes[input];
            Some(moved(&mesh, shape, &fed(&mesh, self.data[0], shape), &rule.input(input, &axes)))
        };
        // From the operator before `index` and, if any before it learns, back.
        let edge = |index: usize| {
            let ((before, before_axes), (after, axes)) = (cut(index - 1)?, cut(index)?);
            let (shape, output) = (&self.nodes[index].shapes[0], before.output(&before_axes));
            let there = moved(&mesh, shape, &output, &after.input(0, &axes));
            let is_learnt = self.nodes[..index].iter().any(|node| node.parameter.is_some());
            let back = || moved(&mesh, shape, &after.gradient(0, &axes), &output.complete());
            Some(there + if is_learnt { back() } else { 0 })
        };
        let before = if node == 0 { fed(0) } else { edge(node) };
        let after = if node + 1 == self.nodes.len() { fed(1) } else { edge(node + 1) };
        Some(before.unwrap_or(0) + after.unwrap_or(0))
    }
}

/// Returns the bytes that all ranks send to redistribute a tensor.
fn moved(mesh: &Mesh, shape: &[usize], from: &Layout, to: &Layout) -> u64 {
    let mut layout = from.clone();
    let mut bytes = 0;
    for step in redistribute(from, to) {
        let part: usize = layout.local_shape(mesh, shape).iter().product();
        bytes += step.traffic(mesh, part as u64 * NUMBER_BYTES).bytes;
        step.apply(&mut layout);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Chain;

    fn strategies(first: Option<&str>, world: u32) -> Vec<String> {
        let rows = 2 * world as usize;
        let mut network = Chain::new(rows, 32)
            .matmul("matmul", "w", 16)
            .relu("relu")
            .matmul("matmul2", "w2", 16)
            .mse("loss");
        if let Some(first) = first {
            network.shard("matmul", first.parse().unwrap()).unwrap();
        }
        let cuts = propagate(&network, world, world).unwrap();
        let nodes = network.nodes.iter().zip(&cuts.arrangements);
        nodes.map(|(node, cuts)| node.operator.strategy(cuts).to_string()).collect()
    }

    #[test]
    fn the_quick_starts_strategies_are_found() {
        let expected = ["((2,4),(4,1))", "((2,4),)", "((2,4),(4,1))", "((8,1),(8,1))"];
        assert_eq!(strategies(Some("((2,4),(4,1))"), 8), expected);
    }

    #[test]
    fn data_parallel_and_column_strategies_spread() {
        let data = ["((8,1),(1,1))", "((8,1),)", "((8,1),(1,1))", "((8,1),(8,1))"];
        assert_eq!(strategies(Some("((8,1),(1,1))"), 8), data);
        assert_eq!(strategies(None, 8), data);
        let column = ["((2,1),(1,4))", "((2,4),)", "((2,4),(4,1))", "((8,1),(8,1))"];
        assert_eq!(strategies(Some("((2,1),(1,4))"), 8), column);
    }

    #[test]
    fn one_rank_cuts_nothing() {
        assert_eq!(strategies(None, 1)[..2], ["((1,1),(1,1))", "((1,1),)"]);
    }

    #[test]
    fn strategies_without_a_common_mesh_are_named() {
        let mut network = Chain::new(12, 12).matmul("A", "w", 12).matmul("B", "w2", 12).mse("loss");
        network.shard("A", "((3,4),(4,1))".parse().unwrap()).unwrap();
        network.shard("B", "((2,6),(6,1))".parse().unwrap()).unwrap();
        let error = propagate(&network, 12, 12).unwrap_err().to_string();
        assert_eq!(error, "arrangements (3,4) of A and (2,6) of B have no common refinement");
    }

    #[test]
    fn data_that_cannot_be_cut_is_refused() {
        let network = Chain::new(12, 12).matmul("A", "w", 12).mse("loss");
        for cut in [0, 5, 8] {
            let error = propagate(&network, 8, cut).unwrap_err().to_string();
            let expected = format!(
                "the data set: 12 rows on 8 ranks cannot be cut in {cut}: the number of parts must divide both"
            );
            assert_eq!(error, expected);
        }
    }
}
