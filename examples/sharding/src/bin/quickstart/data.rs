//! The quick start's samples, equal to NumPy's `random.rand` after `random.seed(1)`.

use rand_mt::Mt;

use mpienv_sharding::tensor::Tensor;

/// Samples per step on each rank.
pub const ROWS: usize = 2;

/// The number of values in a sample.
pub const INPUTS: usize = 32;

/// The number of values in a label.
pub const OUTPUTS: usize = 16;

/// Draws the samples and labels of a step, which are the same for every rank and step.
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
}
