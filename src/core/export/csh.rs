//! csh and tcsh.

use crate::export::dialect::{Lines, Reason};

pub(crate) struct Csh;

impl Lines for Csh {
    // Lines end in `;`, because eval joins them with blanks.
    fn set(&self, name: &str, value: &str) -> Result<String, Reason> {
        if value.contains('\n') {
            return Err("backticks, through which csh reads it, split a value at a newline");
        }
        // csh expands history within quotes too.
        let value = value.replace('\'', r"'\''").replace('!', r"\!");
        Ok(format!("setenv {name} '{value}';\n"))
    }

    fn unset(&self, name: &str) -> Result<String, Reason> {
        Ok(format!("unsetenv {name};\n"))
    }
}
