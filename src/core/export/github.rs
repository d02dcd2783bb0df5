//! The file `$GITHUB_ENV`, read by GitHub's runner after a step.

use crate::export::dialect::{Lines, Reason};

pub(crate) struct GitHub;

impl Lines for GitHub {
    fn set(&self, name: &str, value: &str) -> Result<String, Reason> {
        if value.ends_with('\r') {
            return Err(
                "a runner on Windows takes a carriage return at the end for a part of the line's end",
            );
        }
        let delimiter = delimiter(value);
        Ok(format!("{name}<<{delimiter}\n{value}\n{delimiter}\n"))
    }

    // The runner cannot unset variables. Readers treat an empty string as unset.
    fn unset(&self, name: &str) -> Result<String, Reason> {
        self.set(name, "")
    }
}

/// Returns the shortest of EOF, EOF_, EOF__, ... that does not occur in the value.
fn delimiter(value: &str) -> String {
    let mut delimiter = String::from("EOF");
    while value.contains(&delimiter) {
        delimiter.push('_');
    }
    delimiter
}
