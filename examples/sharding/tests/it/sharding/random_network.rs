//! Random networks, strategies, data and layouts.

use mpienv_sharding::mesh::Layout;
use mpienv_sharding::network::{Chain, Network};
use mpienv_sharding::operator::Operator;
use mpienv_sharding::plan::{Collectives, Plan, Terms};
use mpienv_sharding::random::{Purpose, Stream};
use mpienv_sharding::tensor::Tensor;
use proptest::prelude::*;

// At 0.25, one case in a few thousand diverges, which amplifies f32's rounding beyond the
// tolerance.
pub const LEARNING_RATE: f64 = 0.1;
pub const MOMENTUM: f64 = 0.5;

/// Sizes with many divisors, and sizes with few.
const SIZES: [usize; 9] = [1, 2, 3, 4, 5, 6, 8, 12, 16];

/// What to train, and on how many ranks.
#[derive(Clone, Debug)]
pub struct Case {
    pub network: Network,
    pub world: u32,
    pub data_cut: u32,
    pub samples: Tensor,
    pub labels: Tensor,
    pub parameters: Vec<Tensor>,
}

impl Case {
    pub fn plan(&self, collectives: Collectives) -> Plan {
        Plan::new(&self.network, &self.terms(collectives)).unwrap()
    }

    fn terms(&self, collectives: Collectives) -> Terms {
        let (world, data_cut) = (self.world, self.data_cut);
        Terms {
            world,
            data_cut,
            collectives,
            learning_rate: LEARNING_RATE as f32,
            momentum: MOMENTUM as f32,
        }
    }

    /// The same network and data, on a different number of ranks and with different cuts.
    pub fn cut_anew(&self, seed: u64) -> Case {
        let mut stream = Stream::new(seed, Purpose::Epoch(1));
        let rows = self.samples.shape[0];
        let worlds: Vec<u32> =
            (1..=16).filter(|&world| rows.is_multiple_of(world as usize)).collect();
        let world = pick(&mut stream, &worlds);
        let mut case = Case { world, ..self.clone() };
        case.cut(&mut stream);
        case
    }

    /// Cuts the data and some operators, each in any legal way that fits the previous ones.
    fn cut(&mut self, stream: &mut Stream) {
        let cuts: Vec<u32> = divisors(self.world);
        self.data_cut = pick(stream, &cuts);
        let mut network = bare(&self.network);
        for index in 0..network.nodes.len() {
            if stream.uniform() < 0.4 {
                continue;
            }
            let node = network.nodes[index].clone();
            let ranks = pick(stream, &cuts);
            let candidates = node.operator.candidates(&node.shapes, ranks);
            if candidates.is_empty() {
                continue;
            }
            let mut tried = network.clone();
            tried.shard(&node.name, node.operator.strategy(&pick(stream, &candidates))).unwrap();
            if Plan::new(&tried, &self.terms(Collectives::Min)).is_ok() {
                network = tried;
            }
        }
        self.network = network;
    }
}

fn divisors(number: u32) -> Vec<u32> {
    (1..=number).filter(|&divisor| number.is_multiple_of(divisor)).collect()
}

fn pick<T: Clone>(stream: &mut Stream, items: &[T]) -> T {
    items[stream.between(0.0, items.len() as f64) as usize].clone()
}

/// The network without strategies.
fn bare(network: &Network) -> Network {
    let nodes = &network.nodes;
    let mut chain = Chain::new(nodes[0].shapes[0][0], nodes[0].shapes[0][1]);
    for node in nodes {
        chain = match (node.operator, node.parameter) {
            (Operator::MatMul, Some(number)) => {
                chain.matmul(&node.name, &network.parameters[number].name, node.shapes[1][1])
            }
            (Operator::BiasAdd, Some(number)) => {
                chain.bias_add(&node.name, &network.parameters[number].name)
            }
            (Operator::Mse, _) => return chain.mse(&node.name),
            (Operator::Xent, _) => return chain.xent(&node.name),
            _ => chain.relu(&node.name),
        };
    }
    unreachable!("a network ends in a loss")
}

/// Any network of one to five operators and a loss, on 1 to 16 ranks, with different values for
/// every sample.
pub fn case() -> impl Strategy<Value = Case> {
    (any::<u64>(), 1..=16u32).prop_map(|(seed, world)| draw(seed, world))
}

fn draw(seed: u64, world: u32) -> Case {
    let mut stream = Stream::new(seed, Purpose::Epoch(0));
    let stream = &mut stream;
    let rows = world as usize * pick(stream, &[1, 2, 3]);
    let inputs = pick(stream, &SIZES);
    let mut chain = Chain::new(rows, inputs);
    let mut columns = inputs;
    let count = stream.between(1.0, 6.0) as usize;
    for index in 0..count {
        let name = format!("op{index}");
        chain = match stream.between(0.0, 4.0) as u32 {
            0 | 1 => {
                columns = pick(stream, &SIZES);
                chain.matmul(&name, &format!("w{index}"), columns)
            }
            2 => chain.bias_add(&name, &format!("b{index}")),
            _ => chain.relu(&name),
        };
    }
    // The reference in f64 starts from the same values.
    let mut tensor = |shape: Vec<usize>, scale: f64| {
        let numbers =
            (0..shape.iter().product()).map(|_| stream.between(-scale, scale) as f32).collect();
        Tensor::new(shape, numbers)
    };
    let samples = tensor(vec![rows, inputs], 1.0);
    let (network, labels) = if seed.is_multiple_of(2) {
        (chain.mse("loss"), tensor(vec![rows, columns], 1.0))
    } else {
        let class = |x: &f32| ((x + 1.0) * 0.5 * columns as f32).floor().min(columns as f32 - 1.0);
        let classes = tensor(vec![rows], 1.0).data.iter().map(class).collect();
        (chain.xent("loss"), Tensor::new(vec![rows], classes))
    };
    let parameters =
        network.parameters.iter().map(|parameter| tensor(parameter.shape.clone(), 0.5)).collect();
    let mut case = Case { network, world, data_cut: 1, samples, labels, parameters };
    case.cut(&mut Stream::new(seed, Purpose::Epoch(2)));
    case
}

/// A mesh, and two layouts of a matrix on it with any order of axes; the first layout may have
/// pending sums.
pub fn layouts() -> impl Strategy<Value = (Vec<u32>, Layout, Layout)> {
    let dims = prop::collection::vec(2..4u32, 0..4)
        .prop_filter("at most 16 ranks", |dims| dims.iter().product::<u32>() <= 16);
    (dims, any::<u64>()).prop_map(|(dims, seed)| {
        let mut stream = Stream::new(seed, Purpose::Epoch(0));
        let mut layout = |with_sums: bool| {
            let mut axes: Vec<usize> = (0..dims.len()).collect();
            stream.shuffle(&mut axes);
            let mut layout = Layout::new(vec![vec![], vec![]]);
            for axis in axes {
                match stream.between(0.0, 4.0) as usize {
                    dim @ (0 | 1) => layout.dims[dim].push(axis),
                    2 if with_sums => layout.partial.push(axis),
                    _ => {}
                }
            }
            layout.partial.sort_unstable();
            layout
        };
        let (from, to) = (layout(true), layout(false));
        (dims, from, to)
    })
}
