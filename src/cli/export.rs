//! `mpienv export`: assignments for `eval`, and nothing else on stdout.

use std::io::{self, Write};

use mpienv::Dialect;

use super::{Failure, Wishes, print_findings};

pub(crate) fn run(wishes: Wishes, dialect: Dialect, verbose: bool) -> Result<(), Failure> {
    let info = wishes.read()?;
    if verbose {
        print_findings(anstream::stderr().lock(), info.findings())?;
    }
    // All or nothing: half of the variables would be worse than none.
    let text = info.exports()?.to_text(dialect)?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}
