//! The models: their parameters, losses and gradients.

mod cross_entropy;
mod dense;
pub mod linear;
pub mod mlp;
mod network;
#[cfg(test)]
mod sample;

use pulp::Arch;

use crate::batch::Image;
use crate::data::CLASSES;
use crate::parameters::Shapes;
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
}

/// A classifier. All parameters are in one slice and the gradient in another, so that one
/// all-reduce sums it.
pub trait Model {
    /// The name of the architecture, which must be the same on all ranks.
    fn name(&self) -> &'static str;

    /// The names and shapes of the parameters in files, in the order of the slice.
    fn parameter_shapes(&self) -> Shapes;

    /// The parameters before the first step. They do not depend on the number of ranks.
    fn initial_parameters(&self, seed: u64) -> Vec<f32>;

    /// Overwrites `gradient` with the gradient of the samples' summed losses, divided by `whole`.
    /// Returns the undivided sum of the losses.
    ///
    /// There is one image per label. `whole` is the number of samples on all ranks together, so
    /// that the ranks' gradients add up to the gradient of the mean loss. Without samples, the
    /// gradient is 0.
    fn gradient(
        &mut self,
        parameters: &[f32],
        images: &[Image],
        labels: &[u8],
        whole: usize,
        gradient: &mut [f32],
    ) -> f32 {
        let loss = self.loss(parameters, images, labels, whole);
        self.gradient_part(images, 0, gradient);
        loss
    }

    /// Like [`Model::gradient`], but leaves the gradient itself to [`Model::gradient_part`].
    fn loss(&mut self, parameters: &[f32], images: &[Image], labels: &[u8], whole: usize) -> f32;

    /// The length of the parts in which the gradient can be computed. The last part may be longer.
    fn part(&self) -> usize;

    /// Overwrites a part of the gradient, after [`Model::loss`] with the same images. It begins at
    /// parameter `first`, a multiple of [`Model::part`], and has that length or includes the last
    /// parameter.
    fn gradient_part(&mut self, images: &[Image], first: usize, part: &mut [f32]);

    /// Computes the logits of each image.
    fn logits(&mut self, parameters: &[f32], images: &[Image]) -> &mut [[f32; CLASSES]];

    /// Returns the sum of the samples' losses and the number classified correctly.
    fn evaluate(&mut self, parameters: &[f32], images: &[Image], labels: &[u8]) -> Evaluation {
        let rows = self.logits(parameters, images);
        let correct = rows
            .iter()
            .zip(labels)
            .filter(|(row, label)| cross_entropy::class(row) == usize::from(**label));
        let correct = correct.count() as u64;
        let loss = cross_entropy::loss_and_gradient(rows, labels, 1.0).into();
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
    pub fn to_bytes(self) -> [u8; 24] {
        let numbers = [self.loss.to_bits(), self.correct, self.count];
        let mut bytes = [0; 24];
        for (bytes, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
            *bytes = number.to_le_bytes();
        }
        bytes
    }

    /// The inverse of [`Evaluation::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Evaluation {
        let number = |index: usize| {
            bytes.as_chunks().0.get(index).map_or(0, |&bytes| u64::from_le_bytes(bytes))
        };
        Evaluation { loss: f64::from_bits(number(0)), correct: number(1), count: number(2) }
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

/// Draws `count` values from N(0, `deviation`) for parameter number `parameter`.
fn normal_values(
    seed: u64,
    parameter: u32,
    deviation: f64,
    count: usize,
) -> impl Iterator<Item = f32> {
    let mut values = Stream::new(seed, Purpose::Parameter(parameter));
    (0..count).map(move |_| (deviation * values.normal()) as f32)
}
