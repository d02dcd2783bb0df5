//! What the operators compute besides products: adding a row to each row, ReLU, and the losses.
//!
//! Softmax cross-entropy takes each sample's class number as its label. A row whose label is below 0
//! is empty: it has neither loss nor gradient, and does not count. Empty rows pad a batch that has
//! fewer samples than rows.

use crate::tensor::Tensor;

/// Adds `bias` to each row.
pub fn add_bias(value: &Tensor, bias: &Tensor, sum: &mut Tensor) {
    sum.shape_as(&value.shape);
    for (sums, row) in sum.rows_mut().zip(value.rows()) {
        for ((sum, &number), &bias) in sums.iter_mut().zip(row).zip(&bias.data) {
            *sum = number + bias;
        }
    }
}

/// Computes the gradient of the bias: the column sums of the result's gradient.
pub fn bias_gradient(gradient: &Tensor, sums: &mut Tensor) {
    sums.shape_as(&[gradient.columns()]);
    sums.data.fill(0.0);
    for row in gradient.rows() {
        for (sum, &number) in sums.data.iter_mut().zip(row) {
            *sum += number;
        }
    }
}

/// Replaces every number below 0 with 0. NaN is kept: `max` would turn it into 0 and hide that a
/// run diverged.
#[inline]
pub fn rectify(numbers: &mut [f32]) {
    for number in numbers {
        *number = if *number < 0.0 { 0.0 } else { *number };
    }
}

/// Sets the gradient to 0 for each output that is not above 0. ReLU's gradient at 0 is taken to be
/// 0.
#[inline]
pub fn mask(gradients: &mut [f32], outputs: &[f32]) {
    for (gradient, &output) in gradients.iter_mut().zip(outputs) {
        *gradient = if output > 0.0 { *gradient } else { 0.0 };
    }
}

pub fn relu(value: &Tensor, output: &mut Tensor) {
    output.copy(value);
    rectify(&mut output.data);
}

/// Computes the gradient of ReLU's input, from the result's gradient and the result.
pub fn relu_gradient(gradient: &Tensor, output: &Tensor, gradients: &mut Tensor) {
    gradients.copy(gradient);
    mask(&mut gradients.data, &output.data);
}

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
    fn the_row_is_added_and_its_gradient_is_the_columns_sums() {
        let value = Tensor::new(vec![2, 2], vec![1., 2., 3., 4.]);
        let bias = Tensor::new(vec![2], vec![10., 20.]);
        let mut found = Tensor::zeros(vec![0]);
        add_bias(&value, &bias, &mut found);
        assert_eq!(found, Tensor::new(vec![2, 2], vec![11., 22., 13., 24.]));
        bias_gradient(&value, &mut found);
        assert_eq!(found, Tensor::new(vec![2], vec![4., 6.]));
    }

    #[test]
    fn what_is_below_0_has_neither_value_nor_gradient() {
        let (mut output, mut gradients) = (Tensor::zeros(vec![0]), Tensor::zeros(vec![0]));
        relu(&Tensor::new(vec![1, 4], vec![-1., 0., 2., f32::NAN]), &mut output);
        assert_eq!(output.data[..3], [0., 0., 2.]);
        assert!(output.data[3].is_nan());
        relu_gradient(&Tensor::new(vec![1, 4], vec![5., 6., 7., 8.]), &output, &mut gradients);
        assert_eq!(gradients.data, [0., 0., 7., 0.]);
    }

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
