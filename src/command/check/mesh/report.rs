//! What `check --mesh` reports, as JSON and as text, and how far it is.

use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::judge::{self, Between, Fault, Medians};
use super::{Mesh, findings};
use crate::command::check::measurement::{Measurement, figure_or_dash, or_dash, table};
use mpienv_core::seam::counted;

/// Up to so many hosts, the table has a column for each host.
const MOST_COLUMNS: usize = 16;
/// How many pairs of a larger job are listed.
const SLOWEST: usize = 10;
/// How many characters the bar has.
const WIDTH: usize = 32;

/// Gbit/s of bytes in a second.
pub(super) fn gbit(rate: f64) -> f64 {
    rate * 8.0 / 1e9
}

/// The medians of one host's connections.
#[derive(Serialize)]
struct HostReport {
    host: String,
    /// The rank that measured.
    rank: u32,
    address: IpAddr,
    /// The median of the slower direction of each connection.
    gbit_per_s: Option<f64>,
    round_trip_ms: Option<f64>,
    /// By how much the host's clock is ahead of the median of all hosts.
    clock_s: Option<f64>,
}

/// What was measured between two hosts.
#[derive(Serialize)]
struct PairReport {
    /// The numbers of both hosts in the list of hosts.
    hosts: [usize; 2],
    /// From the first host to the second one.
    gbit_per_s: Option<f64>,
    /// From the second host to the first one.
    gbit_per_s_back: Option<f64>,
    /// In each direction, while both are used.
    gbit_per_s_both: Option<f64>,
    round_trip_ms: Option<f64>,
    /// Why a direction or the whole pair was not measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<String>,
}

/// Returns what was measured between the hosts of this mesh, and what stands out.
pub(super) fn measurement(
    mesh: &Mesh,
    pairs: &[Between],
    rounds: usize,
    elapsed: Duration,
) -> Measurement {
    let count = mesh.hosts.len();
    // The simulated hosts share the cores of one, so that speeds say nothing.
    let faults = if mesh.is_simulated { Vec::new() } else { judge::judge(count, pairs) };
    let names: Vec<&str> = mesh.hosts.iter().map(|contact| &*contact.host).collect();
    let findings = findings::of(&faults, &names, pairs);
    let bad_hosts = faults.iter().filter_map(|fault| match *fault {
        Fault::BlockedHost(host) | Fault::SlowHost(host) => Some(names[host].to_owned()),
        _ => None,
    });
    let medians = Medians::new(count, pairs);
    let clocks = judge::clocks_of(count, pairs);
    let hosts = mesh.hosts.iter().zip(&medians.of_hosts).zip(&clocks);
    let hosts = hosts.map(|((contact, usual), clock)| HostReport {
        host: contact.host.clone(),
        rank: contact.rank,
        address: contact.at[0].ip(),
        gbit_per_s: usual.map(|usual| gbit(usual.rate)),
        round_trip_ms: usual.map(|usual| usual.round_trip * 1e3),
        clock_s: clock.map(|(ahead, _)| ahead),
    });
    let hosts: Vec<_> = hosts.collect();
    let pairs: Vec<_> = pairs.iter().map(PairReport::of).collect();
    let seconds = elapsed.as_secs_f64();
    let mut text = text(&hosts, &pairs, rounds, seconds);
    if findings.is_empty() && count == 2 {
        text += "with two hosts there is only one pair, so nothing can be compared\n";
    }
    let report = json!({ "hosts": hosts, "pairs": pairs, "rounds": rounds, "seconds": seconds });
    Measurement { report, text, bad_hosts: bad_hosts.collect(), findings }
}

impl PairReport {
    fn of(between: &Between) -> PairReport {
        let (first, second) = between.hosts;
        let measured = between.measured;
        let broken = between.broken.as_deref().filter(|_| measured.is_none());
        let errors = between.unreached().chain(broken).map(str::to_owned).collect();
        PairReport {
            hosts: [first, second],
            gbit_per_s: measured.map(|own| gbit(own.there)),
            gbit_per_s_back: measured.map(|own| gbit(own.back)),
            gbit_per_s_both: measured.map(|own| gbit(own.both)),
            round_trip_ms: measured.map(|own| own.round_trip * 1e3),
            errors,
        }
    }

    /// The rate of the slower direction.
    fn slower(&self) -> Option<f64> {
        Some(self.gbit_per_s?.min(self.gbit_per_s_back?))
    }
}

fn text(hosts: &[HostReport], pairs: &[PairReport], rounds: usize, seconds: f64) -> String {
    let count = hosts.len();
    if count < 2 {
        return "\nmesh: all ranks are on one host, so there is nothing to measure\n".to_owned();
    }
    let is_complete = count <= MOST_COLUMNS;
    let what = match is_complete {
        true => "Gbit/s from the row's host to the column's",
        false => "medians of each connection's slower direction",
    };
    let (of_pairs, rounds) = (counted(pairs.len(), "pair"), counted(rounds, "round"));
    let mut text =
        format!("\nmesh: {count} hosts, {of_pairs} in {rounds}, {seconds:.1} s; {what}\n");
    text += &table(&rows(hosts, pairs, is_complete), true);
    if !is_complete {
        text += "\nthe slowest pairs\n";
        text += &table(&slowest(hosts, pairs), true);
    }
    text
}

/// A row for each host: its rates to the other hosts, and its medians.
fn rows(hosts: &[HostReport], pairs: &[PairReport], is_complete: bool) -> Vec<Vec<String>> {
    let columns = if is_complete { hosts.len() } else { 0 };
    let mut head = vec!["host".to_owned()];
    head.extend(hosts.iter().take(columns).map(|host| host.host.clone()));
    // Two hosts have one pair, which is its own median.
    let has_medians = hosts.len() > 2;
    head.extend(has_medians.then(|| "median Gbit/s".to_owned()));
    head.extend(["round trip ms", "clock s"].map(str::to_owned));
    let mut rows = vec![head];
    for (at, host) in hosts.iter().enumerate() {
        let mut row = vec![host.host.clone()];
        row.extend((0..columns).map(|column| figure_or_dash(rate(pairs, at, column))));
        let clock = or_dash(host.clock_s.map(|ahead| format!("{:+.3}", ahead + 0.0)));
        row.extend(has_medians.then(|| figure_or_dash(host.gbit_per_s)));
        row.extend([figure_or_dash(host.round_trip_ms), clock]);
        rows.push(row);
    }
    rows
}

fn rate(pairs: &[PairReport], from: usize, to: usize) -> Option<f64> {
    pairs.iter().find_map(|pair| match pair.hosts {
        [first, second] if (first, second) == (from, to) => pair.gbit_per_s,
        [first, second] if (second, first) == (from, to) => pair.gbit_per_s_back,
        _ => None,
    })
}

fn slowest(hosts: &[HostReport], pairs: &[PairReport]) -> Vec<Vec<String>> {
    let mut pairs: Vec<_> = pairs.iter().collect();
    pairs.sort_by(|one, other| {
        let rate = |own: Option<f64>| own.unwrap_or(0.0);
        rate(one.slower()).total_cmp(&rate(other.slower()))
    });
    let head = ["hosts", "", "Gbit/s", "back", "both at once", "round trip ms"].map(str::to_owned);
    let row = |pair: &&PairReport| {
        let [first, second] = pair.hosts.map(|host| hosts[host].host.clone());
        let values =
            [pair.gbit_per_s, pair.gbit_per_s_back, pair.gbit_per_s_both, pair.round_trip_ms];
        [first, second].into_iter().chain(values.map(figure_or_dash)).collect()
    };
    [head.to_vec()].into_iter().chain(pairs.iter().take(SLOWEST).map(row)).collect()
}

/// Shows that so many of all rounds are done. After the last one, removes the bar.
pub(super) fn show_progress(done: usize, all: usize) {
    let mut stderr = io::stderr().lock();
    if stderr.is_terminal() {
        // If stderr is closed, nobody reads it.
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
