//! The tutorial's network: Dense(784 -> 10), ReLU on the logits, softmax cross-entropy.

use pulp::Arch;

use super::{Evaluation, Model, dense, normal_values};
use crate::batch::Image;
use crate::data::{CLASSES, PIXELS};
use crate::parameters::Shapes;

/// How many weights there are: one row of [`PIXELS`] for each class.
pub const WEIGHTS: usize = CLASSES * PIXELS;

/// The linear model. Parameters: weights of shape (10, 784), row by row, then 10 biases.
#[derive(Clone, Debug)]
pub struct Linear {
    /// One row for each sample: first its logits, then the slope of its loss in them.
    rows: Vec<[f32; CLASSES]>,
    arch: Arch,
}

impl Linear {
    /// The model, with room for batches of `capacity` samples.
    #[must_use]
    pub fn new(capacity: usize) -> Linear {
        Linear { rows: vec![[0.0; CLASSES]; capacity], arch: Arch::new() }
    }

    /// Fills the first rows with the logits before ReLU.
    fn forward(&mut self, parameters: &[f32], images: &[Image]) {
        let (weights, biases) = parameters.split_at(WEIGHTS);
        dense::outputs(self.arch, weights, biases, images, &mut self.rows);
    }
}

impl Model for Linear {
    fn parameter_count(&self) -> usize {
        WEIGHTS + CLASSES
    }

    fn parameter_shapes(&self) -> Shapes {
        vec![("weight", vec![CLASSES, PIXELS]), ("bias", vec![CLASSES])]
    }

    fn initial_parameters(&self, seed: u64) -> Vec<f32> {
        normal_values(seed, 0, WEIGHTS).chain([0.0; CLASSES]).collect()
    }

    fn gradient(
        &mut self,
        parameters: &[f32],
        images: &[Image],
        labels: &[u8],
        whole: usize,
        gradient: &mut [f32],
    ) -> f32 {
        self.forward(parameters, images);
        let (weights, biases) = gradient.split_at_mut(WEIGHTS);
        biases.fill(0.0);
        let scale = 1.0 / whole as f32;
        let mut loss = 0.0;
        for (row, &label) in self.rows.iter_mut().zip(labels) {
            loss += loss_and_slope(row, label, scale);
            for (bias, slope) in biases.iter_mut().zip(row) {
                *bias += *slope;
            }
        }
        dense::weight_slopes(self.arch, &self.rows, images, weights);
        loss
    }

    fn evaluate(&mut self, parameters: &[f32], images: &[Image], labels: &[u8]) -> Evaluation {
        self.forward(parameters, images);
        let mut sum = Evaluation { count: labels.len() as u64, ..Evaluation::default() };
        for (row, &label) in self.rows.iter_mut().zip(labels) {
            sum.correct += u64::from(class(row) == usize::from(label));
            sum.loss += f64::from(loss_and_slope(row, label, 1.0));
        }
        sum
    }
}

/// ReLU that passes NaN on: `max` would turn it into 0, and a run that diverged would look well.
fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// The class of the largest logit; the first of equals, as every other system has it.
fn class(logits: &[f32; CLASSES]) -> usize {
    let mut best = 0;
    for (index, &logit) in logits.iter().enumerate() {
        if relu(logit) > relu(logits[best]) {
            best = index;
        }
    }
    best
}

/// The loss of a sample; its logits give way to the slope of the loss in them, times `scale`.
fn loss_and_slope(row: &mut [f32; CLASSES], label: u8, scale: f32) -> f32 {
    let logits = *row;
    let active = row.map(relu);
    let largest = active.iter().fold(0.0, |largest: f32, &x| largest.max(x));
    let shares = active.map(|x| (x - largest).exp());
    let total: f32 = shares.iter().sum();
    for (class, slope) in row.iter_mut().enumerate() {
        let wanted = if class == usize::from(label) { 1.0 } else { 0.0 };
        // The slope of ReLU at 0 is 0.
        *slope = if logits[class] > 0.0 { (shares[class] / total - wanted) * scale } else { 0.0 };
    }
    total.ln() + largest - active[usize::from(label)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, Stream};

    /// A batch of random images with labels.
    fn batch(count: usize) -> (Vec<Image>, Vec<u8>) {
        let mut random = Stream::new(3, Purpose::Digit(0));
        let images = (0..count).map(|_| std::array::from_fn(|_| random.between(-0.5, 2.8) as f32)).collect();
        (images, (0..count).map(|index| (index * 7 % CLASSES) as u8).collect())
    }

    fn parameters() -> Vec<f32> {
        let mut parameters = Linear::new(0).initial_parameters(1);
        for (index, bias) in parameters[WEIGHTS..].iter_mut().enumerate() {
            *bias = 0.05 * index as f32 - 0.2;
        }
        parameters
    }

    /// The mean loss, in f64, straight from its definition.
    fn mean_loss(parameters: &[f64], images: &[Image], labels: &[u8]) -> f64 {
        let mut sum = 0.0;
        for (image, &label) in images.iter().zip(labels) {
            let logits: Vec<f64> = (0..CLASSES)
                .map(|class| {
                    let weights = &parameters[class * PIXELS..][..PIXELS];
                    let dot: f64 = weights.iter().zip(image).map(|(w, &x)| w * f64::from(x)).sum();
                    (dot + parameters[WEIGHTS + class]).max(0.0)
                })
                .collect();
            sum += logits.iter().map(|x| x.exp()).sum::<f64>().ln() - logits[usize::from(label)];
        }
        sum / labels.len() as f64
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let (images, labels) = batch(20);
        let parameters = parameters();
        let mut model = Linear::new(32);
        let mut gradient = vec![f32::NAN; model.parameter_count()];
        let loss = model.gradient(&parameters, &images, &labels, labels.len(), &mut gradient);
        let exact: Vec<f64> = parameters.iter().map(|&x| f64::from(x)).collect();
        assert!((f64::from(loss) / 20.0 - mean_loss(&exact, &images, &labels)).abs() < 1e-5);
        for index in (0..WEIGHTS).step_by(97).chain(WEIGHTS..WEIGHTS + CLASSES) {
            let shifted = |by: f64| {
                let mut shifted = exact.clone();
                shifted[index] += by;
                mean_loss(&shifted, &images, &labels)
            };
            let slope = (shifted(1e-6) - shifted(-1e-6)) / 2e-6;
            assert!((f64::from(gradient[index]) - slope).abs() < 1e-5, "{index}: {} {slope}", gradient[index]);
        }
    }

    #[test]
    fn gradients_of_parts_add_up_to_that_of_the_whole() {
        let (images, labels) = batch(32);
        let parameters = parameters();
        let mut model = Linear::new(32);
        let mut whole = vec![0.0; parameters.len()];
        let whole_loss = model.gradient(&parameters, &images, &labels, 32, &mut whole);
        let mut sum = vec![0.0; parameters.len()];
        let mut loss = 0.0;
        for part in [0..7, 7..7, 7..32] {
            let mut gradient = vec![f32::NAN; parameters.len()];
            let images = &images[part.clone()];
            loss += model.gradient(&parameters, images, &labels[part], 32, &mut gradient);
            sum.iter_mut().zip(&gradient).for_each(|(sum, x)| *sum += x);
        }
        assert!((loss - whole_loss).abs() < 1e-4);
        assert!(sum.iter().zip(&whole).all(|(a, b)| (a - b).abs() < 1e-6));
    }

    #[test]
    fn parameters_that_are_not_numbers_give_a_loss_that_is_none() {
        let (images, labels) = batch(4);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut model = Linear::new(4);
            let mut gradient = vec![0.0; model.parameter_count()];
            let parameters = vec![bad; model.parameter_count()];
            let loss = model.gradient(&parameters, &images, &labels, 4, &mut gradient);
            assert!(!loss.is_finite(), "{bad}: {loss}");
            assert!(!model.evaluate(&parameters, &images, &labels).loss.is_finite());
        }
    }

    #[test]
    fn large_logits_have_a_finite_loss() {
        let (images, labels) = batch(4);
        let mut parameters = vec![0.0; WEIGHTS + CLASSES];
        parameters[WEIGHTS] = 1e6;
        let mut gradient = parameters.clone();
        let loss = Linear::new(4).gradient(&parameters, &images, &labels, 4, &mut gradient);
        assert!(loss.is_finite() && gradient.iter().all(|x| x.is_finite()), "{loss}");
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
    }
}
