//! The losses: the mean squared error, and the mean softmax cross-entropy.
//!
//! Softmax cross-entropy takes each sample's class number as its label. A row whose label is below 0
//! is empty: it has neither loss nor gradient, and does not count. Empty rows pad a batch that has
//! fewer samples than rows.

use crate::tensor::Tensor;

/// Returns the sum of the squared differences, divided by `count`, the number of values on all
/// ranks.
pub fn mse(value: &Tensor, labels: &Tensor, count: usize) -> f32 {
    let mut sum = 0.0;
    for (&number, &label) in value.data.iter().zip(&labels.data) {
        sum += (number - label) * (number - label);
    }
    sum / (count as f64) as f32
}

/// Computes the gradient of the value.
pub fn mse_gradient(value: &Tensor, labels: &Tensor, count: usize, gradients: &mut Tensor) {
    let scale = (2.0 / count as f64) as f32;
    gradients.shape_as(&value.shape);
    for ((gradient, &number), &label) in
        gradients.data.iter_mut().zip(&value.data).zip(&labels.data)
    {
        *gradient = scale * (number - label);
    }
}

/// Returns the sum of the samples' losses, divided by `count`, the number of samples on all ranks.
pub fn xent(logits: &Tensor, labels: &Tensor, count: usize) -> f32 {
    let mut sum = 0.0;
    for (row, &label) in logits.rows().zip(&labels.data) {
        let Some(class) = class(label) else { continue };
        let largest = largest(row);
        let mut total = 0.0;
        for &logit in row {
            total += libm::expf(logit - largest);
        }
        sum += libm::logf(total) + largest - row[class];
    }
    sum / (count as f64) as f32
}

/// Counts the rows that are not empty.
pub fn samples(labels: &Tensor) -> usize {
    labels.data.iter().filter(|&&label| class(label).is_some()).count()
}

/// Computes the gradient of the logits.
pub fn xent_gradient(logits: &Tensor, labels: &Tensor, count: usize, gradients: &mut Tensor) {
    let scale = (1.0 / count as f64) as f32;
    gradients.shape_as(&logits.shape);
    for ((gradients, row), &label) in gradients.rows_mut().zip(logits.rows()).zip(&labels.data) {
        let Some(class) = class(label) else {
            gradients.fill(0.0);
            continue;
        };
        let largest = largest(row);
        let mut total = 0.0;
        for (gradient, &logit) in gradients.iter_mut().zip(row) {
            *gradient = libm::expf(logit - largest);
            total += *gradient;
        }
        for gradient in gradients.iter_mut() {
            *gradient = *gradient / total * scale;
        }
        gradients[class] -= scale;
    }
}

/// Returns the largest logit, which is subtracted so that no exponential overflows.
fn largest(row: &[f32]) -> f32 {
    row.iter().fold(row[0], |largest, &logit| if logit > largest { logit } else { largest })
}

/// Returns the class of a label, or `None` if the row is empty.
fn class(label: f32) -> Option<usize> {
    (label >= 0.0).then_some(label as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_divided_by_the_count_of_all() {
        let value = Tensor::new(vec![1, 2], vec![1.0, 4.0]);
        let labels = Tensor::new(vec![1, 2], vec![2.0, 2.0]);
        assert_eq!(mse(&value, &labels, 4), 1.25);
        let mut gradients = Tensor::zeros(vec![0]);
        mse_gradient(&value, &labels, 4, &mut gradients);
        assert_eq!(gradients, Tensor::new(vec![1, 2], vec![-0.5, 1.0]));
    }

    fn gradients(logits: &Tensor, labels: &Tensor, count: usize) -> Vec<f32> {
        let mut gradients = Tensor::zeros(vec![0]);
        xent_gradient(logits, labels, count, &mut gradients);
        gradients.data
    }

    #[test]
    fn the_loss_of_equal_logits_is_the_logarithm_of_the_classes() {
        let logits = Tensor::new(vec![1, 4], vec![1000.0; 4]);
        let labels = Tensor::new(vec![1], vec![2.0]);
        assert!((xent(&logits, &labels, 1) - 4f32.ln()).abs() < 1e-3);
        assert_eq!(gradients(&logits, &labels, 1), [0.25, 0.25, -0.75, 0.25]);
    }

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let logits = vec![0.3, -0.2, 0.9, 1.0, 0.1, -2.0];
        let labels = Tensor::new(vec![2], vec![2.0, 0.0]);
        let loss = |logits: &[f32]| xent(&Tensor::new(vec![2, 3], logits.to_vec()), &labels, 4);
        for (index, gradient) in
            gradients(&Tensor::new(vec![2, 3], logits.clone()), &labels, 4).iter().enumerate()
        {
            let (mut more, mut less) = (logits.clone(), logits.clone());
            more[index] += 1e-2;
            less[index] -= 1e-2;
            assert!(((loss(&more) - loss(&less)) / 2e-2 - gradient).abs() < 1e-4, "{index}");
        }
    }

    #[test]
    fn a_row_that_is_not_a_sample_has_neither_loss_nor_gradient() {
        let logits = Tensor::new(vec![2, 2], vec![0.5, -1.0, f32::NAN, 3.0]);
        let filled = Tensor::new(vec![2], vec![1.0, -1.0]);
        let (alone, label) =
            (Tensor::new(vec![1, 2], vec![0.5, -1.0]), Tensor::new(vec![1], vec![1.0]));
        assert_eq!(xent(&logits, &filled, 1), xent(&alone, &label, 1));
        assert_eq!(
            gradients(&logits, &filled, 1),
            [gradients(&alone, &label, 1), vec![0.0, 0.0]].concat()
        );
    }
}
