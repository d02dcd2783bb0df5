//! `mpienv doctor`: what is known, and what is wrong or suspicious here.

use std::io::{self, Write};
use std::time::Duration;

use mpienv::doctor::{self, Machine};
use mpienv::{Environment, Severity};
use serde::Serialize;

use super::{Failure, Wishes, print_findings, show};

/// How long a name may take to resolve.
const PATIENCE: Duration = Duration::from_secs(5);

/// The object of `--json`: that of `show --json`, with all findings.
#[derive(Serialize)]
struct Examined<'a> {
    info: &'a mpienv::ClusterInfo,
    findings: &'a [mpienv::Finding],
}

pub(crate) fn run(wishes: Wishes, json: bool) -> Result<(), Failure> {
    let info = wishes.read()?;
    let environment = Environment::of_this_process();
    let machine = Machine::here(&info, &environment, PATIENCE);
    let findings = doctor::examine(&info, &environment, &machine);
    if json {
        let text = serde_json::to_string_pretty(&Examined { info: &info, findings: &findings });
        writeln!(io::stdout().lock(), "{}", text.map_err(io::Error::from)?)?;
    } else {
        let mut stdout = anstream::stdout().lock();
        show::print_table(&mut stdout, &info)?;
        writeln!(stdout)?;
        if findings.is_empty() {
            writeln!(stdout, "nothing is wrong here")?;
        }
        print_findings(&mut stdout, &findings)?;
        stdout.flush()?;
    }
    match findings.iter().any(|finding| finding.severity > Severity::Note) {
        true => Err(Failure::Findings),
        false => Ok(()),
    }
}
