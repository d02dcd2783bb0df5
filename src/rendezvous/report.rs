//! The problems that rank 0 found, and the text about them that all ranks get.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::error::{RendezvousError, seconds};
use super::frame::Version;
use super::most_in_all;
use mpienv_core::seam::{list_of_ranks, runs_of_ranks};
use mpienv_core::{Host, Port};

/// How many items of a kind the text names. It only counts the rest.
const NAMED: usize = 8;
/// How many items of a kind rank 0 remembers.
const REMEMBERED: usize = 10_000;

/// The remedy for different world sizes.
const SIZES_REMEDY: &str = "two jobs share this MASTER_PORT, a variable is left from an earlier launch, or `mpienv launch` has different values of \
                            --nnodes or --nproc-per-node: start all ranks with one command, with the same --nnodes and --nproc-per-node on every \
                            node";
/// The remedy for different ports.
const PORTS_REMEDY: &str = "only some ranks have the setting, for example because mpirun passes a shell's variables to its own host only: set \
                            it for all ranks, as with `mpirun -x MASTER_PORT`, or for none";

/// Ranks, and where they are.
type Ranks = BTreeMap<u32, IpAddr>;
/// The ranks that disagree with rank 0, by their value.
type Others = BTreeMap<u32, Ranks>;

/// What rank 0 saw besides the ranks that joined.
#[derive(Debug, Default)]
pub(super) struct Problems {
    /// Ranks whose connection closed after the hello.
    pub(super) lost: Ranks,
    /// Why the ranks may not find rank 0.
    pub(super) elsewhere: Option<String>,
    /// How many consecutive ranks each host has. Empty if that is not known.
    pub(super) hosts: Arc<[(Host, u32)]>,
    /// Ranks that arrived but did not confirm that they were still there.
    pub(super) unanswered: Ranks,
    /// Ranks that arrived, and whose blob was not complete at the deadline.
    pub(super) unfinished: Ranks,
    /// The first rank whose blob was too much, its address, and how many there are.
    excess: Option<(u32, IpAddr, usize)>,
    duplicates: Vec<(u32, Option<IpAddr>, IpAddr)>,
    sizes: Others,
    ports: Others,
    versions: BTreeMap<u32, (Version, IpAddr)>,
    /// How many connections were rejected.
    pub(super) rejected: u64,
    /// How many connections had not identified themselves by the deadline.
    pub(super) silent: u64,
    /// Whether rank 0 uses MUNGE, so that ranks that do not leave without a word.
    pub(super) has_munge: bool,
    /// Why MUNGE does not work on rank 0's host, if rank 0 therefore does without it.
    pub(super) no_munge: Option<String>,
    other_jobs: BTreeSet<IpAddr>,
    /// The addresses from which altered messages came.
    altered: BTreeSet<IpAddr>,
}

impl Problems {
    /// Notes that a rank arrived twice. `first` is `None` if the rank is rank 0 itself.
    pub(super) fn duplicate(&mut self, rank: u32, first: Option<IpAddr>, second: IpAddr) {
        if self.duplicates.len() < REMEMBERED {
            self.duplicates.push((rank, first, second));
        }
    }

    pub(super) fn size(&mut self, rank: u32, size: u32, from: IpAddr) {
        remember(&mut self.sizes, size, rank, from);
    }

    /// Notes that a rank's master port differs from rank 0's.
    pub(super) fn port(&mut self, rank: u32, port: Port, from: IpAddr) {
        remember(&mut self.ports, port.get().into(), rank, from);
    }

    pub(super) fn version(&mut self, rank: u32, version: Version, from: IpAddr) {
        if self.versions.len() < REMEMBERED {
            self.versions.insert(rank, (version, from));
        }
    }

    /// Notes that all ranks together brought too much when this one arrived.
    pub(super) fn too_much(&mut self, rank: u32, from: IpAddr) {
        let (first, address, count) = self.excess.unwrap_or((rank, from, 0));
        self.excess = Some((first, address, count + 1));
    }

    pub(super) fn other_job(&mut self, from: IpAddr) {
        if self.other_jobs.len() < REMEMBERED {
            self.other_jobs.insert(from);
        }
    }

    /// Notes that a message from this address was altered.
    pub(super) fn altered(&mut self, from: IpAddr) {
        if self.altered.len() < REMEMBERED {
            self.altered.insert(from);
        }
    }

    /// How many ranks have problems that waiting cannot solve.
    pub(super) fn conflicts(&self) -> usize {
        let excess = self.excess.map_or(0, |(.., count)| count);
        self.duplicates.len() + count(&self.ports) + self.versions.len() + excess
    }

    /// How many ranks have a world size that differs from rank 0's.
    pub(super) fn outliers(&self) -> usize {
        count(&self.sizes)
    }

    /// The answer to ranks with another world size.
    pub(super) fn sizes_differ(&self, size: u32, joined: &[u32]) -> Option<String> {
        disagreement("the world size", &self.sizes, size, joined, SIZES_REMEDY)
    }

    /// The report if the ranks `joined` arrived at `master`. Missing ranks count only if
    /// `time_is_up`.
    pub(super) fn report(
        &self,
        size: u32,
        master: (&Host, Port),
        joined: &[u32],
        waited: Duration,
        time_is_up: bool,
    ) -> RendezvousError {
        let (host, port) = master;
        let missing = if time_is_up { self.missing(size, joined) } else { Vec::new() };
        let parts = [
            self.sizes_differ(size, joined),
            disagreement("MASTER_PORT", &self.ports, port.get().into(), joined, PORTS_REMEDY),
            self.arrived_twice(),
            self.versions_differ(),
            self.excess.map(|(rank, from, _)| {
                let most = most_in_all(size) >> 20;
                format!("with rank {rank} ({from}), the ranks brought more than {most} MiB in all; bring smaller blobs")
            }),
            self.were_lost(),
            self.have_not_connected(&missing, size, &host.with_port(port), waited),
            self.have_not_answered(waited),
            self.are_unfinished(waited),
            self.were_rejected(),
        ];
        let report = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
        match (self.conflicts() + self.outliers(), self.lost.is_empty()) {
            (0, true) => {
                let missing = missing.into_iter().map(|(first, last)| first..=last).collect();
                RendezvousError::Missing { report, missing }
            }
            (0, false) => RendezvousError::Lost { report },
            _ => RendezvousError::Mismatch { report },
        }
    }

    fn arrived_twice(&self) -> Option<String> {
        let named = self.duplicates.iter().map(|(rank, first, second)| {
            let first =
                first.map_or("the master itself".to_owned(), |first| format!("one at {first}"));
            format!("two processes say they are rank {rank}: {first} and one at {second}")
        });
        let named = some(named)?;
        Some(format!(
            "{named}; start all ranks with one launcher command, and do not set RANK by hand"
        ))
    }

    fn versions_differ(&self) -> Option<String> {
        let version = |(rank, (version, from)): (&u32, &(Version, IpAddr))| {
            format!("rank {rank} ({from}) runs {version}")
        };
        let (named, own) = (some(self.versions.iter().map(version))?, Version::OWN);
        Some(format!("{named}, rank 0 runs {own}: start the same program on all ranks"))
    }

    fn were_lost(&self) -> Option<String> {
        let (were, they) = if self.lost.len() == 1 { ("was", "it") } else { ("were", "they") };
        let from = ranks_from(&self.lost)?;
        Some(format!(
            "{from} connected, but {were} lost before all ranks had connected: killed, failed or cut off; look for an error that {they} printed"
        ))
    }

    /// The runs of ranks of which nothing was heard.
    fn missing(&self, size: u32, joined: &[u32]) -> Vec<(u32, u32)> {
        let others = [&self.sizes, &self.ports];
        let others = others.into_iter().flat_map(Others::values);
        let from = others.chain([&self.lost, &self.unfinished]).flat_map(Ranks::keys);
        let mut heard: Vec<u32> =
            joined.iter().chain(from).chain(self.versions.keys()).copied().collect();
        heard.sort_unstable();
        gaps(&heard, size)
    }

    fn have_not_connected(
        &self,
        missing: &[(u32, u32)],
        size: u32,
        master: &str,
        waited: Duration,
    ) -> Option<String> {
        let (ranks, have, they) = match missing[..] {
            [] => return None,
            [(first, last)] if first == last => ("rank", "has", "it"),
            _ => ("ranks", "have", "they"),
        };
        let on = self.hosts_of(missing).map(|hosts| format!(" ({hosts})")).unwrap_or_default();
        let (missing, waited) = (list(missing), seconds(waited));
        let elsewhere = self.elsewhere.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
        Some(format!(
            "{ranks} {missing} of {size}{on} {have} not connected to {master} within {waited}: not started, failed earlier, kept \
             out by a firewall, or using a different MASTER_ADDR, MASTER_PORT or MPIENV_PORT_RANGE; look for an error that {they} printed{elsewhere}"
        ))
    }

    /// Names the hosts of these ranks, if they are known: `n1, all of n2`.
    fn hosts_of(&self, missing: &[(u32, u32)]) -> Option<String> {
        let mut first = 0;
        let named = self.hosts.iter().filter_map(|(host, ranks)| {
            let own = first..first + ranks;
            first = own.end;
            let later = &missing[missing.partition_point(|&(_, last)| last < own.start)..];
            let (start, last) = *later.first().filter(|(start, _)| *start < own.end)?;
            let are_all = own.len() > 1 && start <= own.start && last >= own.end - 1;
            Some(if are_all { format!("all of {host}") } else { host.to_string() })
        });
        some(named.collect::<Vec<_>>().into_iter())
    }

    fn have_not_answered(&self, waited: Duration) -> Option<String> {
        let their = if self.unanswered.len() == 1 { "its" } else { "their" };
        let (from, waited) = (ranks_from(&self.unanswered)?, seconds(waited));
        Some(format!(
            "{from} connected, then stopped answering within {waited}: the process is stopped, or {their} host is down or cut off; check that host"
        ))
    }

    fn are_unfinished(&self, waited: Duration) -> Option<String> {
        let (from, waited) = (ranks_from(&self.unfinished)?, seconds(waited));
        Some(format!(
            "{from} connected, but not all their bytes had arrived within {waited}: check the network, bring smaller blobs, or \
             wait longer"
        ))
    }

    fn were_rejected(&self) -> Option<String> {
        let mut text = match self.rejected + self.silent {
            0 => return None,
            1 => "1 connection that was not a rank of this job was rejected".to_owned(),
            n => format!("{n} connections that were not ranks of this job were rejected"),
        };
        if let Some(from) = some(self.other_jobs.iter()) {
            text += &format!(
                ", with another job's token from {from}: if they belong to this job, give all ranks the same MPIENV_TOKEN, \
                 as with `mpirun -x MPIENV_TOKEN`"
            );
        }
        if self.has_munge {
            text += "; rank 0 authenticates with MUNGE: if they are ranks of this job, no munged answers on their hosts, or \
                     MPIENV_AUTH is not set there: start munged, and set MPIENV_AUTH for all ranks, as with `mpirun -x MPIENV_AUTH`";
        }
        if let Some(reason) = &self.no_munge {
            text += &format!(
                "; rank 0 does without MUNGE, which does not work on its host ({reason}): if they \
                 are ranks of this job, start munged there, or unset MPIENV_AUTH on all ranks"
            );
        }
        if let Some(from) = some(self.altered.iter()) {
            text += &format!(
                ", with messages that were changed, repeated or left out on the way from {from}"
            );
        }
        Some(text)
    }
}

fn remember(others: &mut Others, said: u32, rank: u32, from: IpAddr) {
    if count(others) < REMEMBERED {
        others.entry(said).or_default().insert(rank, from);
    }
}

fn count(others: &Others) -> usize {
    others.values().map(BTreeMap::len).sum()
}

/// Describes which ranks have which value, if any rank disagrees with rank 0 and the ranks that
/// `joined`.
fn disagreement(
    on: &str,
    others: &Others,
    own: u32,
    joined: &[u32],
    remedy: &str,
) -> Option<String> {
    let say = |count| if count == 1 { "says" } else { "say" };
    let said = others.iter().take(NAMED).filter_map(|(other, from)| {
        Some(format!("{} {} {other}", ranks_from(from)?, say(from.len())))
    });
    let said: Vec<String> = said.collect();
    let (own, said) = (format!("{} {} {own}", ranks(joined), say(joined.len())), said.join(", "));
    (!said.is_empty()).then(|| format!("the ranks disagree on {on}: {own}, {said}; {remedy}"))
}

/// Names some of these, and counts the rest. `None` if there are none.
fn some(all: impl ExactSizeIterator<Item = impl ToString>) -> Option<String> {
    let (count, named) = (all.len(), all.take(NAMED).map(|one| one.to_string()));
    let named = named.collect::<Vec<_>>().join(", ");
    match count {
        0 => None,
        1..=NAMED => Some(named),
        _ => Some(format!("{named} and {} more", count - NAMED)),
    }
}

/// Formats ranks with their addresses: `ranks 1,3-7 (10.0.0.1, 10.0.0.2)`.
fn ranks_from(from: &Ranks) -> Option<String> {
    let addresses: BTreeSet<&IpAddr> = from.values().collect();
    let list: Vec<u32> = from.keys().copied().collect();
    Some(format!("{} ({})", ranks(&list), some(addresses.into_iter())?))
}

/// Formats ranks: `rank 3`, `ranks 1,3-7`. The list must be sorted.
fn ranks(sorted: &[u32]) -> String {
    let noun = if sorted.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", list(&runs_of_ranks(sorted)))
}

/// The ranges of `0..size` that are not in `heard`, which is sorted.
fn gaps(heard: &[u32], size: u32) -> Vec<(u32, u32)> {
    let mut runs = Vec::new();
    let mut next = 0;
    for &rank in heard.iter().filter(|&&rank| rank < size).chain([&size]) {
        if rank > next {
            runs.push((next, rank - 1));
        }
        next = rank.saturating_add(1);
    }
    runs
}

fn list(runs: &[(u32, u32)]) -> String {
    let text = list_of_ranks(runs.iter().take(4 * NAMED), ",");
    if runs.len() > 4 * NAMED { text + ",..." } else { text }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::Rendezvous;
    use mpienv_core::Rank;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const MINUTE: Duration = Duration::from_secs(60);
    const MASTER: (&Host, Port) = (&Host::LOOPBACK, Port::SEVERAL_NODES);

    #[test]
    fn missing_ranks_are_a_short_list() {
        let error = Problems::default().report(9, MASTER, &[0, 2, 8], MINUTE, true);
        assert_eq!(
            error.to_string(),
            "ranks 1,3-7 of 9 have not connected to 127.0.0.1:6105 within 60 s: not started, failed earlier, kept out by a \
             firewall, or using a different MASTER_ADDR, MASTER_PORT or MPIENV_PORT_RANGE; look for an error that they printed"
        );
        let RendezvousError::Missing { missing, .. } = error else { panic!("{error}") };
        assert_eq!(missing, [1..=1, 3..=7]);
    }

    #[test]
    fn the_hosts_of_missing_ranks_are_named_where_they_are_known() {
        let hosts_of = |hosts: &[(&str, u32)], joined: &[u32]| {
            let hosts = hosts.iter().map(|(host, ranks)| (host.parse().unwrap(), *ranks));
            let problems = Problems { hosts: hosts.collect(), ..Problems::default() };
            let size = problems.hosts.iter().map(|(_, ranks)| ranks).sum();
            let error = problems.report(size, MASTER, joined, MINUTE, true).to_string();
            error.split_once(" ha").unwrap().0.to_owned()
        };
        let two = [("n0", 2), ("n1", 2)];
        assert_eq!(hosts_of(&two, &[0, 1]), "ranks 2-3 of 4 (all of n1)");
        assert_eq!(hosts_of(&two, &[0, 1, 2]), "rank 3 of 4 (n1)");
        assert_eq!(hosts_of(&two, &[0]), "ranks 1-3 of 4 (n0, all of n1)");
        assert_eq!(hosts_of(&[("n0", 1), ("n1", 1), ("n2", 1)], &[0, 2]), "rank 1 of 3 (n1)");
        assert_eq!(hosts_of(&[("n0", 3), ("n1", 1)], &[0, 2, 3]), "rank 1 of 4 (n0)");
        let names: Vec<_> = (0..12).map(|node| format!("n{node}")).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let named = "ranks 1-11 of 12 (n1, n2, n3, n4, n5, n6, n7, n8 and 3 more)";
        assert_eq!(hosts_of(&many, &[0]), named);
    }

    #[test]
    fn rank_0_says_that_nobody_can_find_it_at_the_masters_address() {
        for (master, why) in [
            ("192.0.2.9", "; 192.0.2.9 is not an address of rank 0's host"),
            (
                "no-such-host.invalid",
                "; the name no-such-host.invalid does not resolve on rank 0's host",
            ),
        ] {
            let first = Rank::new(0, 2).unwrap();
            // Whatever port is free.
            let free = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"));
            let port = Port::new(free.unwrap().local_addr().unwrap().port()).unwrap();
            let rendezvous = Rendezvous::new(first, master.parse().unwrap(), port);
            let error = rendezvous.timeout(Duration::from_millis(20)).gather("").unwrap_err();
            assert!(error.to_string().ends_with(why), "{error}");
        }
    }

    #[test]
    fn a_world_of_four_thousand_million_takes_no_time() {
        let error = Problems::default().report(u32::MAX, MASTER, &[0, u32::MAX - 1], MINUTE, true);
        assert!(error.to_string().starts_with("ranks 1-4294967293 of 4294967295 have"), "{error}");
    }

    #[test]
    fn every_finding_is_in_the_text() {
        let mut problems = Problems::default();
        problems.size(5, 16, THERE);
        problems.size(6, 16, THERE);
        problems.duplicate(1, Some(HERE), THERE);
        problems.duplicate(0, None, THERE);
        problems.version(3, Version::OWN, THERE);
        problems.lost.insert(2, THERE);
        problems.unanswered.insert(1, HERE);
        problems.rejected = 2;
        problems.silent = 1;
        problems.other_job(THERE);
        problems.port(4, Port::ONE_NODE, THERE);
        let text = problems.report(8, MASTER, &[0, 1], MINUTE, true).to_string();
        for part in [
            "ranks 0-1 say 8, ranks 5-6 (10.0.0.2) say 16",
            "with the same --nnodes and --nproc-per-node on every node",
            "the ranks disagree on MASTER_PORT: ranks 0-1 say 6105, rank 4 (10.0.0.2) says 54965",
            "two processes say they are rank 1: one at 10.0.0.1 and one at 10.0.0.2, two processes say they are rank 0: the master itself and one at 10.0.0.2",
            "rank 3 (10.0.0.2) runs mpienv 0.1.0",
            "rank 2 (10.0.0.2) connected, but was lost",
            "rank 7 of 8 has not connected",
            "rank 1 (10.0.0.1) connected, then stopped answering within 60 s: the process is stopped, or its host is down or cut off",
            "3 connections that were not ranks of this job were rejected, with another job's token from 10.0.0.2: if they belong \
             to this job, give all ranks the same MPIENV_TOKEN, as with `mpirun -x MPIENV_TOKEN`",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }
}
