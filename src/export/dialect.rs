//! The languages in which variables can be written down.

use crate::export::{Exports, posix};

/// A way to write variables down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// `export NAME=value;` for sh, bash, zsh, dash and ksh.
    Posix,
    /// One JSON object; a variable to unset is null.
    #[cfg(feature = "cli")]
    Json,
}

impl Dialect {
    pub(crate) fn document(self, exports: &Exports) -> Result<String, Unrepresentable> {
        match self {
            Dialect::Posix => lines(&posix::Posix, exports),
            #[cfg(feature = "cli")]
            Dialect::Json => Ok(crate::export::json::document(exports)),
        }
    }
}

/// A dialect that has a line for each variable.
pub(crate) trait Lines {
    /// The line that sets a variable, without its end.
    fn set(&self, name: &str, value: &str) -> Result<String, Unrepresentable>;
    /// The line that unsets a variable, without its end.
    fn unset(&self, name: &str) -> String;
}

fn lines(dialect: &impl Lines, exports: &Exports) -> Result<String, Unrepresentable> {
    let mut text = String::new();
    for (name, value) in exports.iter() {
        text += &match value {
            Some(value) => dialect.set(name, value)?,
            None => dialect.unset(name),
        };
        text.push('\n');
    }
    Ok(text)
}

/// A value that a dialect has no way to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value:?} cannot be written as {dialect}: {reason}; correct {name} or take another --shell")]
pub struct Unrepresentable {
    /// The variable.
    pub name: String,
    /// Its value.
    pub value: String,
    /// The dialect's name.
    pub dialect: &'static str,
    /// What the dialect cannot write.
    pub reason: &'static str,
}
