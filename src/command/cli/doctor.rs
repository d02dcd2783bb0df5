//! `mpienv doctor`: shows each value, and what is wrong or suspicious on this host.

mod comparison;

use std::time::Duration;

use crate::command::check::measurement::or_dash;
use crate::command::check::{CheckError, bring, brought, named, rendezvous};
use crate::command::doctor::devices;
use crate::command::doctor::{self, Machine, interface};
use crate::command::open_files::OpenFiles;
use crate::command::protection::{self, NO_ANSWER};
use crate::rendezvous::{Gathered, Meeting};
use crate::{ClusterInfo, Finding, Severity, host_name};
use clap::Args;
use mpienv_ask::seam::names_of;
use serde_json::json;

use self::comparison::{Cores, Summary, differences, shared_cores, shared_devices};
use super::place::JointPlaceOptions;
use super::show::{Binding, Details};
use super::threads::{Runs, ThreadsOption};
use super::{Failure, check, examples, lines_of, show, stream, time_or_none, version};

/// This command, as other ranks name it.
const NAME: &str = "doctor";
/// How long a name may take to resolve.
const PATIENCE: Duration = Duration::from_secs(5);

/// Show each value, and find problems on this host
///
/// If all ranks run it, rank 0 prints one report: its own values, and what differs on the other
/// ranks. If not all ranks meet, the others print only why, and their errors and warnings, and the
/// exit code is 3. With --timeout 0 each rank prints its own report. With --json each rank
/// prints its own object, and waits for the others only if it asks the launcher (see --no-ask),
/// which it does not with --timeout 0.
#[derive(Args, Debug)]
#[command(after_help = examples::DOCTOR)]
pub(super) struct Options {
    #[command(flatten)]
    place: JointPlaceOptions,
    /// How long to wait for the other ranks, in seconds or as 90s or 10m; 0 inspects this rank only
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = time_or_none)]
    timeout: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: Options) -> Result<(), Failure> {
    let Options { place, timeout, json } = options;
    // A rank that is inspected alone must not wait for the others.
    let (info, no_answer) = place.inspect(!timeout.is_zero())?;
    let machine = Machine::here(&info, PATIENCE);
    let threads = ThreadsOption::default().share(&info, Runs::default())?;
    let (info, no_interface) = match mpienv_ask::on_interface(&info) {
        Ok(info) => (info, None),
        Err(error) => (info, Some(interface::not_found(&error))),
    };
    let mut findings = doctor::examine(&info, &machine);
    let patience = if timeout.is_zero() { PATIENCE } else { timeout.min(PATIENCE) };
    let munged = protection::ask_munged(&info, patience);
    findings.extend(protection::no_answer(&info, munged.as_ref()));
    findings.extend(no_answer);
    findings.extend(threads.finding());
    findings.extend(no_interface);
    if timeout.is_zero() {
        findings = findings.into_iter().map(|found| show::as_asked(found, &info)).collect();
    }
    let details = Details::new(&info, None, threads, machine.cpus.clone(), &machine.topology);
    if json {
        stream::print_json(&json!({
            "version": version::TEXT,
            "host": host_name(),
            "info": info,
            // The interfaces that NCCL_SOCKET_IFNAME allows; null if NCCL chooses them itself.
            "nccl_interfaces": doctor::nccl_interfaces(&info, &machine),
            "threads": details.threads.object(&info),
            // What `exec` and `launch` set to the interface; null if nothing.
            "interface": show::interface_object(&info),
            // Null if the system does not tell.
            "binding": details.binding.as_ref().map(Binding::object),
            // The host's devices; null if it has none.
            "devices": details.devices,
            "findings": findings,
        }))?;
        return verdict(findings.iter().any(|finding| finding.severity > Severity::Note));
    }
    let nccl = vec![nccl_row(&info, &machine)];
    let rows = [show::rows(&info), nccl, details.rows(munged.as_ref())].concat();
    let device = devices::only(&info, &machine.topology.devices);
    let own = Summary::new(&rows, &findings, Cores::new(&machine), device);
    let no_problems = if findings.is_empty() { "no problems found on this host\n" } else { "" };
    let table = show::table(&rows);
    let (version, on) = (version::TEXT, on_host());
    let report = format!("mpienv {version}{on}\n{table}\n{no_problems}{}", lines_of(&findings));
    let is_alone = info.world_size() == 1 || timeout.is_zero();
    if is_alone || info.rank().is_first() {
        // Before it waits for the others.
        stream::print_styled(&report)?;
    }
    if is_alone { verdict(own.is_suspicious()) } else { compare(&info, &own, &findings, timeout) }
}

/// Compares the ranks, and prints on rank 0 what differs, and on the others why they were not
/// compared.
fn compare(
    info: &ClusterInfo,
    own: &Summary,
    findings: &[Finding],
    timeout: Duration,
) -> Result<(), Failure> {
    match meet(info, own, timeout) {
        // Rank 0's report includes this rank.
        Ok(None) => Ok(()),
        Ok(Some(reports)) => {
            let mut shared = shared_cores(reports.iter().map(|report| &report.cores));
            shared.extend(shared_devices(&reports));
            stream::print_styled(&(comparison(&reports) + &lines_of(&shared)))?;
            verdict(!shared.is_empty() || reports.iter().any(Summary::is_suspicious))
        }
        Err(error) => {
            let why = why_not_compared(info, findings, error);
            let why = format!("not compared with the other ranks: {why}\n");
            if info.rank().is_first() {
                stream::print_styled(&why)?;
                verdict(own.is_suspicious())?;
                return Err(Failure::NotCompared);
            }
            let text = format!("rank {}{}: {why}{}", info.rank(), on_host(), own.problems());
            stream::print_styled(&text)?;
            Err(Failure::Reported)
        }
    }
}

fn on_host() -> String {
    host_name().map_or(String::new(), |host| format!(" on {host}"))
}

fn why_not_compared(info: &ClusterInfo, findings: &[Finding], error: CheckError) -> String {
    let is_without_munge = |own: &Finding| own.code == NO_ANSWER && own.severity == Severity::Error;
    match info.master_addr() {
        // A finding names the reason.
        Err(_) => "nothing names the master".to_owned(),
        Ok(_) if findings.iter().any(is_without_munge) => {
            format!("MUNGE does not work on this host: see {NO_ANSWER}")
        }
        Ok(_) => check::failure(info, error).to_string(),
    }
}

fn verdict(is_suspicious: bool) -> Result<(), Failure> {
    if is_suspicious { Err(Failure::Findings("doctor")) } else { Ok(()) }
}

/// Brings all ranks' reports to rank 0; the other ranks get none.
fn meet(
    info: &ClusterInfo,
    own: &Summary,
    timeout: Duration,
) -> Result<Option<Vec<Summary>>, CheckError> {
    let _files = OpenFiles::for_meeting(info);
    let reports = |meeting: &Meeting| -> Vec<_> {
        (0..).zip(meeting.members()).map(|(rank, member)| brought(rank, member, NAME)).collect()
    };
    // A rank that runs another command must not believe that all is well.
    let answer = |meeting: &Meeting| {
        let mut errors = reports(meeting).into_iter().filter_map(Result::<Summary, _>::err);
        errors.next().map(|error| error.to_string()).unwrap_or_default().into_bytes()
    };
    let blob = bring(NAME, own)?;
    let met = rendezvous(info, timeout, None)?.gather_with_reply(blob, answer)?;
    let summary = |report: Result<Summary, CheckError>| {
        report.unwrap_or_else(|error| Summary::unreadable(&error))
    };
    Ok(match met {
        Gathered::All(meeting) => Some(reports(&meeting).into_iter().map(summary).collect()),
        Gathered::Reply(_) => None,
    })
}

/// Describes how the other ranks differ from rank 0.
fn comparison(reports: &[Summary]) -> String {
    let mut text = "\n".to_owned();
    for (lines, ranks) in differences(reports) {
        text += &match lines[..] {
            [] => format!("{}: no difference\n", named(&ranks)),
            _ => format!("{}:\n  {}\n", named(&ranks), lines.join("\n  ")),
        };
    }
    text
}

fn nccl_row(info: &ClusterInfo, machine: &Machine) -> [String; 3] {
    let selected = doctor::nccl_interfaces(info, machine);
    let of = match selected {
        Some(_) => format!("of this host's {}", names_of(&machine.interfaces).join(", ")),
        None => "NCCL chooses by itself".to_owned(),
    };
    let selected = Some(selected.unwrap_or_default().join(",")).filter(|list| !list.is_empty());
    ["NCCL selects".to_owned(), or_dash(selected), of]
}
