//! The models: their parameters, losses and gradients.

mod dense;
pub mod linear;
pub mod mlp;

use std::f32::consts::LOG2_E;

use pulp::Arch;

use crate::batch::Image;
use crate::data::{CLASSES, PIXELS};
use crate::parameters::Shapes;
use mpienv_sharding::network::{Chain, Network};
use mpienv_sharding::random::{Purpose, Stream};

/// The available models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Architecture {
    /// The tutorial's: 784-10, ReLU on the logits.
    Linear,
    /// 784-128-10, ReLU on the hidden layer.
    Mlp,
}

impl Architecture {
    /// Creates the model, with room for batches of `capacity` samples.
    pub fn model(self, capacity: usize) -> Box<dyn Model> {
        match self {
            Architecture::Linear => Box::new(linear::Linear::new(capacity)),
            Architecture::Mlp => Box::new(mlp::Mlp::new(capacity)),
        }
    }

    /// Builds the model's network for `rows` samples on all ranks together; at least 1.
    ///
    /// The parameters have the names and order of [`Model::parameter_shapes`], but weights are
    /// transposed: (inputs, outputs).
    pub fn network(self, rows: usize) -> Network {
        let mut chain = Chain::new(rows, PIXELS);
        for (number, layer) in ["", "2"].into_iter().zip(self.layers()) {
            chain = chain
                .matmul(&format!("matmul{number}"), layer.weight, layer.outputs)
                .bias_add(&format!("bias{number}"), layer.bias);
            chain = if layer.relu { chain.relu("relu") } else { chain };
        }
        chain.xent("loss")
    }

    /// The initial weights of the mlp's hidden layer are N(0, sqrt(2 / 784)) (He initialization),
    /// which preserves the variance through ReLU. The weights of its last layer are
    /// N(0, sqrt(1 / 128)), so that the logits have a deviation of about 1. With the linear model's
    /// N(0, 0.01), a run would be an epoch behind.
    fn layers(self) -> &'static [Layer] {
        match self {
            Architecture::Linear => &[Layer {
                weight: "weight",
                bias: "bias",
                inputs: PIXELS,
                outputs: CLASSES,
                variance: 0.01 * 0.01,
                relu: true,
            }],
            Architecture::Mlp => &[
                Layer {
                    weight: "hidden.weight",
                    bias: "hidden.bias",
                    inputs: PIXELS,
                    outputs: mlp::HIDDEN,
                    variance: 2.0 / PIXELS as f64,
                    relu: true,
                },
                Layer {
                    weight: "output.weight",
                    bias: "output.bias",
                    inputs: mlp::HIDDEN,
                    outputs: CLASSES,
                    variance: 1.0 / mlp::HIDDEN as f64,
                    relu: false,
                },
            ],
        }
    }
}

/// A layer of a model: weights of shape (`outputs`, `inputs`), row by row, then the biases.
struct Layer {
    /// The name of the weights in files.
    weight: &'static str,
    bias: &'static str,
    inputs: usize,
    outputs: usize,
    /// The variance of the initial weights. The initial biases are 0.
    variance: f64,
    /// Whether ReLU follows.
    relu: bool,
}

/// A classifier. All parameters are in one slice and the gradient in another, so that one
/// all-reduce sums it.
pub trait Model {
    fn architecture(&self) -> Architecture;

    /// The names and shapes of the parameters in files, in the order of the slice.
    fn parameter_shapes(&self) -> Shapes {
        let shapes = |layer: &Layer| {
            [(layer.weight, vec![layer.outputs, layer.inputs]), (layer.bias, vec![layer.outputs])]
        };
        self.architecture().layers().iter().flat_map(shapes).collect()
    }

    /// The parameters before the first step. They do not depend on the number of ranks.
    fn initial_parameters(&self, seed: u64) -> Vec<f32> {
        let mut parameters = Vec::new();
        for (number, layer) in (0..).step_by(2).zip(self.architecture().layers()) {
            let mut values = Stream::new(seed, Purpose::Parameter(number));
            let deviation = layer.variance.sqrt();
            let weights = (0..layer.inputs * layer.outputs).map(|_| deviation * values.normal());
            parameters.extend(weights.map(|weight| weight as f32));
            parameters.extend(vec![0.0; layer.outputs]);
        }
        parameters
    }

    /// Returns the sum of the samples' losses, and prepares [`Model::gradient_part`].
    ///
    /// There is one image per label. `whole` is the number of samples on all ranks together, so
    /// that the ranks' gradients add up to the gradient of the mean loss.
    fn loss(&mut self, parameters: &[f32], images: &[Image], labels: &[u8], whole: usize) -> f32;

    /// The length of the parts in which the gradient can be computed. The last part may be longer.
    fn part(&self) -> usize;

    /// Overwrites a part of the gradient of the samples' summed losses, divided by the `whole` of
    /// the [`Model::loss`] with the same images, which must come before. The part begins at
    /// parameter `first`, a multiple of [`Model::part`], and has that length or includes the last
    /// parameter. Without samples, the gradient is 0.
    fn gradient_part(&mut self, images: &[Image], first: usize, part: &mut [f32]);

    /// Computes the logits of each image.
    fn logits(&mut self, parameters: &[f32], images: &[Image]) -> &mut [[f32; CLASSES]];

    /// Returns the sum of the samples' losses and the number classified correctly.
    fn evaluate(&mut self, parameters: &[f32], images: &[Image], labels: &[u8]) -> Evaluation {
        let rows = self.logits(parameters, images);
        let is_right = |(row, label): &(&[f32; CLASSES], &u8)| class(row) == usize::from(**label);
        let correct = rows.iter().zip(labels).filter(is_right).count() as u64;
        let loss = loss_and_gradient(rows, labels, 1.0).into();
        Evaluation { loss, correct, count: labels.len() as u64 }
    }
}

/// The result of evaluating a model on samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// The sum of the samples' losses.
    pub loss: f64,
    /// The number of samples classified correctly.
    pub correct: u64,
    pub count: u64,
}

impl Evaluation {
    /// Adds the result of other samples.
    pub fn add(&mut self, other: Evaluation) {
        self.loss += other.loss;
        self.correct += other.correct;
        self.count += other.count;
    }

    /// Encodes the evaluation for exchange between ranks.
    pub fn to_numbers(self) -> [u64; 3] {
        [self.loss.to_bits(), self.correct, self.count]
    }

    /// The inverse of [`Evaluation::to_numbers`].
    pub fn from_numbers(numbers: [u64; 3]) -> Evaluation {
        let [loss, correct, count] = numbers;
        Evaluation { loss: f64::from_bits(loss), correct, count }
    }
}

/// Takes a step of stochastic gradient descent.
pub fn sgd_step(parameters: &mut [f32], gradient: &[f32], learning_rate: f32) {
    Arch::new().dispatch(|| {
        for (parameter, gradient) in parameters.iter_mut().zip(gradient) {
            *parameter -= learning_rate * gradient;
        }
    });
}

/// Returns the sum of the samples' losses. Replaces the logits in `rows` with their gradient times
/// `scale`.
///
/// Large logits do not overflow. If a logit is NaN or positive infinity, the loss is not finite.
fn loss_and_gradient(rows: &mut [[f32; CLASSES]], labels: &[u8], scale: f32) -> f32 {
    let mut loss = 0.0;
    for (row, &label) in rows.iter_mut().zip(labels) {
        let largest =
            row.iter().fold(f32::NEG_INFINITY, |largest, &x| if x > largest { x } else { largest });
        row.iter_mut().for_each(|x| *x -= largest);
        loss -= row[usize::from(label)];
    }
    // Exponentiate all rows at once: a row of ten numbers is not a whole number of vectors.
    Arch::new().dispatch(|| rows.as_flattened_mut().iter_mut().for_each(|x| *x = exp(*x)));
    for (row, &label) in rows.iter_mut().zip(labels) {
        let total: f32 = row.iter().sum();
        loss += total.ln();
        row.iter_mut().for_each(|x| *x *= scale / total);
        row[usize::from(label)] -= scale;
    }
    loss
}

/// e to the power of `x`, which must not be above 0. The error is at most two units in the last
/// place, or 2e-38.
///
/// Unlike a call to the system's function, the compiler can vectorize this.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding this rounds a small number to a whole one, which ends up in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 as a sum. The first term has few bits, so that its product with a small whole number is
    // exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = x * LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let rest = x - whole * LN_2[0] - whole * LN_2[1];
    let factors =
        [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5, 1.0, 1.0];
    let power_of_e = factors.into_iter().fold(0.0, |sum, factor| sum * rest + factor);
    let power_of_2 = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1f32.to_bits()));
    power_of_e * power_of_2
}

/// Returns the class of the largest logit. Of equal logits, the first one counts, as in other
/// frameworks.
fn class(logits: &[f32; CLASSES]) -> usize {
    let mut best = 0;
    for (index, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = index;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    //! Helpers for the models' tests: random images, and checks that apply to every model.

    use clap::ValueEnum;

    use super::{Architecture, Model, class, exp, loss_and_gradient};
    use crate::batch::Image;
    use crate::data::CLASSES;
    use mpienv_sharding::random::{Purpose, Stream};
    use proptest::prelude::*;

    /// Creates a batch of random images with labels.
    pub fn batch(count: usize) -> (Vec<Image>, Vec<u8>) {
        let mut random = Stream::new(3, Purpose::Digit(0));
        let images =
            (0..count).map(|_| std::array::from_fn(|_| random.between(-0.5, 2.8) as f32)).collect();
        (images, (0..count).map(|index| (index * 7 % CLASSES) as u8).collect())
    }

    /// Overwrites `slopes` with the gradient, as for a batch of `whole` samples on all ranks
    /// together. Returns the loss.
    fn gradient(
        model: &mut dyn Model,
        parameters: &[f32],
        (images, labels): (&[Image], &[u8]),
        whole: usize,
        slopes: &mut [f32],
    ) -> f32 {
        let loss = model.loss(parameters, images, labels, whole);
        model.gradient_part(images, 0, slopes);
        loss
    }

    /// Compares the gradient with finite differences of `loss`, which computes a sample's loss in f64.
    pub fn assert_gradient(
        model: &mut dyn Model,
        parameters: &[f32],
        indices: impl Iterator<Item = usize>,
        loss: impl Fn(&[f64], &[f64], usize) -> f64,
    ) {
        let (images, labels) = batch(20);
        let mut slopes = vec![f32::NAN; parameters.len()];
        let found = gradient(model, parameters, (&images, &labels), labels.len(), &mut slopes);
        let mut exact: Vec<f64> = parameters.iter().map(|&x| f64::from(x)).collect();
        let images: Vec<Vec<f64>> =
            images.iter().map(|image| image.iter().map(|&x| f64::from(x)).collect()).collect();
        let mean = |parameters: &[f64]| {
            let losses = images
                .iter()
                .zip(&labels)
                .map(|(image, &label)| loss(parameters, image, label.into()));
            losses.sum::<f64>() / labels.len() as f64
        };
        assert!((f64::from(found) / 20.0 - mean(&exact)).abs() < 1e-5);
        for index in indices {
            let before = exact[index];
            let mut shifted = |by: f64| {
                exact[index] = before + by;
                mean(&exact)
            };
            let slope = (shifted(1e-6) - shifted(-1e-6)) / 2e-6;
            exact[index] = before;
            assert!(
                (f64::from(slopes[index]) - slope).abs() < 1e-5,
                "{index}: {} {slope}",
                slopes[index]
            );
        }
    }

    /// Checks that the gradients of a batch's parts, one of them empty, add up to the gradient of the
    /// batch.
    pub fn assert_parts_add_up(model: &mut dyn Model, parameters: &[f32]) {
        let (images, labels) = batch(32);
        let mut whole = vec![f32::NAN; parameters.len()];
        let whole_loss = gradient(model, parameters, (&images, &labels), 32, &mut whole);
        let mut sum = vec![0.0; parameters.len()];
        let mut loss = 0.0;
        for part in [0..7, 7..7, 7..32] {
            let mut own = vec![f32::NAN; parameters.len()];
            let samples = (&images[part.clone()], &labels[part]);
            loss += gradient(model, parameters, samples, 32, &mut own);
            sum.iter_mut().zip(&own).for_each(|(sum, x)| *sum += x);
        }
        assert!((loss - whole_loss).abs() < 1e-4);
        assert!(sum.iter().zip(&whole).all(|(a, b)| (a - b).abs() < 1e-6));
    }

    /// Checks that the loss is not finite if the parameters are not, in training and in evaluation.
    pub fn assert_not_finite(model: &mut dyn Model, count: usize) {
        let (images, labels) = batch(4);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let parameters = vec![bad; count];
            let loss = gradient(model, &parameters, (&images, &labels), 4, &mut vec![0.0; count]);
            assert!(!loss.is_finite(), "{bad}: {loss}");
            assert!(!model.evaluate(&parameters, &images, &labels).loss.is_finite());
        }
    }

    #[test]
    fn the_networks_parameters_are_the_models_with_weights_transposed() {
        for architecture in Architecture::value_variants() {
            let expected = architecture.model(1).parameter_shapes();
            let network = architecture.network(8);
            assert_eq!(network.parameters.len(), expected.len());
            for (parameter, (name, mut shape)) in network.parameters.iter().zip(expected) {
                shape.reverse();
                assert_eq!((parameter.name.as_str(), &parameter.shape), (name, &shape));
            }
        }
    }

    #[test]
    fn equal_logits_have_the_loss_of_a_guess_and_slopes_that_add_up_to_0() {
        let mut rows = [[3.0; CLASSES]];
        assert_eq!(class(&rows[0]), 0);
        let loss = loss_and_gradient(&mut rows, &[2], 0.5);
        assert!((loss - 10f32.ln()).abs() < 1e-6);
        let [row] = rows;
        assert!((row[2] + 0.45).abs() < 1e-6 && (row[0] - 0.05).abs() < 1e-6);
        assert!(row.iter().sum::<f32>().abs() < 1e-6);
    }

    #[test]
    fn large_logits_have_a_finite_loss() {
        for (large, loss) in [(1e6, 1e6), (-1e6, 10f32.ln())] {
            let mut row = [large; CLASSES];
            row[1] = if large > 0.0 { 0.0 } else { large };
            let found = loss_and_gradient(std::array::from_mut(&mut row), &[1], 1.0);
            assert!((found - loss).abs() <= loss * 1e-5, "{found}");
            assert!(row.iter().all(|x| x.is_finite()));
        }
    }

    #[test]
    fn a_logit_that_is_not_finite_gives_a_loss_that_is_not_finite() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut rows = [[0.0; CLASSES]; 2];
            rows[1][4] = bad;
            assert!(!loss_and_gradient(&mut rows, &[1, 1], 1.0).is_finite(), "{bad}");
        }
        assert!(!loss_and_gradient(&mut [[f32::NEG_INFINITY; CLASSES]], &[1], 1.0).is_finite());
    }

    proptest! {
        #[test]
        fn the_exponential_is_that_of_f64(x in prop_oneof![-87f32..=0.0, -1e-3f32..=0.0]) {
            let exact = f64::from(x).exp();
            prop_assert!((f64::from(exp(x)) - exact).abs() <= exact * 2.4e-7, "{} {exact}", exp(x));
        }

        #[test]
        fn losses_and_gradients_are_those_of_the_definition(
            samples in prop::collection::vec((prop::array::uniform10(-30f32..30.0), 0..CLASSES as u8), 0..9),
        ) {
            let (logits, labels): (Vec<_>, Vec<_>) = samples.into_iter().unzip();
            let mut rows = logits.clone();
            let found = loss_and_gradient(&mut rows, &labels, 0.5);
            let mut loss = 0.0;
            for ((logits, row), &label) in logits.iter().zip(&rows).zip(&labels) {
                let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
                loss += total.ln() - f64::from(logits[usize::from(label)]);
                for (class, (&logit, &gradient)) in logits.iter().zip(row).enumerate() {
                    let wanted = if class == usize::from(label) { 1.0 } else { 0.0 };
                    let exact = 0.5 * (f64::from(logit).exp() / total - wanted);
                    prop_assert!((f64::from(gradient) - exact).abs() < 1e-6, "{gradient} {exact}");
                }
            }
            prop_assert!((f64::from(found) - loss).abs() < 1e-4, "{found} {loss}");
        }
    }

    #[test]
    fn the_exponential_stops_at_the_smallest_numbers_and_keeps_nan() {
        assert_eq!(exp(0.0), 1.0);
        assert!((0.0..2e-38).contains(&exp(f32::NEG_INFINITY)));
        assert!(exp(f32::NAN).is_nan());
    }
}
