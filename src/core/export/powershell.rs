//! Windows PowerShell and PowerShell 7.

use crate::export::dialect::{Lines, Reason};

pub(crate) struct PowerShell;

impl Lines for PowerShell {
    // Lines end in `;`, so that lines joined with blanks work too.
    fn set(&self, name: &str, value: &str) -> Result<String, Reason> {
        if value.is_empty() {
            return Err(
                "before version 7.5 PowerShell removes a variable that is set to an empty text",
            );
        }
        Ok(format!("$env:{name} = {};\n", expression(value)))
    }

    fn unset(&self, name: &str) -> Result<String, Reason> {
        Ok(format!("Remove-Item Env:{name} -ErrorAction SilentlyContinue;\n"))
    }
}

/// Returns a sum that begins with a quoted string, so that everything after it is text too.
fn expression(value: &str) -> String {
    let mut text = String::from("'");
    let mut inside = true;
    for unit in value.encode_utf16() {
        // The pipe changes line ends, U+2018 to U+201B close a quoted string as ' does, and
        // non-ASCII characters depend on the code page. All of these are written as numbers outside
        // the quotes.
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
