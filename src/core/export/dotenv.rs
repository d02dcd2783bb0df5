//! A `.env` file, limited to what Docker Compose, python-dotenv, Node's dotenv and Node itself
//! agree on.

use crate::export::dialect::{Lines, Reason};

pub(crate) struct Dotenv;

impl Lines for Dotenv {
    fn set(&self, name: &str, value: &str) -> Result<String, Reason> {
        // Double quotes are used only for values in which no reader interprets anything.
        let quote = if value.contains('\'') { '"' } else { '\'' };
        if value.contains('\r') {
            return Err("some readers take a carriage return for a newline");
        }
        if quote == '"' && value.contains(['"', '$', '\\']) {
            return Err("readers disagree on ' next to one of \", $ and \\");
        }
        if value.contains(r"\\") || value.ends_with('\\') {
            return Err(r"readers disagree on \\ and on \ at the end");
        }
        if value.contains("${") {
            return Err("python-dotenv replaces ${...} even in single quotes");
        }
        Ok(format!("{name}={quote}{value}{quote}\n"))
    }

    fn unset(&self, _name: &str) -> Result<String, Reason> {
        Err("such a file can only set variables")
    }
}
