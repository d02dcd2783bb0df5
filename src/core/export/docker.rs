//! The file of `docker run --env-file`: no quotes, no escapes.

use crate::export::dialect::{Lines, Reason};

pub(crate) struct Docker;

impl Lines for Docker {
    // Blanks are part of the value, and a `#` starts a comment only at the start of a line.
    fn set(&self, name: &str, value: &str) -> Result<String, Reason> {
        let within =
            |quote: char| value.len() > 1 && value.starts_with(quote) && value.ends_with(quote);
        if value.contains('\n') {
            return Err("a value ends with its line, and this format has no escapes");
        }
        if value.ends_with('\r') {
            return Err("a carriage return at the end is taken for a part of the line's end");
        }
        if within('\'') || within('"') {
            return Err("some readers strip quotes around a value and some do not");
        }
        Ok(format!("{name}={value}\n"))
    }

    // A container inherits nothing. A name alone would pass on the host's value.
    fn unset(&self, _name: &str) -> Result<String, Reason> {
        Ok(String::new())
    }
}
