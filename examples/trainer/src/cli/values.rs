//! Parsers for the values of options.

use std::ffi::OsString;
use std::path::PathBuf;

/// Parses a `NonZero` number.
pub(crate) fn at_least_one<T: std::str::FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "expected a whole number, 1 or more")
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
