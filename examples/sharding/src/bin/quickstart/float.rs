//! Formats numbers as Python does.

/// Formats a float like Python's `repr`: the fewest digits that parse to the same number.
pub fn repr(number: f64) -> String {
    let text = format!("{number:?}");
    match text.split_once('e') {
        // Rust and Python switch to exponents at the same numbers. Python adds a sign and writes at
        // least two digits.
        Some((digits, exponent)) => {
            let (sign, exponent) =
                exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text.to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_are_those_that_python_prints() {
        for (number, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (123_456.789, "123456.789"),
            (1e-4, "0.0001"),
            (0.000_099, "9.9e-05"),
            (1e-5, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (1e15, "1000000000000000.0"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1e16, "1e+16"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (1e100, "1e+100"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::from(8.066_464e-16_f32), "8.066464163292153e-16"),
            (f64::from(0.2_f32), "0.20000000298023224"),
            (f64::from(1e-4_f32), "9.999999747378752e-05"),
            (f64::from(f32::from_bits(1)), "1.401298464324817e-45"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(repr(number), text);
        }
    }
}
