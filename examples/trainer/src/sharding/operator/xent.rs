//! The mean cross-entropy of softmax, a loss: loops over samples and classes.

use super::Rule;
use crate::sharding::number::Number;
use crate::sharding::tensor::Tensor;

/// The second input is the number of each sample's class. A sample's classes stay together.
pub const RULE: Rule = Rule { loops: 2, inputs: &[&[0, 1], &[0]], output: &[], whole: Some(1) };

/// The samples' losses, added and divided by `count`: how many samples all ranks together have.
#[must_use]
pub fn forward<N: Number>(logits: &Tensor<N>, labels: &Tensor<N>, count: usize) -> Tensor<N> {
    let mut sum = N::default();
    for (row, &label) in logits.rows().zip(&labels.data) {
        let largest = largest(row);
        let mut total = N::default();
        for &logit in row {
            total += (logit - largest).exp();
        }
        let right = row.get(class(label)).copied().unwrap_or_default();
        sum += total.ln() + largest - right;
    }
    Tensor::scalar(sum / N::of(count as f64))
}

/// The gradient of the logits.
#[must_use]
pub fn gradient<N: Number>(logits: &Tensor<N>, labels: &Tensor<N>, count: usize) -> Tensor<N> {
    let scale = N::of(1.0 / count as f64);
    let mut slopes = Tensor::zeros(logits.shape.clone());
    for ((slopes, row), &label) in slopes.data.chunks_exact_mut(logits.columns()).zip(logits.rows()).zip(&labels.data) {
        let largest = largest(row);
        let mut total = N::default();
        for (slope, &logit) in slopes.iter_mut().zip(row) {
            *slope = (logit - largest).exp();
            total += *slope;
        }
        for slope in slopes.iter_mut() {
            *slope = *slope / total * scale;
        }
        if let Some(right) = slopes.get_mut(class(label)) {
            *right -= scale;
        }
    }
    slopes
}

/// So that no power overflows.
fn largest<N: Number>(row: &[N]) -> N {
    row.iter().fold(row[0], |largest, &logit| if logit > largest { logit } else { largest })
}

fn class<N: Number>(label: N) -> usize {
    label.to_f64() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_of_equal_logits_is_the_logarithm_of_the_classes() {
        let logits = Tensor::<f64>::new(vec![1, 4], vec![1000.0; 4]);
        let labels = Tensor::new(vec![1], vec![2.0]);
        assert!((forward(&logits, &labels, 1).data[0] - 4f64.ln()).abs() < 1e-12);
        assert_eq!(gradient(&logits, &labels, 1).data, [0.25, 0.25, -0.75, 0.25]);
    }

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let logits = vec![0.3, -0.2, 0.9, 1.0, 0.1, -2.0];
        let labels = Tensor::new(vec![2], vec![2.0, 0.0]);
        let loss = |logits: &[f64]| forward(&Tensor::new(vec![2, 3], logits.to_vec()), &labels, 4).data[0];
        let slopes = gradient(&Tensor::new(vec![2, 3], logits.clone()), &labels, 4);
        for (index, slope) in slopes.data.iter().enumerate() {
            let (mut more, mut less) = (logits.clone(), logits.clone());
            more[index] += 1e-6;
            less[index] -= 1e-6;
            assert!(((loss(&more) - loss(&less)) / 2e-6 - slope).abs() < 1e-9, "{index}");
        }
    }
}
