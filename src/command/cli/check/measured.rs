//! What the hosts and the ranks measured, as text.

use crate::command::check::{ComputeReport, JobMap, MeshReport, PairReport, RankSpeed, figure};

use super::super::lines_of;
use mpienv_core::seam::counted;

/// Up to so many hosts, the table has a column for each host.
const MOST_COLUMNS: usize = 16;
/// How many pairs of a larger job are listed.
const SLOWEST: usize = 10;

/// Returns the text, which ends with the findings.
pub(super) fn lines(map: &JobMap) -> String {
    let mut text = map.mesh.as_ref().map(of_mesh).unwrap_or_default();
    text += &map.compute.as_ref().map(of_compute).unwrap_or_default();
    let findings = lines_of(map.measured_findings());
    let gap = if findings.is_empty() { "" } else { "\n" };
    text + gap + &findings
}

/// Returns what stands out in a few words, the worst first. `None` if nothing does.
pub(super) fn summary(map: &JobMap) -> Option<&'static str> {
    let rank = |code: &str| match code {
        "mesh-host-blocked" | "mesh-pair-blocked" => 0,
        "mesh-pair-broken" => 1,
        "mesh-clock" => 3,
        _ => 2,
    };
    let worst = map.measured_findings().map(|finding| rank(finding.code)).min()?;
    Some(match worst {
        0 => "some hosts cannot connect to each other",
        1 => "some hosts do not receive what others send",
        2 => "not all hosts or ranks are as fast as the others",
        _ => "the clocks of some hosts differ",
    })
}

fn of_mesh(mesh: &MeshReport) -> String {
    let [hosts, pairs] = [mesh.hosts.len(), mesh.pairs.len()];
    if hosts < 2 {
        return "\nmesh: all ranks are on one host, so there is nothing to measure\n".to_owned();
    }
    let is_complete = hosts <= MOST_COLUMNS;
    let what = match is_complete {
        true => "Gbit/s from the row's host to the column's",
        false => "medians of each connection's slower direction",
    };
    let (pairs, rounds) = (counted(pairs, "pair"), counted(mesh.rounds, "round"));
    let mut text =
        format!("\nmesh: {hosts} hosts, {pairs} in {rounds}, {:.1} s; {what}\n", mesh.seconds);
    text += &table(&rows(mesh, is_complete), true);
    if !is_complete {
        text += "\nthe slowest pairs\n";
        text += &table(&slowest(mesh), true);
    }
    if mesh.findings.is_empty() && hosts == 2 {
        text += "with two hosts there is only one pair, so nothing can be compared\n";
    }
    text
}

/// A row for each host: its rates to the other hosts, and its medians.
fn rows(mesh: &MeshReport, is_complete: bool) -> Vec<Vec<String>> {
    let columns = if is_complete { mesh.hosts.len() } else { 0 };
    let mut head = vec!["host".to_owned()];
    head.extend(mesh.hosts.iter().take(columns).map(|host| host.host.clone()));
    // Two hosts have one pair, which is its own median.
    let has_medians = mesh.hosts.len() > 2;
    head.extend(has_medians.then(|| "median Gbit/s".to_owned()));
    head.extend(["round trip ms", "clock s"].map(str::to_owned));
    let mut rows = vec![head];
    for (at, host) in mesh.hosts.iter().enumerate() {
        let mut row = vec![host.host.clone()];
        row.extend((0..columns).map(|column| shown(rate(mesh, at, column))));
        let clock = host.clock_s.map_or("-".to_owned(), |ahead| format!("{:+.3}", ahead + 0.0));
        row.extend(has_medians.then(|| shown(host.gbit_per_s)));
        row.extend([shown(host.round_trip_ms), clock]);
        rows.push(row);
    }
    rows
}

fn rate(mesh: &MeshReport, from: usize, to: usize) -> Option<f64> {
    mesh.pairs.iter().find_map(|pair| match pair.hosts {
        [first, second] if (first, second) == (from, to) => pair.gbit_per_s,
        [first, second] if (second, first) == (from, to) => pair.gbit_per_s_back,
        _ => None,
    })
}

fn slowest(mesh: &MeshReport) -> Vec<Vec<String>> {
    let mut pairs: Vec<_> = mesh.pairs.iter().collect();
    pairs.sort_by(|one, other| {
        let rate = |own: Option<f64>| own.unwrap_or(0.0);
        rate(one.slower()).total_cmp(&rate(other.slower()))
    });
    let head = ["hosts", "", "Gbit/s", "back", "both at once", "round trip ms"].map(str::to_owned);
    let row = |pair: &&PairReport| {
        let [first, second] = pair.hosts.map(|host| mesh.hosts[host].host.clone());
        let values =
            [pair.gbit_per_s, pair.gbit_per_s_back, pair.gbit_per_s_both, pair.round_trip_ms];
        [first, second].into_iter().chain(values.map(shown)).collect()
    };
    [head.to_vec()].into_iter().chain(pairs.iter().take(SLOWEST).map(row)).collect()
}

fn shown(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), figure)
}

/// Aligns columns to the left, and those of numbers, which are all but the first one, to the right.
pub(super) fn table(rows: &[Vec<String>], has_numbers: bool) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(column, cell)| match has_numbers && column > 0 {
            true => format!("{cell:>0$}", width(column)),
            false => format!("{cell:0$}", width(column)),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text += "\n";
    }
    text
}

fn of_compute(compute: &ComputeReport) -> String {
    let slowest = compute.ranks.iter().enumerate().min_by(|(_, one), (_, other)| {
        let least = |rank: &RankSpeed| rank.multiply_adds.min(rank.copy);
        least(one).total_cmp(&least(other))
    });
    let slowest = slowest.map_or(String::new(), |(rank, speed)| {
        let part = 100.0 * speed.multiply_adds.min(speed.copy);
        format!("; rank {rank} on {} is the slowest, with {part:.0} % of it", speed.host)
    });
    format!(
        "\ncompute: the median rank does {} billion multiply-adds and copies {} GB in a second{slowest}\n",
        figure(compute.median_multiply_adds_per_s / 1e9),
        figure(compute.median_bytes_copied_per_s / 1e9)
    )
}
