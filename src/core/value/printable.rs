//! Text from elsewhere that is safe to print.

/// Converts bytes from another process to text that cannot control a terminal.
///
/// Invalid UTF-8, control characters (including escape sequences and line ends) and characters that
/// reorder or break a line become U+FFFD. Use it for host names, reasons and other text from a
/// connection, whose sender may not be trustworthy.
///
/// ```
/// assert_eq!(mpienv::printable(b"node0"), "node0");
/// assert_eq!(mpienv::printable(b"\x1b[2Jnode0\n"), "\u{fffd}[2Jnode0\u{fffd}");
/// ```
#[must_use]
pub fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace(commands, "\u{fffd}")
}

/// Returns whether a character controls a terminal, or reorders or breaks a line.
pub fn commands(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns `1 rank` or `4 ranks`, for nouns whose plural ends in s.
#[must_use]
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_printed_commands_a_terminal() {
        for command in "\x1b \u{9b} \r \n \x08 \x7f \u{202e} \u{2028}".split(' ') {
            assert_eq!(printable(command.as_bytes()), "\u{fffd}", "{command:?}");
        }
        assert_eq!(printable(b"\xff\xfe"), "\u{fffd}\u{fffd}");
        assert_eq!(printable("Knoten-Zürich 7".as_bytes()), "Knoten-Zürich 7");
    }
}
