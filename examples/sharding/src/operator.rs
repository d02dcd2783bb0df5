//! The operators and how they can be cut.
//!
//! An operator is a set of loops over its inputs' dimensions. A matrix product loops over rows m,
//! inner k and columns n. Cutting a loop cuts every dimension that belongs to it. If the result
//! lacks the loop, its values must still be summed.

pub mod kernels;
pub mod matmul;

use super::mesh::{Axis, Layout};
use super::strategy::Strategy;

/// A computation on a value and, for most, a parameter or labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    MatMul,
    BiasAdd,
    Relu,
    /// The mean squared error: a loss.
    Mse,
    /// The mean softmax cross-entropy: a loss.
    Xent,
}

/// The loops of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The number of loops.
    pub loops: usize,
    /// The loop that each dimension of each input belongs to.
    pub inputs: &'static [&'static [usize]],
    /// The loop that each dimension of the result belongs to.
    pub output: &'static [usize],
    /// The loop that cannot be cut, if any.
    pub whole: Option<usize>,
}

impl Operator {
    /// The operator's name, as in MindSpore's graphs.
    pub fn name(self) -> &'static str {
        match self {
            Operator::MatMul => "MatMul",
            Operator::BiasAdd => "BiasAdd",
            Operator::Relu => "ReLU",
            Operator::Mse => "MSELoss",
            Operator::Xent => "SoftmaxXent",
        }
    }

    pub fn rule(self) -> Rule {
        type Inputs = &'static [&'static [usize]];
        let (loops, inputs, output, whole): (_, Inputs, &'static [usize], _) = match self {
            Operator::MatMul => (3, &[&[0, 1], &[1, 2]], &[0, 2], None),
            Operator::BiasAdd => (2, &[&[0, 1], &[1]], &[0, 1], None),
            Operator::Relu => (2, &[&[0, 1]], &[0, 1], None),
            Operator::Mse => (2, &[&[0, 1], &[0, 1]], &[], None),
            // The classes cannot be cut.
            Operator::Xent => (2, &[&[0, 1], &[0]], &[], Some(1)),
        };
        Rule { loops, inputs, output, whole }
    }

    /// Returns the cuts of each loop for all legal strategies on `ranks` ranks, in descending
    /// lexicographic order.
    pub fn candidates(self, shapes: &[Vec<usize>], ranks: u32) -> Vec<Vec<u32>> {
        let rule = self.rule();
        let mut sizes = vec![1; rule.loops];
        for (shape, loops) in shapes.iter().zip(rule.inputs) {
            for (&size, &number) in shape.iter().zip(*loops) {
                sizes[number] = if rule.whole == Some(number) { 1 } else { size };
            }
        }
        // Every prefix of cuts that leaves a whole number of ranks.
        let mut all: Vec<Vec<u32>> = vec![Vec::new()];
        for size in sizes {
            let longer = |cuts: Vec<u32>| {
                let rest = ranks / cuts.iter().product::<u32>();
                let fits =
                    move |&cut: &u32| rest.is_multiple_of(cut) && size.is_multiple_of(cut as usize);
                let longer = move |cut| [cuts.as_slice(), &[cut]].concat();
                (1..=rest).rev().filter(fits).map(longer)
            };
            all = all.into_iter().flat_map(longer).collect();
        }
        all.retain(|cuts| cuts.iter().product::<u32>() == ranks);
        all
    }

    /// Returns the strategy for these cuts of the loops.
    pub fn strategy(self, cuts: &[u32]) -> Strategy {
        let entry = |loops: &&[usize]| loops.iter().map(|&number| cuts[number]).collect();
        Strategy(self.rule().inputs.iter().map(entry).collect())
    }
}

impl Rule {
    /// Returns the layout of an input if these axes cut the loops.
    pub fn input(&self, input: usize, axes: &[Vec<Axis>]) -> Layout {
        Layout::new(self.inputs[input].iter().map(|&number| axes[number].clone()).collect())
    }

    /// Returns the layout of the result, with pending sums over the loops that the result lacks.
    pub fn output(&self, axes: &[Vec<Axis>]) -> Layout {
        self.with_sums(self.output, axes)
    }

    /// Returns the layout of an input's gradient, computed from a result's gradient without pending
    /// sums.
    pub fn gradient(&self, input: usize, axes: &[Vec<Axis>]) -> Layout {
        self.with_sums(self.inputs[input], axes)
    }

    fn with_sums(&self, loops: &[usize], axes: &[Vec<Axis>]) -> Layout {
        let summed = (0..self.loops).filter(|number| !loops.contains(number));
        let mut partial: Vec<Axis> = summed.flat_map(|number| &axes[number]).copied().collect();
        partial.sort_unstable();
        Layout { dims: loops.iter().map(|&number| axes[number].clone()).collect(), partial }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_legal_strategies_of_a_number_of_ranks_are_found() {
        let shapes = [vec![16, 32], vec![32, 6]];
        let found = Operator::MatMul.candidates(&shapes, 4);
        assert_eq!(found, [[4, 1, 1], [2, 2, 1], [2, 1, 2], [1, 4, 1], [1, 2, 2]]);
        assert_eq!(Operator::MatMul.strategy(&found[1]).to_string(), "((2,2),(2,1))");
        assert_eq!(Operator::Xent.candidates(&[vec![16, 8], vec![16]], 8), [[8, 1]]);
        assert!(Operator::Relu.candidates(&[vec![3, 5]], 8).is_empty());
    }

    #[test]
    fn a_product_cut_along_its_inner_loop_leaves_a_sum() {
        let axes = [vec![0], vec![1], vec![]];
        let rule = Operator::MatMul.rule();
        assert_eq!(rule.output(&axes).to_string(), "[0, -] partial 1");
        assert_eq!(rule.gradient(0, &axes).to_string(), "[0, 1]");
        assert_eq!(rule.gradient(1, &axes).to_string(), "[1, -] partial 0");
    }
}
