//! What the ranks do together through NCCL: sums of all sizes, whose numbers are checked, and sums in
//! pairs, which tell a rank from a path.

use std::collections::BTreeMap;
use std::time::Instant;

use mpienv_gpu::GpuError;
use serde::{Deserialize, Serialize};

use super::card::{Card, Joined};
use super::findings::Findings;
use super::log::{Choice, Log};
use super::{CardReport, CheckError, PairSpeed, share};
use crate::collective::Group;
use crate::command::check::mesh::rounds::disjoint;
use mpienv_core::seam::counted;

/// The first size in bytes, and by how much each of the following is larger.
const FIRST: u64 = 8;
const FACTOR: u64 = 8;
/// The most bytes that a pair sums at once.
const OF_PAIR: u64 = 32 << 20;
/// How many bytes are summed to measure one size, and the least and the most repetitions.
const MEASURED: u64 = 256 << 20;
const REPEATED: (u32, u32) = (3, 20);

/// What NCCL did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct NcclReport {
    /// How long rank 0 took to connect.
    pub seconds: f64,
    /// The network between hosts, and its devices on rank 0's host. `None` if the log is the user's.
    pub network: Option<String>,
    pub interfaces: Vec<String>,
    /// The interface over which the ranks find each other, on rank 0's host.
    pub bootstrap: Option<String>,
    pub paths: Vec<PathReport>,
    pub sums: Vec<SumReport>,
    pub pairs: Vec<PairSpeed>,
}

/// How one rank sends to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct PathReport {
    pub from: u32,
    pub to: u32,
    /// Such as `P2P/CUMEM`, `SHM/direct/direct`, `NET/Socket/0` or `NET/IB/0/GDRDMA`.
    pub how: String,
}

/// How long an all-reduce of so many bytes takes on the slowest rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SumReport {
    pub bytes: u64,
    pub seconds: f64,
    /// Bytes in a second, in billions.
    pub gb_per_s: f64,
    /// The same, times 2 (n - 1) / n for n ranks: what a ring moves over each of its links.
    pub bus_gb_per_s: f64,
    /// Whether each number is right on all ranks.
    pub is_right: bool,
}

/// What one rank has to say about a sum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Sum {
    seconds: f64,
    /// The first number that is wrong.
    wrong: Option<String>,
}

/// A test that all ranks go through together.
pub(super) struct Test<'a, 'hosts> {
    pub group: &'a mut Group,
    pub card: &'a Card,
    /// The most bytes of a sum.
    pub most: u64,
    /// Gets what stands out.
    pub findings: &'a mut Findings<'hosts>,
}

impl Test<'_, '_> {
    /// Connects the ranks through NCCL, and lets them sum.
    pub(super) fn run(
        &mut self,
        cards: &[CardReport],
        log: &Log,
    ) -> Result<NcclReport, CheckError> {
        let begun = Instant::now();
        let joined = self.card.join(self.group);
        let seconds = begun.elapsed().as_secs_f64();
        let mut report = NcclReport { seconds, ..NcclReport::default() };
        if let Some(mut joined) = self.agreed(joined)? {
            self.sums(&mut joined, &mut report.sums)?;
        }
        let choices: Vec<Option<Choice>> = share(self.group, &log.choice())?;
        let networks: Vec<_> = choices.iter().map(|own| own.as_ref()?.network.clone()).collect();
        self.findings.of_network(cards, &networks);
        if let Some(Some(own)) = choices.first().cloned() {
            (report.network, report.interfaces) = (own.network, own.interfaces);
            report.bootstrap = own.bootstrap;
        }
        // A rank whose log is the user's has no choice, and keeps its number.
        let paths = (0..).zip(choices).flat_map(|(from, own)| {
            let sends = own.map(|own| own.sends).unwrap_or_default();
            sends.into_iter().map(move |(to, how)| PathReport { from, to, how })
        });
        report.paths = paths.collect();
        if !self.findings.has_error() && self.group.size() > 2 {
            let hosts: Vec<&str> = cards.iter().map(|card| card.host.as_str()).collect();
            for (is_between, round) in rounds(&hosts) {
                report.pairs.extend(self.measure(&round, is_between)?);
            }
            self.findings.of_pairs(&report.pairs);
        }
        Ok(report)
    }

    /// Returns what this rank has if all ranks have theirs, and otherwise adds why some have not.
    fn agreed<T>(&mut self, own: Result<T, GpuError>) -> Result<Option<T>, CheckError> {
        let problem = own.as_ref().err().cloned();
        let problems: Vec<Option<GpuError>> = share(self.group, &problem)?;
        let all_have = problems.iter().all(Option::is_none);
        let why = "the program's own calls of NCCL fail in the same way, or wait forever";
        self.findings.problems("nccl-failed", why, problems.into_iter());
        Ok(own.ok().filter(|_| all_have))
    }

    /// Sums over all ranks, from 8 bytes to the most.
    fn sums(
        &mut self,
        joined: &mut Joined<'_>,
        reports: &mut Vec<SumReport>,
    ) -> Result<(), CheckError> {
        let mut bytes = FIRST.min(self.most.max(4));
        loop {
            let own = sum(joined, self.group, bytes);
            let Some(own) = self.agreed(own)? else { return Ok(()) };
            let all: Vec<Sum> = share(self.group, &own)?;
            let seconds = all.iter().map(|own| own.seconds).fold(0.0, f64::max);
            let gb_per_s = bytes as f64 / seconds.max(f64::MIN_POSITIVE) / 1e9;
            let ranks = f64::from(self.group.size());
            let is_right = all.iter().all(|own| own.wrong.is_none());
            let bus_gb_per_s = gb_per_s * 2.0 * (ranks - 1.0) / ranks;
            reports.push(SumReport { bytes, seconds, gb_per_s, bus_gb_per_s, is_right });
            let remedy =
                "compare NCCL's versions, and test the hosts' memory and links (`dcgmi diag -r 3`)";
            let wrong = |own: Sum| {
                let what = format!("an all-reduce of {bytes} bytes: {}", own.wrong?);
                Some(GpuError::new(what, remedy))
            };
            let why = "a training with these ranks is wrong, although nothing fails";
            self.findings.problems("nccl-wrong", why, all.into_iter().map(wrong));
            if bytes >= self.most || !is_right {
                return Ok(());
            }
            bytes = (bytes * FACTOR).min(self.most);
        }
    }

    /// Lets the pairs of one round sum, each by itself.
    fn measure(
        &mut self,
        round: &[(u32, u32)],
        is_between: bool,
    ) -> Result<Vec<PairSpeed>, CheckError> {
        let rank = self.group.rank().index();
        let own = round.iter().position(|&(one, other)| one == rank || other == rank);
        let color = own.unwrap_or(round.len() + rank as usize);
        let mut pair = self.group.split(u32::try_from(color).unwrap_or(u32::MAX), rank)?;
        let bytes = self.most.min(OF_PAIR);
        let time = |_| {
            let numbers = vec![1.0; (bytes / 4).max(1) as usize];
            let (_, seconds) = self.card.join(&mut pair)?.sum(&mut pair, &numbers, REPEATED.0)?;
            Ok(seconds)
        };
        let own = own.map(time).transpose();
        let Some(own) = self.agreed(own)? else { return Ok(Vec::new()) };
        let seconds: Vec<Option<f64>> = share(self.group, &own)?;
        let speeds = round.iter().filter_map(|&(one, other)| {
            let slower = seconds[one as usize]?.max(seconds[other as usize]?);
            let gb_per_s = bytes as f64 / slower.max(f64::MIN_POSITIVE) / 1e9;
            Some(PairSpeed { ranks: [one, other], between_hosts: is_between, gb_per_s })
        });
        pair.close()?;
        Ok(speeds.collect())
    }
}

/// Sums once and compares every number, and then measures.
fn sum(joined: &mut Joined<'_>, group: &mut Group, bytes: u64) -> Result<Sum, GpuError> {
    let (rank, ranks) = (group.rank().index(), group.size());
    let count = usize::try_from(bytes / 4).unwrap_or(usize::MAX).max(1);
    let values: Vec<f32> = (0..count).map(|at| value(at, rank)).collect();
    let times = u32::try_from(MEASURED / bytes.max(1)).unwrap_or(REPEATED.1);
    let (result, seconds) = joined.sum(group, &values, times.clamp(REPEATED.0, REPEATED.1))?;
    let of_ranks: f32 = (0..ranks).map(|rank| value(0, rank)).sum();
    let expected = |at: usize| of_ranks + ranks as f32 * value(at, 0);
    let found = result.iter().enumerate().find(|(at, found)| **found != expected(*at));
    let wrong = found.map(|(at, found)| {
        format!(
            "number {at} of {} is {found} in place of {}",
            counted(count, "number"),
            expected(at)
        )
    });
    Ok(Sum { seconds, wrong })
}

/// What a rank contributes: whole numbers, whose sums `f32` holds exactly.
fn value(at: usize, rank: u32) -> f32 {
    ((at % 251) as u32 + rank % 64) as f32
}

/// Pairs of ranks that measure at the same time.
type Round = Vec<(u32, u32)>;

/// Returns rounds in which each rank meets its two neighbors: first those of its host, then the
/// ranks with the same place on the hosts before and after. `hosts`: the host of each rank.
///
/// The pairs of one round have no rank in common, and all are within hosts or all between hosts, so
/// that only like is compared with like.
fn rounds(hosts: &[&str]) -> Vec<(bool, Round)> {
    let mut of_host: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    let mut columns: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for (rank, host) in (0..).zip(hosts) {
        let members = of_host.entry(host).or_default();
        columns.entry(members.len()).or_default().push(rank);
        members.push(rank);
    }
    let rounds = |is_between: bool, rings: &mut dyn Iterator<Item = Vec<u32>>| {
        let pairs: Vec<_> = rings.flat_map(neighbors).collect();
        disjoint(&pairs).into_iter().map(move |round| (is_between, round))
    };
    let within = rounds(false, &mut of_host.into_values());
    within.chain(rounds(true, &mut columns.into_values())).collect()
}

/// Returns the pairs of neighbors in a ring. The last one and the first one are neighbors, too.
fn neighbors(ring: Vec<u32>) -> Vec<(u32, u32)> {
    let count = ring.len();
    let pairs = if count > 2 { count } else { count.saturating_sub(1) };
    (0..pairs).map(|at| (ring[at], ring[(at + 1) % count])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_meets_two_neighbors_of_its_host_and_two_of_its_place() {
        assert_eq!(rounds(&["a"]), []);
        assert_eq!(rounds(&["a", "a"]), [(false, vec![(0, 1)])]);
        assert_eq!(rounds(&["a", "b"]), [(true, vec![(0, 1)])]);
        let of_three = [(false, vec![(0, 1)]), (false, vec![(1, 2)]), (false, vec![(2, 0)])];
        assert_eq!(rounds(&["a"; 3]), of_three);
        let hosts = ["a", "a", "b", "b", "c", "c", "d", "d"];
        let expected = [
            (false, vec![(0, 1), (2, 3), (4, 5), (6, 7)]),
            (true, vec![(0, 2), (4, 6), (1, 3), (5, 7)]),
            (true, vec![(2, 4), (6, 0), (3, 5), (7, 1)]),
        ];
        assert_eq!(rounds(&hosts), expected);
    }

    #[test]
    fn no_rank_is_in_two_pairs_of_a_round() {
        for hosts in 1..6_usize {
            for own in 1..6_usize {
                let names: Vec<String> =
                    (0..hosts * own).map(|rank| format!("{}", rank / own)).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                for (_, round) in rounds(&names) {
                    let mut ranks: Vec<u32> =
                        round.iter().flat_map(|&(one, other)| [one, other]).collect();
                    ranks.sort_unstable();
                    let count = ranks.len();
                    ranks.dedup();
                    assert_eq!(ranks.len(), count, "{hosts} hosts of {own}: {round:?}");
                }
            }
        }
    }
}
