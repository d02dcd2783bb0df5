//! Measures how fast each rank computes and copies memory, while all others do the same.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde_json::json;

use super::connections::{Connections, Order};
use super::measurement::{Measurement, figure, grouped, median, named};
use super::{CheckError, JobMap};
use crate::Finding;

/// Below this part of the median, a rank is slow.
const SLOW: f64 = 0.7;
/// How often what is slow is measured again: other load on a host passes.
const PASSES: usize = 3;
/// How many times each value is measured, of which the median counts.
const WINDOWS: usize = 5;
/// How long each time takes.
const WINDOW: Duration = Duration::from_millis(100);
/// How many multiply-adds are done between two looks at the clock.
const STEPS: usize = 20_000;
/// Numbers that do not depend on each other, as many as a processor can work on at a time.
const LANES: usize = 8;
/// What is copied: more than a core's own cache holds.
const BLOCK: usize = 8 << 20;

/// How fast one rank or GPU is: multiply-adds, and bytes copied, in a second.
pub(super) type Speed = [f64; 2];

/// Measures this rank.
pub(super) fn speed() -> Speed {
    let (from, mut to) = (vec![1_u8; BLOCK], vec![0_u8; BLOCK]);
    let (mut adds, mut copies) = (Vec::new(), Vec::new());
    for _ in 0..WINDOWS {
        adds.push(rate(|| {
            multiply_adds();
            STEPS * LANES
        }));
        copies.push(rate(|| {
            to.copy_from_slice(black_box(&from));
            black_box(&mut to);
            BLOCK
        }));
    }
    [adds, copies].map(|rates| median(rates, false).unwrap_or_default())
}

fn multiply_adds() {
    let mut sums = black_box([1.0_f64; LANES]);
    for _ in 0..STEPS {
        for sum in &mut sums {
            *sum = *sum * 0.999_999 + 0.000_001;
        }
    }
    black_box(sums);
}

/// Repeats something for one window. Returns how much of it is done in a second.
fn rate(mut step: impl FnMut() -> usize) -> f64 {
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < WINDOW {
        count += step();
    }
    count as f64 / begun.elapsed().as_secs_f64()
}

/// The median of each value.
pub(super) fn medians(speeds: &[Speed]) -> Speed {
    let values = |at: usize| speeds.iter().map(|own| own[at]).collect();
    [0, 1].map(|at| median(values(at), false).unwrap_or_default())
}

/// How fast one is beside these medians.
pub(super) fn share(own: Speed, medians: Speed) -> Speed {
    [0, 1].map(|at| own[at] / medians[at].max(f64::MIN_POSITIVE))
}

/// Returns the ranks that are slow beside the median.
fn slow(speeds: &[Speed]) -> Vec<u32> {
    let medians = medians(speeds);
    let is_slow = |own: &Speed| share(*own, medians).iter().any(|part| *part < SLOW);
    (0..).zip(speeds).filter(|(_, own)| is_slow(own)).map(|(rank, _)| rank).collect()
}

/// Lets all ranks measure at once, and again while a rank is slow.
pub(super) fn lead(others: &mut Connections, map: &JobMap) -> Result<Measurement, CheckError> {
    let ranks: Vec<u32> = (0..).take(map.ranks.len()).collect();
    let mut speeds: Vec<Speed> = others.ask(&Order::Compute, &ranks, speed)?;
    for _ in 0..PASSES {
        if slow(&speeds).is_empty() || map.simulated {
            break;
        }
        let again = others.ask(&Order::Compute, &ranks, speed)?;
        let faster = |(one, other): (Speed, Speed)| [0, 1].map(|at| one[at].max(other[at]));
        speeds = speeds.into_iter().zip(again).map(faster).collect();
    }
    Ok(measurement(map, &speeds))
}

fn measurement(map: &JobMap, speeds: &[Speed]) -> Measurement {
    let medians = medians(speeds);
    let hosts: Vec<&str> = map.ranks.iter().map(|rank| &*rank.host).collect();
    let shares: Vec<Speed> = speeds.iter().map(|own| share(*own, medians)).collect();
    // Simulated ranks share the cores of one host.
    let slow = if map.simulated { Vec::new() } else { slow(speeds) };
    let findings = findings(&slow, &hosts, &shares);
    let bad_hosts = slow.iter().map(|&rank| hosts[rank as usize].to_owned()).collect();
    let ranks = hosts.iter().zip(&shares).map(|(host, [multiply_adds, copy])| {
        json!({ "host": host, "multiply_adds": multiply_adds, "copy": copy })
    });
    let report = json!({
        "median_multiply_adds_per_s": medians[0],
        "median_bytes_copied_per_s": medians[1],
        // In the order of ranks.
        "ranks": ranks.collect::<Vec<_>>(),
    });
    Measurement { report, text: text(medians, &hosts, &shares), findings, bad_hosts }
}

/// `shares`: how fast each rank is, as parts of the medians.
fn text(medians: Speed, hosts: &[&str], shares: &[Speed]) -> String {
    let least = shares.iter().map(|[multiply_adds, copy]| multiply_adds.min(*copy)).enumerate();
    let slowest = least.min_by(|(_, one), (_, other)| one.total_cmp(other));
    let slowest = slowest.map_or(String::new(), |(rank, least)| {
        let (host, part) = (hosts[rank], 100.0 * least);
        format!("; rank {rank} on {host} is the slowest, with {part:.0} % of it")
    });
    format!(
        "\ncompute: the median rank does {} billion multiply-adds and copies {} GB in a second{slowest}\n",
        figure(medians[0] / 1e9),
        figure(medians[1] / 1e9)
    )
}

/// One finding for all slow ranks of a host.
fn findings(slow: &[u32], hosts: &[&str], shares: &[Speed]) -> Vec<Finding> {
    let of_host = |(host, own): (&str, Vec<u32>)| {
        let [adds, copy] = [0, 1].map(|at| {
            let own = own.iter().map(|&rank| shares[rank as usize][at]);
            100.0 * own.fold(f64::INFINITY, f64::min)
        });
        let verb = if own.len() == 1 { "is" } else { "are" };
        Finding::warning(
            "compute-slow",
            format!(
                "{} on {host} {verb} slow: {adds:.0} % of the median in arithmetic, {copy:.0} % in copying memory",
                named(&own)
            ),
            "the slowest rank holds back every step of the whole job",
            format!(
                "look on {host} for other programs on these cores, for too few cores, and for a processor that is throttled"
            ),
        )
    };
    let slow_hosts = grouped(slow.iter().map(|&rank| (rank, hosts[rank as usize])));
    slow_hosts.into_iter().map(of_host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_below_70_percent_of_the_median_is_slow() {
        assert_eq!(slow(&[[1.0, 1.0], [1.0, 1.0], [0.69, 1.0], [1.0, 0.69]]), [2, 3]);
        assert!(slow(&[[1.0, 1.0], [0.71, 0.71], [1.4, 1.0]]).is_empty());
        // Of two, the faster one is the measure.
        assert_eq!(slow(&[[0.5, 1.0], [1.0, 1.0]]), [0]);
        assert!(slow(&[[0.5, 1.0]]).is_empty() && slow(&[]).is_empty());
    }

    #[test]
    fn the_slow_ranks_of_one_host_are_one_finding() {
        let shares = [1.0, 0.5, 0.4, 0.3].map(|part| [part, 1.0]);
        let found = findings(&[1, 2, 3], &["a", "b", "b", "c"], &shares);
        let found: Vec<_> = found.into_iter().map(|own| own.what).collect();
        assert_eq!(
            found,
            [
                "ranks 1-2 on b are slow: 40 % of the median in arithmetic, 100 % in copying memory",
                "rank 3 on c is slow: 30 % of the median in arithmetic, 100 % in copying memory",
            ]
        );
    }

    #[test]
    fn this_rank_computes_and_copies() {
        let [multiply_adds, copied] = speed();
        assert!(multiply_adds > 1e5 && copied > 1e5, "{multiply_adds} {copied}");
    }
}
