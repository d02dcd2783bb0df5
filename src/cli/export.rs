//! `mpienv export`: assignments for `eval`, and nothing else on stdout.

use std::io::{self, Write};

use mpienv::{Dialect, Environment, VariableSet};

use super::{Failure, Quiet, Wishes, print_findings};

pub(crate) fn run(
    wishes: Wishes,
    set: VariableSet,
    per_node: bool,
    dialect: Dialect,
    verbose: bool,
    quiet: Quiet,
) -> Result<(), Failure> {
    let environment = Environment::of_this_process();
    let info = wishes.read_from(&environment)?;
    if verbose {
        print_findings(anstream::stderr().lock(), info.findings())?;
    } else {
        quiet.warn(&info, &environment);
    }
    // All or nothing: half of the variables would be worse than none.
    let exports = if per_node { info.per_node_exports() } else { info.exports_for(set, &environment) };
    let text = exports?.to_text(dialect)?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}
