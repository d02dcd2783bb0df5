//! `mpienv export`: assignments for `eval`, and nothing else on stdout.

use crate::{Dialect, Environment, Target};
use clap::ValueEnum;

use super::shell::Shell;
use super::{Failure, Overrides, Quiet, lines_of, stream};

/// The subcommand's name.
const NAME: &str = "export";

pub(crate) fn run(
    overrides: Overrides,
    set: Target,
    per_node: bool,
    dialect: Dialect,
    verbose: bool,
    quiet: Quiet,
) -> Result<(), Failure> {
    // All or nothing: half of the variables would be worse than none.
    let text = text(overrides, set, per_node, dialect, verbose, quiet);
    stream::print(text.as_deref().unwrap_or(dialect.stop()).as_bytes())?;
    text.map(drop)
}

fn text(
    overrides: Overrides,
    set: Target,
    per_node: bool,
    dialect: Dialect,
    verbose: bool,
    quiet: Quiet,
) -> Result<String, Failure> {
    let environment = Environment::current();
    let info = overrides.read_from(&environment, quiet)?;
    if verbose {
        stream::report(lines_of(info.findings()).as_bytes());
    } else {
        quiet.warn(&info, &environment);
    }
    let exports = if per_node { info.per_node_exports() } else { info.exports_for(set) };
    Ok(exports?.to_text(dialect)?)
}

/// If the command line of an `export` is invalid, prints text that stops the shell that evaluates it.
pub(super) fn stop_the_shell() {
    let mut words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    if words.next().as_deref() != Some(NAME) || stream::is_read_by_a_person() {
        return;
    }
    let words: Vec<String> = words.collect();
    let after = words.iter().skip_while(|word| *word != "--shell").nth(1).map(String::as_str);
    let name = words.iter().find_map(|word| word.strip_prefix("--shell=")).or(after).unwrap_or("sh");
    // mpienv knows no such text for a shell that it does not support.
    if let Ok(shell) = Shell::from_str(name, false) {
        // If stdout cannot be written, nothing can stop the shell.
        let _ = stream::print(Dialect::from(shell).stop().as_bytes());
    }
}
