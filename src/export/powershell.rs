//! Windows PowerShell and PowerShell 7.

use crate::export::dialect::{Lines, Reason};

pub(crate) struct PowerShell;

impl Lines for PowerShell {
    // Lines end in `;`, so that lines joined with blanks are read as well.
    fn set(&self, name: &str, value: &str) -> Result<String, Reason> {
        if value.is_empty() {
            return Err("before version 7.5 PowerShell removes a variable that is set to an empty text");
        }
        Ok(format!("$env:{name} = {};\n", expression(value)))
    }

    fn unset(&self, name: &str) -> Result<String, Reason> {
        Ok(format!("Remove-Item Env:{name} -ErrorAction SilentlyContinue;\n"))
    }
}

/// A sum that begins with a text in quotes: what follows it is text too.
fn expression(value: &str) -> String {
    let mut text = String::from("'");
    let mut inside = true;
    for unit in value.encode_utf16() {
        // Line ends do not survive the pipe, U+2018 to U+201B end a quoted text as ' does, and what
        // is not ASCII depends on the code page: they stand outside, as numbers.
        let plain = u8::try_from(unit).ok().map(char::from).filter(|c| matches!(c, ' '..='~'));
        if inside != plain.is_some() {
            text += if inside { "'" } else { " + '" };
            inside = !inside;
        }
        match plain {
            Some('\'') => text += "''",
            Some(c) => text.push(c),
            None => text += &format!(" + [char]0x{unit:04x}"),
        }
    }
    if inside {
        text.push('\'');
    }
    text
}
