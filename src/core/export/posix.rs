//! sh, dash, bash, ksh, zsh.

use crate::export::dialect::{Lines, Reason};

pub(crate) struct Posix;

impl Lines for Posix {
    // Lines end in `;`, so that an unquoted `eval $(mpienv export)` works too.
    fn set(&self, name: &str, value: &str) -> Result<String, Reason> {
        Ok(format!("export {name}={};\n", quoted(value)))
    }

    fn unset(&self, name: &str) -> Result<String, Reason> {
        Ok(format!("unset {name};\n"))
    }
}

/// Returns the value as one word, quoted if a shell would interpret it.
pub fn quoted(value: &str) -> String {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':' | ',' | '@');
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}
