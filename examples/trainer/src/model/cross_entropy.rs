//! Softmax cross-entropy of one sample, and its predicted class.

use crate::data::CLASSES;

/// The loss of a sample. Replaces its logits with their gradient times `scale`.
///
/// Large logits do not overflow. A logit that is NaN or infinite gives a loss that is not finite.
pub fn loss_and_gradient(row: &mut [f32; CLASSES], label: u8, scale: f32) -> f32 {
    let label = usize::from(label);
    let of_label = row[label];
    let largest = row.iter().fold(f32::NEG_INFINITY, |largest, &x| largest.max(x));
    let shares = row.map(|x| (x - largest).exp());
    let total: f32 = shares.iter().sum();
    for (class, (gradient, share)) in row.iter_mut().zip(shares).enumerate() {
        let wanted = if class == label { 1.0 } else { 0.0 };
        *gradient = (share / total - wanted) * scale;
    }
    total.ln() + (largest - of_label)
}

/// The class of the largest logit; the first of equal ones, as in other systems.
pub fn class(logits: &[f32; CLASSES]) -> usize {
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
    use super::*;

    #[test]
    fn equal_logits_have_the_loss_of_a_guess_and_slopes_that_add_up_to_0() {
        let mut row = [3.0; CLASSES];
        assert_eq!(class(&row), 0);
        let loss = loss_and_gradient(&mut row, 2, 0.5);
        assert!((loss - 10f32.ln()).abs() < 1e-6);
        assert!((row[2] + 0.45).abs() < 1e-6 && (row[0] - 0.05).abs() < 1e-6);
        assert!(row.iter().sum::<f32>().abs() < 1e-6);
    }

    #[test]
    fn large_logits_have_a_finite_loss() {
        for (large, loss) in [(1e6, 1e6), (-1e6, 10f32.ln())] {
            let mut row = [large; CLASSES];
            row[1] = if large > 0.0 { 0.0 } else { large };
            let found = loss_and_gradient(&mut row, 1, 1.0);
            assert!((found - loss).abs() <= loss * 1e-5, "{found}");
            assert!(row.iter().all(|x| x.is_finite()));
        }
    }

    #[test]
    fn a_logit_that_is_no_number_gives_a_loss_that_is_none() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut row = [0.0; CLASSES];
            row[4] = bad;
            assert!(!loss_and_gradient(&mut row, 1, 1.0).is_finite(), "{bad}");
        }
        assert!(!loss_and_gradient(&mut [f32::NEG_INFINITY; CLASSES], 1, 1.0).is_finite());
    }
}
