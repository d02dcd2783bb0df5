//! Helpers for the models' tests: random images, and checks that apply to every model.

use clap::ValueEnum;

use super::{Architecture, Model};
use crate::batch::Image;
use crate::data::CLASSES;
use mpienv_sharding::random::{Purpose, Stream};

/// Creates a batch of random images with labels.
pub fn batch(count: usize) -> (Vec<Image>, Vec<u8>) {
    let mut random = Stream::new(3, Purpose::Digit(0));
    let images =
        (0..count).map(|_| std::array::from_fn(|_| random.between(-0.5, 2.8) as f32)).collect();
    (images, (0..count).map(|index| (index * 7 % CLASSES) as u8).collect())
}

/// Compares the gradient with finite differences of `loss`, which computes a sample's loss in f64.
pub fn assert_gradient(
    model: &mut dyn Model,
    parameters: &[f32],
    indices: impl Iterator<Item = usize>,
    loss: impl Fn(&[f64], &[f64], usize) -> f64,
) {
    let (images, labels) = batch(20);
    let mut gradient = vec![f32::NAN; parameters.len()];
    let found = model.gradient(parameters, &images, &labels, labels.len(), &mut gradient);
    let mut exact: Vec<f64> = parameters.iter().map(|&x| f64::from(x)).collect();
    let images: Vec<Vec<f64>> =
        images.iter().map(|image| image.iter().map(|&x| f64::from(x)).collect()).collect();
    let mean = |parameters: &[f64]| {
        let losses =
            images.iter().zip(&labels).map(|(image, &label)| loss(parameters, image, label.into()));
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
            (f64::from(gradient[index]) - slope).abs() < 1e-5,
            "{index}: {} {slope}",
            gradient[index]
        );
    }
}

/// Checks that the gradients of a batch's parts, one of them empty, add up to the gradient of the
/// batch.
pub fn assert_parts_add_up(model: &mut dyn Model, parameters: &[f32]) {
    let (images, labels) = batch(32);
    let mut whole = vec![f32::NAN; parameters.len()];
    let whole_loss = model.gradient(parameters, &images, &labels, 32, &mut whole);
    let mut sum = vec![0.0; parameters.len()];
    let mut loss = 0.0;
    for part in [0..7, 7..7, 7..32] {
        let mut gradient = vec![f32::NAN; parameters.len()];
        loss += model.gradient(parameters, &images[part.clone()], &labels[part], 32, &mut gradient);
        sum.iter_mut().zip(&gradient).for_each(|(sum, x)| *sum += x);
    }
    assert!((loss - whole_loss).abs() < 1e-4);
    assert!(sum.iter().zip(&whole).all(|(a, b)| (a - b).abs() < 1e-6));
}

/// Checks that the loss is not finite if the parameters are not, in training and in evaluation.
pub fn assert_not_finite(model: &mut dyn Model, count: usize) {
    let (images, labels) = batch(4);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let parameters = vec![bad; count];
        let loss = model.gradient(&parameters, &images, &labels, 4, &mut vec![0.0; count]);
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
