//! What `check` prints: the map of the job, what was measured, and how far the measurements are.

#[cfg(feature = "gpu")]
mod gpu;

use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;

use crate::command::check::{ComputeReport, JobMap, MeshReport, PairReport, RankSpeed, figure};
use crate::{ClusterInfo, Launcher, Severity};
use mpienv_core::seam::{counted, ranges};

use super::super::lines_of;

/// Up to so many hosts, the table has a column for each host.
const MOST_COLUMNS: usize = 16;
/// How many pairs of a larger job are listed.
const SLOWEST: usize = 10;

/// Returns who met, where, and what does not fit together.
pub(super) fn lines_of_map(map: &JobMap, info: &ClusterInfo, tests_all: bool) -> String {
    let hosts = map.hosts();
    let (ranks, on) = (counted(map.ranks.len(), "rank"), counted(hosts.len(), "host"));
    let launcher = match info.launcher() {
        Launcher::Alone => Launcher::Alone.title(),
        launcher => launcher.name(),
    };
    let met = match map.ranks.len() {
        1 => ": it has no other rank to meet".to_owned(),
        _ => {
            format!(", met at {} in {:.2} s, {}", map.master, map.seconds, map.protection.phrase())
        }
    };
    let mut text = format!("{ranks} on {on}, started by {launcher}{met}\n");
    let mut rows = vec![["host", "address", "ranks", "local ranks"].map(str::to_owned).to_vec()];
    for (host, ranks) in &hosts {
        let numbers: Vec<_> = ranks.iter().map(|(rank, _)| *rank).collect();
        let address = ranks.first().and_then(|(_, report)| Some(report.address?.to_string()));
        let local: Option<Vec<_>> = ranks.iter().map(|(_, report)| report.local_rank).collect();
        let local = local.map_or("-".to_owned(), |local| ranges(&local));
        rows.push(vec![(*host).to_owned(), address.unwrap_or_default(), ranges(&numbers), local]);
    }
    text += &table(&rows, false);
    if let Some(line) = listened(map, info) {
        text += &format!("{line}\n");
    }
    if let Some(reason) = &map.no_munge {
        text += &format!("the ranks did not use MUNGE: {reason}\n");
    }
    if map.simulated {
        text += "the job is simulated on this host: hosts and local ranks are not compared\n";
    }
    if hosts.len() > 1 && !tests_all {
        text += "only the master's port was tested: --mesh tests other ports, between all hosts\n";
    }
    let findings = map.findings();
    let gap = if findings.is_empty() { "" } else { "\n" };
    text + gap + &lines_of(&findings)
}

/// Returns where rank 0 listened, if the first line does not show it.
fn listened(map: &JobMap, info: &ClusterInfo) -> Option<String> {
    let master = info.master_addr().ok()?;
    let [address, ..] = map.listened[..] else { return None };
    if address.is_unspecified() {
        return Some(
            "rank 0 listened on every address of its host: --bind ADDRESS makes it listen on one"
                .to_owned(),
        );
    }
    let is_plain =
        master.is_loopback() || master.address().is_some_and(|master| map.listened == [master]);
    let list: Vec<_> = map.listened.iter().map(IpAddr::to_string).collect();
    (!is_plain).then(|| format!("rank 0 listened on {}", list.join(" and ")))
}

/// Returns what was measured, which ends with the findings.
pub(super) fn measured(map: &JobMap) -> String {
    let mut text = map.mesh.as_ref().map(of_mesh).unwrap_or_default();
    text += &map.compute.as_ref().map(of_compute).unwrap_or_default();
    text += &map.gpu.as_ref().map(gpu::lines).unwrap_or_default();
    let findings = lines_of(map.measured_findings());
    let gap = if findings.is_empty() { "" } else { "\n" };
    text + gap + &findings
}

/// Returns what stands out in a few words, the worst first. `None` if nothing does.
pub(super) fn summary(map: &JobMap) -> Option<&'static str> {
    let rank = |code: &str| match code {
        "mesh-host-blocked" | "mesh-pair-blocked" => 0,
        "mesh-pair-broken" => 1,
        "mesh-clock" => 6,
        "gpu-missing" | "nccl-missing" | "gpu-shared" | "nccl-versions-differ" => 2,
        "gpu-failed" | "gpu-wrong" => 3,
        "nccl-failed" | "nccl-wrong" => 4,
        _ => 5,
    };
    let findings = map.measured_findings().filter(|found| found.severity > Severity::Note);
    let worst = findings.map(|finding| rank(finding.code)).min()?;
    Some(match worst {
        0 => "some hosts cannot connect to each other",
        1 => "some hosts do not receive what others send",
        2 => "their GPUs or libraries do not let NCCL connect them",
        3 => "some GPUs do not compute what they should",
        4 => "NCCL does not sum over all of them",
        5 => "not all hosts or ranks are as fast as the others",
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
fn table(rows: &[Vec<String>], has_numbers: bool) -> String {
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

/// Without the feature, a report of GPUs cannot exist.
#[cfg(not(feature = "gpu"))]
mod gpu {
    pub(super) fn lines(report: &crate::command::check::GpuReport) -> String {
        match *report {}
    }
}

/// How many characters the bar has.
const WIDTH: usize = 32;

/// Shows that so many of all rounds are done. After the last one, removes the bar.
pub(super) fn show_progress(done: usize, all: usize) {
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
