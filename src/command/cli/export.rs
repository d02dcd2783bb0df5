//! `mpienv export`: assignments for `eval`, and nothing else on stdout.

use std::ffi::OsString;

use crate::{Dialect, Environment, Target};
use clap::ValueEnum;

use super::shell::Shell;
use super::overrides::{self, Overrides};
use super::{Failure, Quiet, lines_of, meant, stream, words};

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
    let is_quiet = quiet.is_asked(&Environment::current());
    // All or nothing: half of the variables would be worse than none.
    let text = text(overrides, set, per_node, dialect, verbose, quiet);
    stream::print(text.as_deref().unwrap_or(dialect.stop()).as_bytes())?;
    if let Some(line) =
        line(dialect).filter(|_| text.is_ok() && !is_quiet && stream::is_read_by_a_person())
    {
        stream::report(
            format!("mpienv: these lines were only printed; to set the variables, type {line}\n")
                .as_bytes(),
        );
    }
    text.map(drop)
}

/// Returns the line that sets the variables in a shell of this dialect, with the options of this
/// command.
fn line(dialect: Dialect) -> Option<String> {
    let typed: Vec<_> = std::env::args_os().skip(1).collect();
    let typed = words::line(&typed);
    Some(match dialect {
        Dialect::Posix => format!("eval \"$(mpienv {typed})\""),
        Dialect::Fish => format!("mpienv {typed} | source"),
        Dialect::Csh => format!("eval \"`mpienv {typed}`\""),
        Dialect::PowerShell => format!("mpienv {typed} | Out-String | Invoke-Expression"),
        Dialect::Cmd => format!("for /f \"delims=\" %i in ('mpienv {typed}') do @%i"),
        // Files and JSON are for other readers.
        _ => return None,
    })
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
    let info = overrides::read(overrides, &environment, quiet)?;
    if verbose {
        stream::report(lines_of(info.findings()).as_bytes());
    } else {
        quiet.warn(&info, &environment);
    }
    let exports = if per_node { info.per_node_exports() } else { info.exports_for(set) };
    Ok(exports?.to_text(dialect)?)
}

/// If the command line of an `export` is invalid, prints text that stops the shell that evaluates
/// it.
pub(super) fn stop_the_shell() {
    let words: Vec<OsString> =
        std::env::args_os().skip(1).take_while(|word| word != "--").collect();
    // Options may precede the subcommand, which is what is wrong then.
    let is_export = meant::verb_at(&words).is_some_and(|at| words[at] == NAME);
    if !is_export || stream::is_read_by_a_person() {
        return;
    }
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let after = words.iter().skip_while(|word| *word != "--shell").nth(1).map(AsRef::as_ref);
    let name =
        words.iter().find_map(|word| word.strip_prefix("--shell=")).or(after).unwrap_or("sh");
    // mpienv knows no such text for a shell that it does not support.
    if let Ok(shell) = Shell::from_str(name, false) {
        // If stdout cannot be written, nothing can stop the shell.
        let _ = stream::print(Dialect::from(shell).stop().as_bytes());
    }
}
