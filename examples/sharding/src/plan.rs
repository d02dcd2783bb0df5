//! A training step as a list of instructions that is the same for all ranks.

mod build;
mod print;

use super::mesh::{Layout, Mesh};
use super::network::{Network, Parameter};
use super::operator::Operator;
use super::propagate::NUMBER_BYTES;
use super::redistribute::{Step, Traffic};
use super::strategy::Strategy;
use crate::join;

/// Which collective calls a plan may use. The results are the same, to rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Collectives {
    /// Only sums and gathers, as in MindSpore's graph
    Compat,
    /// Reduce-scatter and all-to-all too: fewest bytes
    Min,
}

/// The options of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// The number of ranks; at least 1.
    pub world: u32,
    /// The number of parts into which the rows of a step's data are cut: the number of ranks if
    /// each has its own samples, or 1 if each has all samples. Must divide the number of ranks.
    pub data_cut: u32,
    pub collectives: Collectives,
    pub learning_rate: f32,
    pub momentum: f32,
}

/// The inputs of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    Samples,
    Labels,
}

/// What an instruction does.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    Input(Feed),
    /// Loads a parameter, given by its number.
    Load(usize),
    Forward(Operator),
    /// The gradient of an operator's input, given by its number, 0 or 1.
    Gradient(Operator, usize),
    /// Redistributes the parts of a tensor.
    Move(Step),
    /// Updates a parameter, given by its number, with its gradient.
    Momentum(usize),
}

/// An instruction. Its result has the same number.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    pub operation: Operation,
    /// The numbers of the results that the instruction uses.
    pub inputs: Vec<usize>,
    /// The whole shape of the result.
    pub shape: Vec<usize>,
    pub layout: Layout,
    /// The name of the operator or parameter.
    pub name: String,
    /// The strategy, if the instruction computes an operator.
    pub strategy: Option<Strategy>,
    /// The number, from 1, of the bucket that a sum belongs to. The sums of a bucket are
    /// consecutive, run over the same ranks, and share a call.
    pub bucket: Option<usize>,
}

impl Instruction {
    /// Returns the shape of each rank's part of the result.
    pub fn local_shape(&self, mesh: &Mesh) -> Vec<usize> {
        self.layout.local_shape(mesh, &self.shape)
    }
}

/// A training step as pure data, the same on every rank.
///
/// Only the offsets of slices and the members of groups depend on the rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub mesh: Mesh,
    pub terms: Terms,
    network: Network,
    pub instructions: Vec<Instruction>,
    /// The number of the instruction that computes the loss operator. Its result is a rank's share
    /// of the loss.
    pub loss_operator: usize,
    /// The number of the instruction whose result is the loss of all ranks.
    pub loss: usize,
}

impl Plan {
    /// Lists the operators with their strategies, such as `matmul ((2,4),(4,1)), relu ((2,4),)`.
    pub fn named_strategies(&self) -> String {
        let named = |one: &Instruction| Some(format!("{} {}", one.name, one.strategy.as_ref()?));
        join(self.instructions.iter().filter_map(named), ", ")
    }

    pub fn parameters(&self) -> impl Iterator<Item = (&Parameter, &Layout)> {
        let updates = self.instructions.iter().filter_map(|update| match update.operation {
            Operation::Momentum(_) => Some(&update.layout),
            _ => None,
        });
        self.network.parameters.iter().zip(updates)
    }

    /// Returns the instruction of an input, with its shape and layout.
    pub fn fed(&self, feed: Feed) -> &Instruction {
        let input = Operation::Input(feed);
        let found = self.instructions.iter().find(|instruction| instruction.operation == input);
        let Some(found) = found else { unreachable!("each plan has samples and labels") };
        found
    }

    /// Returns the traffic of a step in f32, assuming ring algorithms.
    pub fn traffic(&self) -> Traffic {
        let mut traffic = Traffic::default();
        let mut last = None;
        for instruction in &self.instructions {
            if let Operation::Move(step) = &instruction.operation {
                let before = &self.instructions[instruction.inputs[0]];
                let part: usize = before.local_shape(&self.mesh).iter().product();
                let mut more = step.traffic(&self.mesh, part as u64 * NUMBER_BYTES);
                if instruction.bucket.is_some() && instruction.bucket == last {
                    // This sum shares the call of the previous one.
                    more.calls = 0;
                }
                last = instruction.bucket;
                traffic += more;
            }
        }
        traffic
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Chain;

    fn traffic(network: &Network, collectives: Collectives) -> (f64, u64) {
        let terms = Terms { world: 8, data_cut: 8, collectives, learning_rate: 0.1, momentum: 0.1 };
        let traffic = Plan::new(network, &terms).unwrap().traffic();
        (traffic.bytes_per_rank(8), traffic.calls)
    }

    fn quick_start(strategies: &[(&str, &str)]) -> Network {
        let chain =
            Chain::new(16, 32).matmul("matmul", "w", 16).relu("relu").matmul("matmul2", "w2", 16);
        sharded(chain.mse("loss"), strategies)
    }

    fn sharded(mut network: Network, strategies: &[(&str, &str)]) -> Network {
        for (name, strategy) in strategies {
            network.shard(name, strategy.parse().unwrap()).unwrap();
        }
        network
    }

    #[test]
    fn the_quick_start_sends_the_published_bytes() {
        let seed = quick_start(&[("matmul", "((2,4),(4,1))")]);
        assert_eq!(traffic(&seed, Collectives::Compat), (3847.0, 7));
        assert_eq!(traffic(&seed, Collectives::Min), (2503.0, 7));
        let column = quick_start(&[("matmul", "((2,1),(1,4))")]);
        assert_eq!(traffic(&column, Collectives::Min).0, 2311.0);
        let data = quick_start(&[("matmul", "((8,1),(1,1))")]);
        assert_eq!(traffic(&data, Collectives::Compat), (5383.0, 1));
        let best =
            [("matmul", "((2,1),(1,4))"), ("matmul2", "((2,2),(2,2))"), ("loss", "((4,2),(4,2))")];
        assert_eq!(traffic(&quick_start(&best), Collectives::Min).0, 2119.0);
    }

    #[test]
    fn the_digits_network_sends_the_published_bytes() {
        let network = |strategies: &[(&str, &str)]| {
            let chain =
                Chain::new(64, 784).matmul("fc1", "w1", 128).bias_add("bias1", "b1").relu("relu");
            sharded(chain.matmul("fc2", "w2", 10).bias_add("bias2", "b2").xent("loss"), strategies)
        };
        let rows = [("bias2", "((2,1),(1,))"), ("loss", "((2,1),(2,))")];
        let blocks = [&[("fc1", "((2,4),(4,1))"), ("fc2", "((2,4),(4,1))")], &rows[..]].concat();
        assert_eq!(traffic(&network(&blocks), Collectives::Compat).0, 215_948.0);
        assert_eq!(traffic(&network(&blocks), Collectives::Min).0, 147_212.0);
        assert_eq!(
            traffic(&network(&[("fc1", "((8,1),(1,1))")]), Collectives::Compat),
            (712_397.0, 1)
        );
        assert_eq!(traffic(&network(&[("fc1", "((2,1),(1,4))")]), Collectives::Min).0, 179_021.0);
    }
}
