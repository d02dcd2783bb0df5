//! Initial parameters.

use super::plan::Plan;
use super::tensor::{Tensor, places};
use crate::random;

/// The deviation of the initial weights.
const DEVIATION: f64 = 0.01;

/// How initial parameters are drawn. Weights are N(0, 0.01) and biases are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    /// Every number depends only on the seed, the parameter and the number's index.
    Normal { seed: u64 },
    /// As MindSpore 1.x does. Each part is drawn separately, so numbers depend on the strategy and
    /// the number of ranks.
    MindSpore1,
}

impl Init {
    /// Draws the initial parameters of `rank`.
    pub fn parameters(self, plan: &Plan, rank: u32) -> Vec<Tensor> {
        let mesh = &plan.mesh;
        let parameters = (0..).zip(plan.parameters()).map(|(number, (parameter, layout))| {
            let shape = layout.local_shape(mesh, &parameter.shape);
            if shape.len() < 2 {
                return Tensor::zeros(shape);
            }
            let data = match self {
                Init::Normal { seed } => {
                    let offset = layout.offset(mesh, &parameter.shape, rank);
                    let places = places(&parameter.shape, &offset, &shape);
                    let normal = |place| random::normal(seed, number, place as u64);
                    places.map(|place| (DEVIATION * normal(place)) as f32).collect()
                }
                Init::MindSpore1 => {
                    let (part, _) = layout.part(mesh, rank);
                    let seed = part + mesh.world() * number + 1;
                    mindspore_normal(seed, shape.iter().product(), DEVIATION as f32)
                }
            };
            Tensor::new(shape, data)
        });
        parameters.collect()
    }
}

/// The number of workers that fill a tensor in MindSpore. A tensor with at most this many numbers
/// has only one.
const WORKERS: usize = 16;

/// MindSpore 1.x's value of pi.
#[expect(clippy::approx_constant, reason = "the exact value would give other numbers")]
const PI: f32 = 3.14;

/// Draws `count` numbers from N(0, `deviation`) with `seed`.
fn mindspore_normal(seed: u32, count: usize, deviation: f32) -> Vec<f32> {
    let workers = if count <= WORKERS { 1 } else { WORKERS };
    let chunk = count / workers;
    let mut numbers = Vec::with_capacity(count);
    for worker in 0..workers {
        let length = if worker + 1 == workers { count - chunk * worker } else { chunk };
        let mut generator = Generator::new(seed, (length * worker).div_ceil(4) as u64);
        let end = numbers.len() + length;
        while numbers.len() < end {
            let four = generator.four();
            for pair in [[four[0], four[1]], [four[2], four[3]]] {
                let [radius, angle] = pair.map(uniform);
                let radius = libm::sqrtf(-2.0 * libm::logf(radius));
                let angle = 2.0 * PI * angle;
                numbers.extend([
                    radius * libm::sinf(angle) * deviation,
                    radius * libm::cosf(angle) * deviation,
                ]);
            }
        }
        numbers.truncate(end);
    }
    numbers
}

/// Converts the low bits of a word to a number in [1e-7, 1).
fn uniform(word: u32) -> f32 {
    (f32::from_bits(0x3f80_0000 | word & 0x7f_ffff) - 1.0).max(1e-7)
}

/// MindSpore's variant of Philox, in which the rounds change the stored key and counter.
struct Generator {
    key: u32,
    counter: u128,
}

impl Generator {
    fn new(seed: u32, skipped: u64) -> Generator {
        Generator { key: seed, counter: u128::from(skipped) }
    }

    fn four(&mut self) -> [u32; 4] {
        for _ in 0..10 {
            let [c0, c1, c2, c3] = words(self.counter);
            let (p, q) = (u64::from(c0) * 0xD251_1F53, u64::from(c2) * 0xCD9E_8D57);
            let (high, low) =
                (|product: u64| (product >> 32) as u32, |product: u64| product as u32);
            let mixed = [high(q) ^ c1 ^ self.key, low(q), high(p) ^ c3 ^ self.key, low(p)];
            self.counter = (0..4).fold(0, |all, word| all | u128::from(mixed[word]) << (32 * word));
            self.key = self.key.wrapping_add(0x9E37_79B9);
        }
        self.counter = self.counter.wrapping_add(1);
        words(self.counter)
    }
}

fn words(counter: u128) -> [u32; 4] {
    [0, 32, 64, 96].map(|shift| (counter >> shift) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Chain;
    use crate::plan::{Collectives, Terms};

    fn plan(world: u32, strategy: &str) -> Plan {
        let chain =
            Chain::new(16, 32).matmul("matmul", "w", 16).relu("relu").matmul("matmul2", "w2", 16);
        let mut network = chain.bias_add("bias", "b").mse("loss");
        network.shard("matmul", strategy.parse().unwrap()).unwrap();
        let terms = Terms {
            world,
            data_cut: world,
            collectives: Collectives::Min,
            learning_rate: 0.1,
            momentum: 0.1,
        };
        Plan::new(&network, &terms).unwrap()
    }

    #[test]
    fn normal_numbers_do_not_depend_on_the_cuts() {
        let init = Init::Normal { seed: 7 };
        let whole: Vec<Tensor> = init.parameters(&plan(1, "((1,1),(1,1))"), 0);
        assert!(whole[0].data.iter().any(|&number| number != whole[0].data[0]));
        assert_eq!(whole[2], Tensor::zeros(vec![16]));
        for strategy in ["((2,4),(4,1))", "((2,1),(1,4))", "((2,2),(2,2))"] {
            let plan = plan(8, strategy);
            for rank in 0..8 {
                let parts = crate::execute::parts(&plan, rank, &whole);
                assert_eq!(init.parameters(&plan, rank), parts, "{strategy} {rank}");
            }
        }
    }

    #[test]
    fn the_numbers_of_mindspore_1_are_drawn() {
        let plan = plan(8, "((2,4),(4,1))");
        let parts: Vec<Vec<Tensor>> =
            (0..8).map(|rank| Init::MindSpore1.parameters(&plan, rank)).collect();
        let near = |found: f32, expected: f32| {
            assert!((found - expected).abs() < 2e-9, "{found} {expected}")
        };
        for (index, expected) in
            [0.015_348_703, -0.003_229_962_2, -0.000_753_380_65, 0.014_682_23].iter().enumerate()
        {
            near(parts[0][0].data[index], *expected);
        }
        near(parts[1][0].data[0], -0.002_770_229_2);
        near(parts[0][1].data[0], 0.009_612_243);
        assert_eq!(parts[0], parts[4]);
        for (parameter, expected) in [(0, -0.357_903_0), (1, -0.105_425_4)] {
            let sum: f64 = parts[..4]
                .iter()
                .flat_map(|parts| &parts[parameter].data)
                .map(|&number| f64::from(number))
                .sum();
            assert!((sum - expected).abs() < 1e-6, "{sum} {expected}");
        }
    }
}
