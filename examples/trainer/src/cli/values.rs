//! Parsers for the values of options.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Parses a `NonZero` number.
pub(crate) fn at_least_one<T: std::str::FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "expected a whole number, 1 or more")
}

pub(crate) fn whole_u32(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("expected a whole number from 0 to {}", u32::MAX))
}

pub(crate) fn whole_u64(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

/// Parses the path of a plot. Its extension must not suggest another format.
pub(crate) fn svg(name: OsString) -> Result<PathBuf, &'static str> {
    let path = PathBuf::from(name);
    match path.extension() {
        Some(format) if format.eq_ignore_ascii_case("svg") => Ok(path),
        _ => Err("the picture is an SVG: give a name that ends in .svg"),
    }
}

/// Parses the URL of a mirror. Plain http is allowed because downloads are verified by SHA-256.
pub(crate) fn address(text: &str) -> Result<String, &'static str> {
    let known = ["https://", "http://"]
        .iter()
        .any(|scheme| text.len() > scheme.len() && text.starts_with(scheme));
    if known {
        Ok(text.to_owned())
    } else {
        Err("expected an address that begins with https:// or http://")
    }
}

pub(crate) fn positive(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number: &f32| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "expected a number greater than 0".to_owned())
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0);
    // A year is effectively forever, and does not overflow when added to a point in time.
    let number = number.map(|number| number.min(365.0 * 86400.0));
    number
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected a number of seconds greater than 0".to_owned())
}
