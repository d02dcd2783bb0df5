//! The quick start's network, its samples, and how a loss is printed: all as Python prints them.

use crate::options::Sharding;
use mpienv_sharding::error::Error;
use mpienv_sharding::network::Chain;
use mpienv_sharding::plan::{Plan, Terms};
use mpienv_sharding::tensor::Tensor;
use rand_mt::Mt;

/// Samples per step on each rank.
const ROWS: usize = 2;

/// The number of values in a sample.
const INPUTS: usize = 32;

/// The number of values in a label.
const OUTPUTS: usize = 16;

/// The number of columns between the two matrix products.
const HIDDEN: usize = 16;

const MOMENTUM: f32 = 0.1;

/// Plans the network for `world` ranks.
pub fn plan(sharding: &Sharding, world: u32) -> Result<Plan, Error> {
    let chain =
        Chain::new(ROWS * world as usize, INPUTS).matmul("matmul", "w", HIDDEN).relu("relu");
    let mut network = chain.matmul("matmul2", "w2", OUTPUTS).mse("loss");
    sharding.apply(&mut network, world)?;
    let Sharding { learning_rate, collectives, .. } = *sharding;
    let terms = Terms { world, data_cut: world, collectives, learning_rate, momentum: MOMENTUM };
    Plan::new(&network, &terms)
}

/// Draws the samples and labels of a step, equal to NumPy's `random.rand` after `random.seed(1)`.
/// They are the same for every rank and step.
pub fn draw() -> (Tensor, Tensor) {
    let mut generator = Mt::new(1);
    let mut tensor = |columns| {
        let data = (0..ROWS * columns).map(|_| uniform(&mut generator) as f32).collect();
        Tensor::new(vec![ROWS, columns], data)
    };
    let samples = tensor(INPUTS);
    (samples, tensor(OUTPUTS))
}

/// Draws a number in [0, 1) with 53 bits, as NumPy does.
fn uniform(generator: &mut Mt) -> f64 {
    let (high, low) = (generator.next_u32() >> 5, generator.next_u32() >> 6);
    (f64::from(high) * f64::from(1 << 26) + f64::from(low)) / (1u64 << 53) as f64
}

/// Formats a float like Python's `repr`: the fewest digits that parse to the same number.
pub fn repr(number: f64) -> String {
    let text = format!("{number:?}");
    match text.split_once('e') {
        // Rust and Python switch to exponents at the same numbers. Python adds a sign and writes at
        // least two digits.
        Some((digits, exponent)) => {
            let (sign, exponent) =
                exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text.to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_numpys() {
        let mut generator = Mt::new(1);
        assert_eq!(uniform(&mut generator), 0.417_022_004_702_574);
        assert_eq!(uniform(&mut generator), 0.720_324_493_442_158_1);
        assert_eq!(uniform(&mut generator), 0.000_114_374_817_344_886_64);
    }

    #[test]
    fn the_texts_are_those_that_python_prints() {
        for (number, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (123_456.789, "123456.789"),
            (1e-4, "0.0001"),
            (0.000_099, "9.9e-05"),
            (1e-5, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (1e15, "1000000000000000.0"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1e16, "1e+16"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (1e100, "1e+100"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::from(8.066_464e-16_f32), "8.066464163292153e-16"),
            (f64::from(0.2_f32), "0.20000000298023224"),
            (f64::from(1e-4_f32), "9.999999747378752e-05"),
            (f64::from(f32::from_bits(1)), "1.401298464324817e-45"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(repr(number), text);
        }
    }
}
