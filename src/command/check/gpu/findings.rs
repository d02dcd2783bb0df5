//! The findings about the ranks' GPUs: those that name hosts before NCCL fails, those of each GPU by
//! itself, and those of NCCL.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use mpienv_gpu::{DeviceOfRank, GpuError, SharedDevice, shared_devices};

use super::super::compute::{Speed, medians, share};
use super::super::measurement::{self, grouped, median};
use super::{Alone, CardReport, DeviceReport, PairSpeed};
use crate::{Finding, Severity};

/// Below this part of the median of the same model, a GPU or a pair of ranks is slow.
const SLOW: f64 = 0.7;
/// A device with more of its memory in use is in use by another program.
const USED: f64 = 0.1;
/// How many hosts a finding names one by one.
const MOST: usize = 16;

/// Names ranks with their hosts: `ranks 0-3 on a, rank 4 on b`.
pub(super) fn named(ranks: &[u32], hosts: &[&str]) -> String {
    let host = |rank: u32| hosts.get(rank as usize).copied().unwrap_or_default();
    let of_host = grouped(ranks.iter().map(|&rank| (rank, host(rank))));
    let left_out = of_host.len().saturating_sub(MOST);
    let list = of_host.iter().take(MOST);
    let list = list.map(|(host, own)| format!("{} on {host}", measurement::named(own)));
    let list = list.collect::<Vec<_>>().join(", ");
    if left_out == 0 { list } else { format!("{list}, and those of {left_out} more hosts") }
}

/// Collects findings about ranks.
pub(super) struct Findings<'a> {
    hosts: &'a [&'a str],
    /// Whether speeds are compared: simulated ranks share the cores, and perhaps the GPU, of one host.
    compares: bool,
    pub found: Vec<Finding>,
    /// The ranks whose hosts they blame.
    bad_ranks: BTreeSet<u32>,
}

impl<'a> Findings<'a> {
    pub(super) fn new(hosts: &'a [&'a str], compares: bool) -> Findings<'a> {
        Findings { hosts, compares, found: Vec::new(), bad_ranks: BTreeSet::new() }
    }

    pub(super) fn has_error(&self) -> bool {
        self.found.iter().any(|finding| finding.severity == Severity::Error)
    }

    /// Returns the hosts that the findings blame, in the order of ranks.
    pub(super) fn bad_hosts(&self) -> Vec<String> {
        let host = |&rank: &u32| Some((rank, *self.hosts.get(rank as usize)?));
        let hosts = grouped(self.bad_ranks.iter().filter_map(host)).into_iter();
        hosts.map(|(host, _)| host.to_owned()).collect()
    }

    /// Adds one finding for all ranks that have the same problem.
    pub(super) fn problems(
        &mut self,
        code: &'static str,
        why: &str,
        of_ranks: impl Iterator<Item = Option<GpuError>>,
    ) {
        let same = grouped((0..).zip(of_ranks).filter_map(|(rank, own)| Some((rank, own?))));
        for (error, ranks) in same {
            let what = format!("{}: {}", named(&ranks, self.hosts), error.what());
            self.add(Finding::error(code, what, why, error.remedy()), ranks);
        }
    }

    fn add(&mut self, finding: Finding, blamed: impl IntoIterator<Item = u32>) {
        self.found.push(finding);
        self.bad_ranks.extend(blamed);
    }

    /// What the ranks report before they compute anything.
    pub(super) fn of_cards(&mut self, cards: &[CardReport]) {
        self.problems(
            "gpu-missing",
            "a rank without a GPU fails, and the others wait for it",
            cards.iter().map(|card| card.device.as_ref().err().cloned()),
        );
        self.problems(
            "nccl-missing",
            "the ranks exchange data between GPUs through NCCL",
            cards.iter().map(|card| card.nccl.as_ref().err().cloned()),
        );
        self.shared(cards);
        self.differ(cards);
        self.used(cards);
    }

    /// Two ranks on one device.
    fn shared(&mut self, cards: &[CardReport]) {
        let place: fn(&CardReport) -> Option<DeviceOfRank<'_>> = |card| {
            let device = card.device.as_ref().ok()?;
            Some((&*card.host, &*device.uuid, card.nccl_host_id.as_deref()))
        };
        for SharedDevice { uuid, ranks, refused } in shared_devices(cards.iter().map(place)) {
            let what = format!("{} use the same GPU, {uuid}", named(&ranks, self.hosts));
            let (severity, why, remedy) = match refused {
                None => (
                    Severity::Note,
                    "NCCL_HOSTID differs, so NCCL takes them for ranks of different hosts; they share the GPU's time",
                    "none is needed to test; to train, give each rank its own GPU",
                ),
                Some(_) => (
                    Severity::Error,
                    "NCCL refuses two ranks on one GPU",
                    "start as many ranks on each host as it has GPUs, and select the GPU by LOCAL_RANK; to test with fewer GPUs, give each rank another NCCL_HOSTID",
                ),
            };
            self.add(Finding::new(severity, "gpu-shared", what, why, remedy), []);
        }
    }

    /// Values that are not the same on all ranks.
    fn differ(&mut self, cards: &[CardReport]) {
        type Value = fn(&CardReport) -> Option<String>;
        let compared: [(Severity, &str, &str, Value, &str, &str); 3] = [
            (
                Severity::Error,
                "nccl-versions-differ",
                "NCCL",
                |card| card.nccl.clone().ok(),
                "NCCL refuses ranks with different versions",
                "install one version on all hosts, or put the same one first on LD_LIBRARY_PATH",
            ),
            (
                Severity::Warning,
                "gpu-drivers-differ",
                "the driver",
                |card| Some(card.device.as_ref().ok()?.driver.clone()),
                "programs for a newer CUDA start on some hosts and fail on others",
                "install one version of NVIDIA's driver on all hosts",
            ),
            (
                Severity::Warning,
                "gpu-models-differ",
                "the GPU",
                |card| Some(card.device.as_ref().ok()?.name.clone()),
                "the slowest or smallest GPU limits all ranks",
                "ask the scheduler for GPUs of one model",
            ),
        ];
        for (severity, code, what, value, why, remedy) in compared {
            let values = (0..).zip(cards).filter_map(|(rank, card)| Some((rank, value(card)?)));
            let mut values = grouped(values);
            if values.len() < 2 {
                continue;
            }
            // Those of the most ranks first.
            values.sort_by_key(|(_, ranks)| Reverse(ranks.len()));
            let list = values
                .iter()
                .map(|(value, ranks)| format!("{value} ({})", named(ranks, self.hosts)));
            let list = list.collect::<Vec<_>>().join("; ");
            let what = format!("{what} is not the same on all ranks: {list}");
            let fewer = values.into_iter().skip(1).flat_map(|(_, ranks)| ranks);
            self.add(Finding::new(severity, code, what, why, remedy), fewer);
        }
    }

    /// Devices that other programs use.
    fn used(&mut self, cards: &[CardReport]) {
        for (rank, card) in (0..).zip(cards) {
            let Ok(DeviceReport { uuid, memory_free, memory_total, .. }) = &card.device else {
                continue;
            };
            let used = memory_total.saturating_sub(*memory_free);
            // Ranks that share a GPU use its memory too.
            let others = cards
                .iter()
                .filter(|other| other.device.as_ref().is_ok_and(|other| other.uuid == *uuid));
            if others.count() > 1 || used as f64 <= USED * *memory_total as f64 {
                continue;
            }
            let what = format!(
                "another program uses {:.1} of {:.1} GB of the GPU of {}",
                used as f64 / 1e9,
                *memory_total as f64 / 1e9,
                named(&[rank], self.hosts)
            );
            let remedy = "look at `nvidia-smi` on that host, and end what is left from another job";
            let why = "a program that needs the whole memory fails, and the GPU's time is shared";
            self.add(Finding::warning("gpu-in-use", what, why, remedy), [rank]);
        }
    }

    /// What each GPU did by itself.
    pub(super) fn of_alone(&mut self, cards: &[CardReport], alone: &[Result<Alone, GpuError>]) {
        self.problems(
            "gpu-failed",
            "a GPU that cannot compute by itself fails in the program too",
            alone.iter().map(|own| own.as_ref().err().cloned()),
        );
        let wrong = |own: &Result<Alone, GpuError>| {
            let remedy = "leave the host out, and test its GPU with `dcgmi diag -r 3`";
            Some(GpuError::new(own.as_ref().ok()?.wrong.clone()?, remedy))
        };
        let why = "a training on this GPU is wrong, although nothing fails";
        self.problems("gpu-wrong", why, alone.iter().map(wrong));
        let shares = if self.compares { shares(cards, alone) } else { Vec::new() };
        for (rank, share) in shares.into_iter().enumerate() {
            let Some([product, copy]) = share.filter(|share| share.iter().any(|part| *part < SLOW))
            else {
                continue;
            };
            let rank = rank as u32;
            let what = format!(
                "the GPU of {} is slow: {:.0} % of the median in a matrix product, {:.0} % in copying its memory",
                named(&[rank], self.hosts),
                100.0 * product,
                100.0 * copy
            );
            let why = "the slowest GPU holds back every step of the whole job";
            let remedy = "look at `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,ECC` on that host for throttling and errors, or leave the host out";
            self.add(Finding::warning("gpu-slow", what, why, remedy), [rank]);
        }
    }

    /// How NCCL's ranks did in pairs: a rank that is slow with each neighbor, and otherwise the pair.
    pub(super) fn of_pairs(&mut self, pairs: &[PairSpeed]) {
        if !self.compares {
            return;
        }
        for is_between in [false, true] {
            let alike: Vec<_> =
                pairs.iter().filter(|pair| pair.between_hosts == is_between).collect();
            let of_rank = |rank: u32| alike.iter().filter(move |pair| pair.ranks.contains(&rank));
            let best = |rank| of_rank(rank).map(|pair| pair.gb_per_s).fold(0.0, f64::max);
            // In a ring of three, a slow rank is in most pairs, and most ranks have a fast one.
            let all: BTreeSet<u32> = alike.iter().flat_map(|pair| pair.ranks).collect();
            // The lower one of two: a few fast links do not make the other ones slow.
            let median = median(all.into_iter().map(best).collect(), true).unwrap_or_default();
            let is_slow = |pair: &PairSpeed| pair.gb_per_s < SLOW * median;
            let mut slow: Vec<&PairSpeed> =
                alike.iter().copied().filter(|pair| is_slow(pair)).collect();
            let mut ranks: BTreeSet<u32> = slow.iter().flat_map(|pair| pair.ranks).collect();
            ranks
                .retain(|&rank| of_rank(rank).count() > 1 && of_rank(rank).all(|own| is_slow(own)));
            for &rank in &ranks {
                let what = format!(
                    "{} is slow with all its neighbors: {:.2} GB/s (median {median:.2})",
                    named(&[rank], self.hosts),
                    best(rank)
                );
                self.slow_in_nccl("nccl-rank-slow", what, vec![rank]);
            }
            slow.retain(|pair| !pair.ranks.iter().any(|rank| ranks.contains(rank)));
            for pair in slow {
                let what = format!(
                    "{} are slow with each other: {:.2} GB/s (median {median:.2})",
                    named(&pair.ranks, self.hosts),
                    pair.gb_per_s
                );
                self.slow_in_nccl("nccl-pair-slow", what, Vec::new());
            }
        }
    }

    fn slow_in_nccl(&mut self, code: &'static str, what: String, blamed: Vec<u32>) {
        let why = "the slowest rank holds back every step of the whole job";
        let remedy = "look at the network adapter, the cable and the PCI link of the GPU there (`nvidia-smi topo -m`), or leave the host out";
        self.add(Finding::warning(code, what, why, remedy), blamed);
    }

    /// NCCL uses sockets although the hosts have InfiniBand.
    pub(super) fn of_network(&mut self, cards: &[CardReport], networks: &[Option<String>]) {
        let hosts: BTreeSet<_> = cards.iter().map(|card| &card.host).collect();
        let falls_back = |rank: &u32| {
            let rank = *rank as usize;
            networks[rank].as_deref() == Some("Socket") && !cards[rank].infiniband.is_empty()
        };
        let ranks: Vec<u32> = (0..).take(cards.len()).filter(falls_back).collect();
        let Some(&first) = ranks.first().filter(|_| hosts.len() > 1) else { return };
        let what = format!(
            "NCCL uses sockets on {}, although the host has {}",
            named(&ranks, self.hosts),
            cards[first as usize].infiniband.join(", ")
        );
        let why = "NCCL falls back without a word when it cannot use InfiniBand; sockets are 5 to 20 times slower";
        let remedy = "unset NCCL_IB_DISABLE, NCCL_NET and NCCL_IB_HCA; check that libibverbs is installed (in the container too), /dev/infiniband is there, and `ulimit -l` is unlimited";
        self.add(Finding::warning("nccl-sockets", what, why, remedy), []);
    }
}

/// Returns how fast each GPU is beside the median of its model: product and copy.
pub(super) fn shares(
    cards: &[CardReport],
    alone: &[Result<Alone, GpuError>],
) -> Vec<Option<Speed>> {
    let model = |rank: usize| cards[rank].device.as_ref().ok().map(|device| &device.name);
    let speed = |rank: usize| {
        let own = alone[rank].as_ref().ok()?;
        Some([own.products_per_s, own.copied_per_s])
    };
    let share_of = |rank: usize| {
        let alike = (0..alone.len()).filter(|&other| model(other) == model(rank));
        Some(share(speed(rank)?, medians(&alike.filter_map(speed).collect::<Vec<_>>())))
    };
    (0..alone.len()).map(share_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(host: &str, uuid: &str) -> CardReport {
        CardReport {
            host: host.to_owned(),
            device: Ok(DeviceReport {
                ordinal: 0,
                name: "NVIDIA H200".to_owned(),
                uuid: uuid.to_owned(),
                pci_address: "0000:17:00.0".to_owned(),
                numa_node: Some(0),
                memory_free: 149_000_000_000,
                memory_total: 150_000_000_000,
                compute_capability: "9.0".to_owned(),
                driver: "580.95".to_owned(),
            }),
            nccl: Ok("2.28.9".to_owned()),
            nccl_host_id: None,
            infiniband: Vec::new(),
        }
    }

    fn problem(what: &str) -> GpuError {
        GpuError::new(what, "do something")
    }

    /// The severities, codes and texts of what is found in these reports.
    fn found(cards: &[CardReport]) -> Vec<String> {
        let hosts: Vec<&str> = cards.iter().map(|card| card.host.as_str()).collect();
        let mut findings = Findings::new(&hosts, true);
        findings.of_cards(cards);
        texts(&findings)
    }

    fn texts(findings: &Findings<'_>) -> Vec<String> {
        let text =
            |Finding { severity, code, what, .. }: &Finding| format!("{severity} [{code}]: {what}");
        findings.found.iter().map(text).collect()
    }

    #[test]
    fn ranks_that_nccl_would_refuse_are_named_with_their_hosts_before_it_starts() {
        let sound = [card("a", "1"), card("a", "2"), card("b", "1"), card("b", "2")];
        assert_eq!(found(&sound), [""; 0]);
        let none = |host: &str| CardReport { device: Err(problem("no driver")), ..card(host, "") };
        assert_eq!(
            found(&[card("a", "1"), none("a"), none("b"), none("b")]),
            ["error [gpu-missing]: rank 1 on a, ranks 2-3 on b: no driver"]
        );
        assert_eq!(
            found(&[card("a", "1"), card("a", "1"), card("b", "1")]),
            ["error [gpu-shared]: ranks 0-1 on a use the same GPU, 1"]
        );
        let with_id = |id: &str| CardReport { nccl_host_id: Some(id.to_owned()), ..card("a", "1") };
        assert_eq!(
            found(&[with_id("h0"), with_id("h1")]),
            ["note [gpu-shared]: ranks 0-1 on a use the same GPU, 1"]
        );
        let nccl = |host: &str, version: &str| CardReport {
            nccl: Ok(version.to_owned()),
            ..card(host, host)
        };
        assert_eq!(
            found(&[nccl("a", "2.18.3"), nccl("b", "2.28.9"), nccl("c", "2.28.9")]),
            [
                "error [nccl-versions-differ]: NCCL is not the same on all ranks: 2.28.9 (rank 1 on b, \
              rank 2 on c); 2.18.3 (rank 0 on a)"
            ]
        );
        let without = CardReport { nccl: Err(problem("no libnccl.so.2")), ..card("b", "1") };
        assert_eq!(
            found(&[card("a", "1"), without]),
            ["error [nccl-missing]: rank 1 on b: no libnccl.so.2"]
        );
    }

    #[test]
    fn other_models_drivers_and_memory_in_use_are_warnings() {
        let mut other = card("b", "2");
        let device = other.device.as_mut().unwrap();
        device.name = "NVIDIA H100".to_owned();
        device.driver = "570.1".to_owned();
        device.memory_free = 100_000_000_000;
        assert_eq!(
            found(&[card("a", "1"), other, card("c", "3")]),
            [
                "warning [gpu-drivers-differ]: the driver is not the same on all ranks: 580.95 \
                 (rank 0 on a, rank 2 on c); 570.1 (rank 1 on b)",
                "warning [gpu-models-differ]: the GPU is not the same on all ranks: NVIDIA H200 \
                 (rank 0 on a, rank 2 on c); NVIDIA H100 (rank 1 on b)",
                "warning [gpu-in-use]: another program uses 50.0 of 150.0 GB of the GPU of rank 1 on b",
            ]
        );
    }

    fn alone(products_per_s: f64, copied_per_s: f64) -> Result<Alone, GpuError> {
        Ok(Alone { products_per_s, copied_per_s, wrong: None })
    }

    #[test]
    fn a_gpu_is_compared_with_those_of_its_model_only() {
        let mut cards = ["a", "b", "c", "d", "e"].map(|host| card(host, host));
        cards[4].device.as_mut().unwrap().name = "NVIDIA L4".to_owned();
        let usual = || alone(10.0, 10.0);
        let reports = [usual(), alone(6.9, 10.0), usual(), alone(10.0, 6.9), alone(1.0, 1.0)];
        let hosts = ["a", "b", "c", "d", "e"];
        let mut findings = Findings::new(&hosts, true);
        findings.of_alone(&cards, &reports);
        let slow = "% of the median in a matrix product";
        let what = |rank: u32, host: &str, product: u32, copy: u32| {
            format!(
                "warning [gpu-slow]: the GPU of rank {rank} on {host} is slow: {product} {slow}, \
                 {copy} % in copying its memory"
            )
        };
        assert_eq!(texts(&findings), [what(1, "b", 69, 100), what(3, "d", 100, 69)]);
        assert_eq!(findings.bad_hosts(), ["b", "d"]);
        assert_eq!(shares(&cards, &reports)[4], Some([1.0, 1.0]));
        let wrong = Alone { wrong: Some("number 7 is 1 in place of 2".into()), ..usual().unwrap() };
        let mut findings = Findings::new(&hosts, true);
        findings.of_alone(&cards[..2], &[Ok(wrong), Err(problem("it does not answer"))]);
        assert_eq!(
            texts(&findings),
            [
                "error [gpu-failed]: rank 1 on b: it does not answer",
                "error [gpu-wrong]: rank 0 on a: number 7 is 1 in place of 2",
            ]
        );
    }

    #[test]
    fn a_rank_that_is_slow_with_each_neighbor_is_told_from_a_slow_pair() {
        let pair =
            |one, other, gb_per_s| PairSpeed { ranks: [one, other], between_hosts: true, gb_per_s };
        let ring = |slow: fn(u32, u32) -> bool| {
            let speed = |one, other| if slow(one, other) { 1.0 } else { 10.0 };
            let pairs = (0..6_u32).map(|one| (one, (one + 1) % 6));
            let pairs: Vec<_> =
                pairs.map(|(one, other)| pair(one, other, speed(one, other))).collect();
            let hosts = ["a", "b", "c", "d", "e", "f"];
            let mut findings = Findings::new(&hosts, true);
            findings.of_pairs(&pairs);
            texts(&findings)
        };
        assert_eq!(ring(|_, _| false), [""; 0]);
        assert_eq!(
            ring(|one, other| one == 2 || other == 2),
            ["warning [nccl-rank-slow]: rank 2 on c is slow with all its neighbors: 1.00 GB/s \
              (median 10.00)"]
        );
        let mut findings = Findings::new(&["a", "b", "c"], true);
        findings.of_pairs(&[pair(0, 1, 1.0), pair(1, 2, 1.0), pair(2, 0, 10.0)]);
        assert_eq!(
            texts(&findings),
            ["warning [nccl-rank-slow]: rank 1 on b is slow with all its neighbors: 1.00 GB/s \
              (median 10.00)"]
        );
        assert_eq!(
            ring(|one, _| one == 2),
            [
                "warning [nccl-pair-slow]: rank 2 on c, rank 3 on d are slow with each other: 1.00 GB/s \
              (median 10.00)"
            ]
        );
    }

    #[test]
    fn sockets_between_hosts_with_infiniband_are_found() {
        let with =
            |host: &str| CardReport { infiniband: vec!["mlx5_0:1".into()], ..card(host, "1") };
        let found = |cards: &[CardReport], network: &str| {
            let hosts: Vec<&str> = cards.iter().map(|card| card.host.as_str()).collect();
            let mut findings = Findings::new(&hosts, true);
            let networks: Vec<_> = cards.iter().map(|_| Some(network.to_owned())).collect();
            findings.of_network(cards, &networks);
            texts(&findings)
        };
        assert_eq!(
            found(&[with("a"), with("b")], "Socket"),
            [
                "warning [nccl-sockets]: NCCL uses sockets on rank 0 on a, rank 1 on b, although the \
              host has mlx5_0:1"
            ]
        );
        assert_eq!(found(&[with("a"), with("b")], "IB"), [""; 0]);
        assert_eq!(found(&[with("a"), with("a")], "Socket"), [""; 0]);
        assert_eq!(found(&[card("a", "1"), card("b", "1")], "Socket"), [""; 0]);
    }
}
