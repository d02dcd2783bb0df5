//! How far the measurements are, for a person at a terminal.

use std::io::{self, IsTerminal, Write};

/// How many characters the bar has.
const WIDTH: usize = 32;

/// Shows that so many of all rounds are done. After the last one, removes the bar.
pub(super) fn show(done: usize, all: usize) {
    let mut stderr = io::stderr().lock();
    if stderr.is_terminal() {
        // If stderr is closed, there is no one to show it to.
        let _ = stderr.write_all(bar(done, all).as_bytes()).and_then(|()| stderr.flush());
    }
}

fn bar(done: usize, all: usize) -> String {
    if done >= all {
        return "\r\x1b[K".to_owned();
    }
    let filled = done * WIDTH / all;
    format!("\r\x1b[Kmesh [{:<WIDTH$}] round {} of {all}", "#".repeat(filled), done + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_and_goes_away() {
        assert!(bar(0, 4).ends_with(&format!("mesh [{}] round 1 of 4", " ".repeat(WIDTH))));
        assert!(bar(2, 4).contains("[################                ] round 3 of 4"));
        assert_eq!((bar(4, 4).as_str(), bar(0, 0).as_str()), ("\r\x1b[K", "\r\x1b[K"));
    }
}
