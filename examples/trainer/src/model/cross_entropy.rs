//! Softmax cross-entropy, and predicted classes.

use std::f32::consts::LOG2_E;

use pulp::Arch;

use crate::data::CLASSES;

/// Returns the sum of the samples' losses. Replaces the logits in `rows` with their gradient times
/// `scale`.
///
/// Large logits do not overflow. If a logit is NaN or positive infinity, the loss is not finite.
pub fn loss_and_gradient(rows: &mut [[f32; CLASSES]], labels: &[u8], scale: f32) -> f32 {
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
    use proptest::prelude::*;

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
