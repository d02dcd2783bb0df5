//! fish.

use crate::export::dialect::{Lines, Reason};

pub(crate) struct Fish;

impl Lines for Fish {
    // Lines end in `;` for `eval (mpienv export --shell fish)`, which joins them with blanks.
    fn set(&self, name: &str, value: &str) -> Result<String, Reason> {
        Ok(format!("set -gx {name} {};\n", quoted(value)))
    }

    fn unset(&self, name: &str) -> Result<String, Reason> {
        Ok(format!("set -e {name};\n"))
    }
}

fn quoted(value: &str) -> String {
    let value = value.replace('\\', r"\\").replace('\'', r"\'");
    // An escaped newline is outside the quotes, where `eval (...)` does not turn it into a blank.
    format!("'{}'", value.replace('\n', r"'\n'"))
}
