//! cmd.exe: in `for /f`, and as a batch file.

use crate::export::dialect::{Lines, Reason};

pub(crate) struct Cmd;

impl Lines for Cmd {
    fn set(&self, name: &str, value: &str) -> Result<String, Reason> {
        let refused = |c: char| match c {
            '"' => Some("a double quote ends the text for cmd"),
            '%' => Some("% is doubled in a batch file and single elsewhere"),
            '!' => Some("! is lost under delayed expansion"),
            _ if c.is_ascii_control() => {
                Some("cmd reads lines, and control characters end or change them")
            }
            _ if !c.is_ascii() => Some("cmd reads only ASCII alike in every code page"),
            _ => None,
        };
        match value.chars().find_map(refused) {
            Some(reason) => Err(reason),
            None if value.is_empty() => Err("cmd removes a variable that is set to an empty text"),
            None => Ok(format!("set \"{name}={value}\"\n")),
        }
    }

    fn unset(&self, name: &str) -> Result<String, Reason> {
        Ok(format!("set \"{name}=\"\n"))
    }
}
