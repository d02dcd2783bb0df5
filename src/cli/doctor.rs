//! `mpienv doctor`: what is known, and what is wrong or suspicious here.

use std::io::{self, Write};
use std::time::Duration;

use mpienv::doctor::{self, Machine};
use mpienv::{ClusterInfo, Environment, Severity};
use serde::Serialize;

use super::{Failure, Wishes, print_findings, show};

/// How long a name may take to resolve.
const PATIENCE: Duration = Duration::from_secs(5);

/// The object of `--json`: that of `show --json`, what this host adds, and all findings.
#[derive(Serialize)]
struct Examined<'a> {
    info: &'a ClusterInfo,
    /// What NCCL_SOCKET_IFNAME leaves; null where NCCL chooses by itself.
    nccl_interfaces: Option<Vec<&'a str>>,
    findings: &'a [mpienv::Finding],
}

pub(crate) fn run(wishes: Wishes, json: bool) -> Result<(), Failure> {
    let environment = Environment::of_this_process();
    let info = wishes.read_from(&environment)?;
    let machine = Machine::here(&info, &environment, PATIENCE);
    let findings = doctor::examine(&info, &environment, &machine);
    if json {
        let nccl_interfaces = doctor::nccl_interfaces(&info, &machine);
        let text = serde_json::to_string_pretty(&Examined { info: &info, nccl_interfaces, findings: &findings });
        writeln!(io::stdout().lock(), "{}", text.map_err(io::Error::from)?)?;
    } else {
        let mut stdout = anstream::stdout().lock();
        show::print_table(&mut stdout, &info, &[nccl_row(&info, &machine)])?;
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

fn nccl_row(info: &ClusterInfo, machine: &Machine) -> [String; 3] {
    let (selected, of) = match doctor::nccl_interfaces(info, machine) {
        Some(selected) => (selected.join(","), format!("of this host's {}", machine.names().join(", "))),
        None => (String::new(), "NCCL chooses by itself".to_owned()),
    };
    ["NCCL selects".to_owned(), if selected.is_empty() { "-".to_owned() } else { selected }, of]
}
