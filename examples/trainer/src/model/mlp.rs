//! A network with a hidden layer: Dense(784 -> 128), ReLU, Dense(128 -> 10), softmax cross-entropy.

use std::ops::Range;

use super::dense::Dense;
use super::{Architecture, Model, loss_and_gradient};
use crate::batch::Image;
use crate::data::{CLASSES, PIXELS};
use mpienv_sharding::operator::kernels;

/// The number of outputs of the hidden layer.
pub const HIDDEN: usize = 128;

type First = Dense<PIXELS, HIDDEN, 4>;
type Second = Dense<HIDDEN, CLASSES, 5>;

/// The model with a hidden layer.
///
/// Parameters: weights of shape (128, 784), row by row, 128 biases, weights of shape (10, 128), 10
/// biases.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// One row per sample: the hidden layer's outputs after ReLU.
    hidden: Vec<[f32; HIDDEN]>,
    /// One row per sample: the gradient of the hidden layer's outputs before ReLU.
    hidden_gradients: Vec<[f32; HIDDEN]>,
    /// One row per sample: first the logits, then their gradient.
    rows: Vec<[f32; CLASSES]>,
}

/// The range of the first layer's parameters. The second layer's follow.
const FIRST: Range<usize> = 0..First::WEIGHTS + HIDDEN;

impl Mlp {
    /// Creates the model, with room for batches of `capacity` samples.
    pub fn new(capacity: usize) -> Mlp {
        Mlp {
            hidden: vec![[0.0; HIDDEN]; capacity],
            hidden_gradients: vec![[0.0; HIDDEN]; capacity],
            rows: vec![[0.0; CLASSES]; capacity],
        }
    }
}

impl Model for Mlp {
    fn architecture(&self) -> Architecture {
        Architecture::Mlp
    }

    fn part(&self) -> usize {
        First::WEIGHTS / 4
    }

    fn loss(&mut self, parameters: &[f32], images: &[Image], labels: &[u8], whole: usize) -> f32 {
        self.logits(parameters, images);
        let count = images.len();
        let (hidden, hidden_gradients) =
            (&self.hidden[..count], &mut self.hidden_gradients[..count]);
        let rows = &mut self.rows[..count];
        let loss = loss_and_gradient(rows, labels, 1.0 / whole as f32);
        let weights = &parameters[FIRST.end..][..Second::WEIGHTS];
        Second::input_gradients(weights, rows, hidden_gradients);
        kernels::mask(hidden_gradients.as_flattened_mut(), hidden.as_flattened());
        loss
    }

    fn gradient_part(&mut self, images: &[Image], first: usize, part: &mut [f32]) {
        let count = images.len();
        let (rows, hidden) = (&self.rows[..count], &self.hidden[..count]);
        let hidden_gradients = &self.hidden_gradients[..count];
        let (weights, rest) =
            part.split_at_mut(First::WEIGHTS.saturating_sub(first).min(part.len()));
        First::weight_gradients(hidden_gradients, images, first / PIXELS, weights);
        if rest.is_empty() {
            return;
        }
        let (biases, second) = rest.split_at_mut(HIDDEN);
        First::bias_gradients(hidden_gradients, biases);
        let (weights, biases) = second.split_at_mut(Second::WEIGHTS);
        Second::weight_gradients(rows, hidden, 0, weights);
        Second::bias_gradients(rows, biases);
    }

    fn logits(&mut self, parameters: &[f32], images: &[Image]) -> &mut [[f32; CLASSES]] {
        let (first, second) = parameters.split_at(FIRST.end);
        let (weights, biases) = first.split_at(First::WEIGHTS);
        First::outputs(weights, biases, images, &mut self.hidden);
        let hidden = &mut self.hidden[..images.len()];
        kernels::rectify(hidden.as_flattened_mut());
        let (weights, biases) = second.split_at(Second::WEIGHTS);
        Second::outputs(weights, biases, hidden, &mut self.rows);
        &mut self.rows[..images.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{assert_gradient, assert_not_finite, assert_parts_add_up, batch};

    const PARAMETERS: usize = First::WEIGHTS + HIDDEN + Second::WEIGHTS + CLASSES;

    /// The loss of a sample, in f64, straight from its definition.
    fn loss(parameters: &[f64], image: &[f64], label: usize) -> f64 {
        let layer = |parameters: &[f64], inputs: &[f64], outputs: usize| -> Vec<f64> {
            let (weights, biases) = parameters.split_at(outputs * inputs.len());
            let rows = weights.chunks(inputs.len()).zip(biases);
            rows.map(|(row, bias)| row.iter().zip(inputs).map(|(w, x)| w * x).sum::<f64>() + bias)
                .collect()
        };
        let hidden: Vec<f64> =
            layer(&parameters[FIRST], image, HIDDEN).iter().map(|x| x.max(0.0)).collect();
        let logits = layer(&parameters[FIRST.end..], &hidden, CLASSES);
        logits.iter().map(|x| x.exp()).sum::<f64>().ln() - logits[label]
    }

    /// Initial parameters with hidden biases other than 0 and larger weights in the last layer.
    fn parameters() -> Vec<f32> {
        let mut parameters = Mlp::new(0).initial_parameters(1);
        for (index, bias) in parameters[First::WEIGHTS..FIRST.end].iter_mut().enumerate() {
            *bias = 0.01 * (index % 7) as f32 - 0.02;
        }
        parameters[FIRST.end..].iter_mut().for_each(|weight| *weight *= 10.0);
        parameters
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let indices =
            (0..First::WEIGHTS).step_by(4999).chain((First::WEIGHTS..PARAMETERS).step_by(53));
        assert_gradient(&mut Mlp::new(32), &parameters(), indices, loss);
    }

    #[test]
    fn gradients_of_parts_add_up_to_that_of_the_whole() {
        assert_parts_add_up(&mut Mlp::new(32), &parameters());
    }

    #[test]
    fn the_first_loss_is_near_that_of_a_guess_and_the_hidden_layer_passes_the_spread_on() {
        let (images, labels) = batch(32);
        let mut model = Mlp::new(32);
        let parameters = model.initial_parameters(1);
        assert_eq!(parameters.len(), PARAMETERS);
        let loss = model.evaluate(&parameters, &images, &labels).loss / 32.0;
        assert!((2.2..3.5).contains(&loss), "{loss}");
        let spread =
            |values: &[f32]| values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32;
        let (before, after) = (spread(images.as_flattened()), spread(model.hidden.as_flattened()));
        assert!((after / before - 1.0).abs() < 0.3, "{before} {after}");
        assert_ne!(parameters, Mlp::new(1).initial_parameters(2));
    }

    #[test]
    fn parameters_that_are_not_numbers_give_a_loss_that_is_none() {
        assert_not_finite(&mut Mlp::new(4), PARAMETERS);
    }
}
