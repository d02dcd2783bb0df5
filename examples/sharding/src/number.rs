//! Numbers as bytes, and as their users wrote them.

/// Converts to little-endian bytes.
pub fn to_bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The inverse of [`to_bytes`]. An incomplete number at the end is ignored.
pub fn from_bytes(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// Returns the f64 with the same shortest decimal form, so that it prints as the user wrote it.
pub fn as_written(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}
