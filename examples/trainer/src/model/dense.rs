//! Dense layers, computed with the machine's widest vector instructions.
//!
//! A general matrix product packs its operands first, which costs too much for small batches. This
//! one reads them in place, in tiles as large as the registers allow.

use std::array::from_fn;

use pulp::{Arch, Simd, WithSimd};

/// The samples, or vectors of inputs, of a tile.
const WIDE: usize = 2;

/// A layer with `IN` inputs and `OUT` outputs. A tile computes `OUTS` outputs by [`WIDE`] samples
/// (or vectors of inputs) at once. `OUTS` divides `OUT`. 8 to 10 sums and their operands fit in the
/// registers of AVX2.
pub enum Dense<const IN: usize, const OUT: usize, const OUTS: usize> {}

impl<const IN: usize, const OUT: usize, const OUTS: usize> Dense<IN, OUT, OUTS> {
    /// The number of weights.
    ///
    /// The widest vector has 16 numbers, so the inputs are a whole number of vectors on every
    /// machine.
    pub const WEIGHTS: usize = {
        assert!(OUT.is_multiple_of(OUTS) && IN.is_multiple_of(16));
        IN * OUT
    };

    /// Overwrites each row with the outputs for one input: weights of shape (`OUT`, `IN`) times the
    /// input, plus biases.
    pub fn outputs(weights: &[f32], biases: &[f32], inputs: &[[f32; IN]], rows: &mut [[f32; OUT]]) {
        const { assert!(Self::WEIGHTS > 0) };
        Arch::new().dispatch(Outputs::<IN, OUT, OUTS> {
            weights: weights.as_chunks().0,
            biases,
            inputs,
            rows,
        });
    }

    /// Overwrites the gradients of the weights of some outputs, from output `first` on: the sum
    /// over the samples of the output's gradient times the input. `OUTS` divides the number of
    /// outputs.
    pub fn weight_gradients(
        gradients: &[[f32; OUT]],
        inputs: &[[f32; IN]],
        first: usize,
        weights: &mut [f32],
    ) {
        const { assert!(Self::WEIGHTS > 0) };
        let weights = weights.as_chunks_mut().0;
        Arch::new().dispatch(WeightGradients::<IN, OUT, OUTS> {
            gradients,
            inputs,
            first,
            weights,
        });
    }

    /// Overwrites the biases' gradients: the sum over the samples of the output's gradient.
    pub fn bias_gradients(gradients: &[[f32; OUT]], biases: &mut [f32]) {
        Arch::new().dispatch(|| {
            biases.fill(0.0);
            for row in gradients {
                for (bias, gradient) in biases.iter_mut().zip(row) {
                    *bias += gradient;
                }
            }
        });
    }

    /// Overwrites the inputs' gradients: the sum over the outputs of the output's gradient times
    /// the weight.
    pub fn input_gradients(weights: &[f32], gradients: &[[f32; OUT]], inputs: &mut [[f32; IN]]) {
        Arch::new().dispatch(|| {
            for (input, gradients) in inputs.iter_mut().zip(gradients) {
                input.fill(0.0);
                for (weights, gradient) in weights.as_chunks::<IN>().0.iter().zip(gradients) {
                    for (input, weight) in input.iter_mut().zip(weights) {
                        *input += gradient * weight;
                    }
                }
            }
        });
    }
}

struct Outputs<'a, const IN: usize, const OUT: usize, const OUTS: usize> {
    weights: &'a [[f32; IN]],
    biases: &'a [f32],
    inputs: &'a [[f32; IN]],
    rows: &'a mut [[f32; OUT]],
}

impl<const IN: usize, const OUT: usize, const OUTS: usize> WithSimd for Outputs<'_, IN, OUT, OUTS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (weights, biases) =
            (self.weights.as_chunks::<OUTS>().0, self.biases.as_chunks::<OUTS>().0);
        let count = self.inputs.len().min(self.rows.len());
        let (groups, last) = self.inputs[..count].as_chunks::<WIDE>();
        let (row_groups, last_rows) = self.rows[..count].as_chunks_mut::<WIDE>();
        for (tile, (weights, biases)) in weights.iter().zip(biases).enumerate() {
            for (inputs, rows) in groups.iter().zip(row_groups.iter_mut()) {
                put(dot_products(simd, weights, inputs), biases, tile, rows);
            }
            for (input, row) in last.iter().zip(last_rows.iter_mut()) {
                let (input, row) = (std::array::from_ref(input), std::array::from_mut(row));
                put(dot_products(simd, weights, input), biases, tile, row);
            }
        }
    }
}

/// Computes the dot product of each input with each row of weights.
#[inline(always)]
fn dot_products<S: Simd, const IN: usize, const OUTS: usize, const N: usize>(
    simd: S,
    weights: &[[f32; IN]; OUTS],
    inputs: &[[f32; IN]; N],
) -> [[f32; OUTS]; N] {
    let length = IN / S::F32_LANES;
    let weights: [&[S::f32s]; OUTS] =
        from_fn(|output| &S::as_simd_f32s(&weights[output]).0[..length]);
    let inputs: [&[S::f32s]; N] = from_fn(|input| &S::as_simd_f32s(&inputs[input]).0[..length]);
    let mut sums = [[simd.splat_f32s(0.0); OUTS]; N];
    for k in 0..length {
        let x: [S::f32s; N] = from_fn(|input| inputs[input][k]);
        for output in 0..OUTS {
            let weight = weights[output][k];
            for input in 0..N {
                sums[input][output] = simd.mul_add_e_f32s(weight, x[input], sums[input][output]);
            }
        }
    }
    sums.map(|sums| sums.map(|sum| simd.reduce_sum_f32s(sum)))
}

#[inline(always)]
fn put<const OUT: usize, const OUTS: usize, const N: usize>(
    sums: [[f32; OUTS]; N],
    biases: &[f32; OUTS],
    tile: usize,
    rows: &mut [[f32; OUT]; N],
) {
    for (sums, row) in sums.iter().zip(rows) {
        for output in 0..OUTS {
            row[tile * OUTS + output] = sums[output] + biases[output];
        }
    }
}

struct WeightGradients<'a, const IN: usize, const OUT: usize, const OUTS: usize> {
    gradients: &'a [[f32; OUT]],
    inputs: &'a [[f32; IN]],
    first: usize,
    weights: &'a mut [[f32; IN]],
}

impl<const IN: usize, const OUT: usize, const OUTS: usize> WithSimd
    for WeightGradients<'_, IN, OUT, OUTS>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let length = IN / S::F32_LANES;
        let whole = length - length % WIDE;
        for k in (0..whole).step_by(WIDE) {
            self.vectors::<S, WIDE>(simd, k);
        }
        for k in whole..length {
            self.vectors::<S, 1>(simd, k);
        }
    }
}

impl<const IN: usize, const OUT: usize, const OUTS: usize> WeightGradients<'_, IN, OUT, OUTS> {
    /// Computes the weight gradients for `N` vectors of inputs, starting at vector `k`.
    #[inline(always)]
    fn vectors<S: Simd, const N: usize>(&mut self, simd: S, k: usize) {
        for (tile, weights) in self.weights.as_chunks_mut::<OUTS>().0.iter_mut().enumerate() {
            let mut sums = [[simd.splat_f32s(0.0); N]; OUTS];
            for (input, gradients) in self.inputs.iter().zip(self.gradients) {
                let input = &S::as_simd_f32s(input).0[k..k + N];
                let x: [S::f32s; N] = from_fn(|i| input[i]);
                for output in 0..OUTS {
                    let gradient = simd.splat_f32s(gradients[self.first + tile * OUTS + output]);
                    for i in 0..N {
                        sums[output][i] = simd.mul_add_e_f32s(gradient, x[i], sums[output][i]);
                    }
                }
            }
            for (weights, sums) in weights.iter_mut().zip(sums) {
                S::as_mut_simd_f32s(weights).0[k..k + N].copy_from_slice(&sums);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small whole numbers: every sum is exact, in any order.
    fn numbers<const N: usize>(row: usize) -> [f32; N] {
        from_fn(|index| ((index * 7 + row * 13) % 11) as f32 - 5.0)
    }

    fn the_sums_are_those_of_the_definition<
        const IN: usize,
        const OUT: usize,
        const OUTS: usize,
    >() {
        let weights: Vec<f32> = (0..OUT * IN).map(|index| (index * 5 % 7) as f32 - 3.0).collect();
        let biases: [f32; OUT] = from_fn(|output| output as f32);
        for count in 0..8 {
            let inputs: Vec<[f32; IN]> = (0..count).map(numbers).collect();
            let gradients: Vec<[f32; OUT]> = (0..count).map(|row| numbers(row + 3)).collect();
            let mut rows = vec![[f32::NAN; OUT]; count];
            Dense::<IN, OUT, OUTS>::outputs(&weights, &biases, &inputs, &mut rows);
            let mut weight_gradients = vec![f32::NAN; OUT * IN];
            for (index, weights) in weight_gradients.chunks_mut(OUTS * IN).enumerate() {
                Dense::<IN, OUT, OUTS>::weight_gradients(
                    &gradients,
                    &inputs,
                    index * OUTS,
                    weights,
                );
            }
            let mut at_once = vec![f32::NAN; OUT * IN];
            Dense::<IN, OUT, OUTS>::weight_gradients(&gradients, &inputs, 0, &mut at_once);
            assert_eq!(at_once, weight_gradients);
            let mut bias_gradients = [f32::NAN; OUT];
            Dense::<IN, OUT, OUTS>::bias_gradients(&gradients, &mut bias_gradients);
            let mut input_gradients = vec![[f32::NAN; IN]; count];
            Dense::<IN, OUT, OUTS>::input_gradients(&weights, &gradients, &mut input_gradients);
            for output in 0..OUT {
                let weights = &weights[output * IN..][..IN];
                for (row, input) in rows.iter().zip(&inputs) {
                    let sum: f32 = weights.iter().zip(input).map(|(weight, x)| weight * x).sum();
                    assert_eq!(row[output], sum + biases[output]);
                }
                for k in 0..IN {
                    let sum: f32 = gradients
                        .iter()
                        .zip(&inputs)
                        .map(|(gradients, input)| gradients[output] * input[k])
                        .sum();
                    assert_eq!(weight_gradients[output * IN + k], sum);
                }
                assert_eq!(
                    bias_gradients[output],
                    gradients.iter().map(|gradients| gradients[output]).sum::<f32>()
                );
            }
            for (found, gradients) in input_gradients.iter().zip(&gradients) {
                for (k, found) in found.iter().enumerate() {
                    let sum: f32 = gradients
                        .iter()
                        .enumerate()
                        .map(|(output, x)| x * weights[output * IN + k])
                        .sum();
                    assert_eq!(*found, sum);
                }
            }
        }
    }

    #[test]
    fn the_sums_are_those_of_the_definition_for_any_count_and_shape() {
        the_sums_are_those_of_the_definition::<784, 10, 5>();
        the_sums_are_those_of_the_definition::<784, 128, 4>();
        the_sums_are_those_of_the_definition::<128, 10, 5>();
    }
}
