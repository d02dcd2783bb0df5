//! The tutorial's network: Dense(784 -> 10), ReLU on the logits, softmax cross-entropy.

use super::dense::Dense;
use super::{Architecture, Model, loss_and_gradient};
use crate::batch::Image;
use crate::data::{CLASSES, PIXELS};
use mpienv_sharding::operator::kernels;

type Layer = Dense<PIXELS, CLASSES, 5>;

/// The number of weights: a row of [`PIXELS`] for each class.
pub const WEIGHTS: usize = Layer::WEIGHTS;

/// The linear model. Parameters: weights of shape (10, 784), row by row, then 10 biases.
#[derive(Clone, Debug)]
pub struct Linear {
    /// One row per sample: first the logits, then their gradient.
    rows: Vec<[f32; CLASSES]>,
    /// A copy of the logits, which the loss overwrites in `rows`.
    logits: Vec<[f32; CLASSES]>,
}

impl Linear {
    /// Creates the model, with room for batches of `capacity` samples.
    pub fn new(capacity: usize) -> Linear {
        Linear { rows: vec![[0.0; CLASSES]; capacity], logits: vec![[0.0; CLASSES]; capacity] }
    }
}

impl Model for Linear {
    fn architecture(&self) -> Architecture {
        Architecture::Linear
    }

    fn part(&self) -> usize {
        WEIGHTS / 2
    }

    fn loss(&mut self, parameters: &[f32], images: &[Image], labels: &[u8], whole: usize) -> f32 {
        self.logits(parameters, images);
        let (rows, logits) = (&mut self.rows[..images.len()], &mut self.logits[..images.len()]);
        logits.copy_from_slice(rows);
        let loss = loss_and_gradient(rows, labels, 1.0 / whole as f32);
        kernels::mask(rows.as_flattened_mut(), logits.as_flattened());
        loss
    }

    fn gradient_part(&mut self, images: &[Image], first: usize, part: &mut [f32]) {
        let rows = &self.rows[..images.len()];
        let (weights, biases) = part.split_at_mut(WEIGHTS.saturating_sub(first).min(part.len()));
        Layer::weight_gradients(rows, images, first / PIXELS, weights);
        Layer::bias_gradients(rows, biases);
    }

    fn logits(&mut self, parameters: &[f32], images: &[Image]) -> &mut [[f32; CLASSES]] {
        let (weights, biases) = parameters.split_at(WEIGHTS);
        Layer::outputs(weights, biases, images, &mut self.rows);
        let rows = &mut self.rows[..images.len()];
        kernels::rectify(rows.as_flattened_mut());
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{assert_gradient, assert_not_finite, assert_parts_add_up, batch};

    fn parameters() -> Vec<f32> {
        let mut parameters = Linear::new(0).initial_parameters(1);
        for (index, bias) in parameters[WEIGHTS..].iter_mut().enumerate() {
            *bias = 0.05 * index as f32 - 0.2;
        }
        parameters
    }

    /// The loss of a sample, in f64, straight from its definition.
    fn loss(parameters: &[f64], image: &[f64], label: usize) -> f64 {
        let rows = parameters[..WEIGHTS].chunks(PIXELS).zip(&parameters[WEIGHTS..]);
        let logits = rows.map(|(row, bias)| {
            (row.iter().zip(image).map(|(w, x)| w * x).sum::<f64>() + bias).max(0.0)
        });
        let logits: Vec<f64> = logits.collect();
        logits.iter().map(|x| x.exp()).sum::<f64>().ln() - logits[label]
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let indices = (0..WEIGHTS).step_by(97).chain(WEIGHTS..WEIGHTS + CLASSES);
        assert_gradient(&mut Linear::new(32), &parameters(), indices, loss);
    }

    #[test]
    fn gradients_of_parts_add_up_to_that_of_the_whole() {
        assert_parts_add_up(&mut Linear::new(32), &parameters());
    }

    #[test]
    fn parameters_that_are_not_numbers_give_a_loss_that_is_none() {
        assert_not_finite(&mut Linear::new(4), WEIGHTS + CLASSES);
    }

    #[test]
    fn evaluation_counts_the_first_of_equal_logits() {
        let (images, _) = batch(3);
        let parameters = vec![0.0; WEIGHTS + CLASSES];
        let evaluation = Linear::new(3).evaluate(&parameters, &images, &[0, 1, 0]);
        assert_eq!((evaluation.correct, evaluation.count), (2, 3));
        assert!((evaluation.loss - 3.0 * 10f64.ln()).abs() < 1e-5);
    }

    #[test]
    fn the_first_weights_are_small_and_the_biases_0() {
        let parameters = Linear::new(1).initial_parameters(1);
        let weights = &parameters[..WEIGHTS];
        let deviation = (weights.iter().map(|w| w * w).sum::<f32>() / WEIGHTS as f32).sqrt();
        assert!((deviation - 0.01).abs() < 5e-4, "{deviation}");
        assert_eq!(parameters[WEIGHTS..], [0.0; CLASSES]);
        assert_ne!(parameters, Linear::new(1).initial_parameters(2));
        // A weight depends only on the seed, the parameter and the weight's index.
        assert_eq!(weights[7000], (0.01 * mpienv_sharding::random::normal(1, 0, 7000)) as f32);
    }
}
