//! Open MPI 4: which of the hosts with a daemon has rank 0.
//!
//! mpirun is daemon 0, and starts the others in the order of its host list, in which its own host
//! comes first. Without a rankfile, it fills the hosts with ranks in that order. So rank 0 is on the
//! host of daemon 0, or on that of daemon 1 if mpirun's host has no ranks: a login node, or the
//! launcher's pod of Kubeflow's MPI Operator. No variable tells which. A rank on another host finds
//! out by its own number: in a list of three hosts of which two have ranks, a rank on the host of
//! daemon 2 proves that daemon 0 has none. [ORTE](https://github.com/open-mpi/ompi/tree/v4.1.x/orte/mca)
//! has the code: `regx` writes the list, and `rmaps` fills the hosts.

use std::borrow::Cow;
use std::num::NonZeroU32;

use crate::environment::Environment;
use crate::hostlist::Hostlist;

/// No job has as many hosts.
const MOST_HOSTS: u64 = 1 << 20;
/// Variables that show that ranks are not placed in the order of the hosts.
const PLACED_BY_HAND: [&str; 2] = ["OMPI_MCA_orte_rankfile", "OMPI_MCA_rmaps_rank_file_path"];
/// Which of its components places the ranks. Users name `seq`, which follows a list.
const COMPONENT: &str = "OMPI_MCA_rmaps";
/// How ranks are numbered, if not by the places in order.
const RANKING: &str = "OMPI_MCA_rmaps_base_ranking_policy";
/// How ranks are placed.
const MAPPING: &str = "OMPI_MCA_rmaps_base_mapping_policy";
const BY_NODE: &str = "OMPI_MCA_rmaps_base_bynode";

/// The hosts that have a daemon.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Daemons {
    pub count: u32,
    /// The host of daemon 1.
    pub first_remote: Option<String>,
}

impl Daemons {
    /// Reads a list such as `nodeC,[2:10].77.0.1,gpu[2:1-2,5]@0,2(3),1`: hosts, of which brackets
    /// have the numbers and their digits, and after the last `@` the number of each one's daemon, or
    /// the first and how many.
    pub(super) fn read(regex: &str) -> Option<Daemons> {
        let (names, numbers) = regex.rsplit_once('@')?;
        let mut daemons: Vec<u32> = Vec::new();
        for range in numbers.split(',') {
            let (first, count) = range.split_once('(').unwrap_or((range, "1)"));
            let first: u32 = first.parse().ok()?;
            let count: u32 = count.strip_suffix(')')?.parse().ok()?;
            let last = first.checked_add(count)?;
            if daemons.len() as u64 + u64::from(count) > MOST_HOSTS {
                return None;
            }
            daemons.extend(first..last);
        }
        let position = daemons.iter().position(|daemon| *daemon == 1);
        let first_remote = position.and_then(|position| name_at(names, position));
        Some(Daemons { count: u32::try_from(daemons.len()).ok()?, first_remote })
    }
}

/// Returns the host at a position of the list. Slurm's lists have the same form but for the digits,
/// which are those of a range's first number there.
fn name_at(names: &str, position: usize) -> Option<String> {
    let mut parts = names.split('[');
    let mut list = parts.next()?.to_owned();
    for part in parts {
        let (inner, after) = part.split_once(']')?;
        let (digits, ranges) = inner.split_once(':')?;
        let digits = digits.parse().ok().filter(|digits| *digits < 20)?;
        let padded = |range: &str| {
            let (first, rest) = range.split_at(range.find('-').unwrap_or(range.len()));
            Some(format!("{:0digits$}{rest}", first.parse::<u64>().ok()?))
        };
        let ranges: Vec<_> = ranges.split(',').map(padded).collect::<Option<_>>()?;
        list += &format!("[{}]{after}", ranges.join(","));
    }
    let hosts = Hostlist::parse(&list).ok()?;
    hosts.iter().nth(position).map(Cow::into_owned)
}

/// A rank on a host whose daemon is not mpirun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub rank: u32,
    pub size: u32,
    pub local_rank: u32,
    pub local_size: u32,
    /// The number of this host's daemon. Daemon 0 is mpirun.
    pub daemon: NonZeroU32,
    /// How many hosts have ranks.
    pub nodes: u32,
}

/// Returns whether ranks are placed by a list of the user's, so that the numbers tell nothing.
pub(super) fn are_placed_by_hand(environment: &Environment) -> bool {
    PLACED_BY_HAND.iter().any(|name| environment.is_set(name))
        || environment.text(COMPONENT).is_some_and(|names| names.split(',').any(|it| it == "seq"))
}

/// Returns whether mpirun's host, of more hosts with a daemon than with ranks, has no ranks.
/// `None` if that cannot be seen from here.
pub(super) fn mpirun_is_alone(seen: Seen, environment: &Environment) -> Option<bool> {
    let Seen { rank, size, local_rank, local_size, nodes, .. } = seen;
    let daemon = seen.daemon.get();
    // Daemons 0 to nodes - 1 have the ranks, or daemons 1 to nodes.
    if rank == 0 || daemon >= nodes {
        return Some(true);
    }
    if environment.is_set(RANKING) {
        return None;
    }
    // How many hosts with ranks are before this one, if mpirun's has none, and if it has some.
    let (without, with) = (daemon - 1, daemon);
    let is_by_node = environment.is_set(BY_NODE)
        || environment.text(MAPPING).is_some_and(|it| it.split([':', ',']).next() == Some("node"));
    if is_by_node {
        return by_node(seen);
    }
    // The ranks of a host follow each other, and each host with ranks has at least one.
    let before = rank.checked_sub(local_rank)?;
    let after = size.checked_sub(before)?.checked_sub(local_size)?;
    let can_be = |index: u32| {
        let others = nodes - 1 - index;
        let has_first = if index == 0 { before == 0 } else { before >= index };
        has_first && if others == 0 { after == 0 } else { after >= others }
    };
    if can_be(without) != can_be(with) {
        return Some(can_be(without));
    }
    // Usually, all hosts but the last have as many ranks as this one.
    let all = u64::from(nodes) * u64::from(local_size);
    let is_full = all - u64::from(local_size) < u64::from(size) && u64::from(size) <= all;
    let is = |index: u32| can_be(index) && is_full && before == index * local_size;
    either(is(without), is(with))
}

/// The same for hosts that get a rank each in turn, until they are full.
fn by_node(seen: Seen) -> Option<bool> {
    let Seen { rank, size, local_rank, local_size, nodes, .. } = seen;
    let daemon = seen.daemon.get();
    // How many ranks precede this one if this host is the first or the second of two.
    if nodes == 2 {
        let other = size.checked_sub(local_size)?;
        let place = |ahead: u32| local_rank + other.min(local_rank + ahead);
        return either(rank == place(0), rank == place(1));
    }
    // Full hosts only lower the rank of a host's later ranks.
    let before = u64::from(local_rank) * u64::from(nodes);
    let index = u64::from(rank).checked_sub(before)?;
    either(index < u64::from(daemon) && local_rank == 0, index == u64::from(daemon))
}

fn either(alone: bool, not: bool) -> Option<bool> {
    (alone != not).then_some(alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_hosts_is_read_as_ortes_code_writes_it() {
        for (regex, count, first) in [
            ("nodeA,nodeB,nodeC@0(3)", 3, Some("nodeB")),
            ("nodeC,[2:10].77.0.1,[2:10].77.0.2@0(3)", 3, Some("10.77.0.1")),
            ("nodeA,gpu[2:1-2]@0(3)", 3, Some("gpu01")),
            ("login,gpu[3:7,9-11].site@0(5)", 5, Some("gpu007.site")),
            ("gpu[2:8-11]@0(4)", 4, Some("gpu09")),
            // With a rankfile.
            ("nodeA,nodeC,nodeB@0,2,1", 3, Some("nodeB")),
            ("nodeA@0", 1, None),
            ("nodeA,nodeB@0,2", 2, None),
        ] {
            let first_remote = first.map(str::to_owned);
            assert_eq!(Daemons::read(regex), Some(Daemons { count, first_remote }), "{regex}");
        }
        for bad in
            ["", "nodeA", "nodeA@", "nodeA@x", "a@0(", "a@0(1", "a@4294967295(2)", "a@0(99999999)"]
        {
            assert_eq!(Daemons::read(bad), None, "{bad}");
        }
        for torn in
            ["a,b[2:1-@0(2)", "a,b]@0(2)", "a,b[x:1]@0(2)", "a,b[2:9-1]@0(2)", "a@0(2)", ",@0(2)"]
        {
            assert_eq!(Daemons::read(torn).and_then(|it| it.first_remote), None, "{torn}");
        }
    }

    /// Places ranks as mpirun does, and returns what each sees: the host's number and its ranks.
    fn job(slots: &[u32], size: u32, by_node: bool) -> Vec<(u32, u32, u32)> {
        let mut used = vec![0; slots.len()];
        let mut places = Vec::new();
        while (places.len() as u32) < size {
            for (host, slots) in slots.iter().enumerate() {
                let free = slots - used[host];
                let count = if by_node { free.min(1) } else { free };
                for _ in 0..count.min(size - places.len() as u32) {
                    places.push((host as u32, used[host]));
                    used[host] += 1;
                }
            }
        }
        places.into_iter().map(|(host, local)| (host, local, used[host as usize])).collect()
    }

    /// Which answers the ranks of a job give that are not on mpirun's host.
    fn answers(idle: bool, slots: &[u32], size: u32, by_node: bool) -> Vec<Option<bool>> {
        let places = job(slots, size, by_node);
        let nodes = places.iter().map(|place| place.0).max().unwrap() + 1;
        let vars = if by_node { vec![(MAPPING, "node")] } else { Vec::new() };
        let environment = Environment::from_vars(vars);
        let seen =
            places.iter().enumerate().filter_map(|(rank, &(host, local_rank, local_size))| {
                let daemon = NonZeroU32::new(host + u32::from(idle))?;
                Some(Seen { rank: rank as u32, size, local_rank, local_size, daemon, nodes })
            });
        seen.map(|seen| mpirun_is_alone(seen, &environment)).collect()
    }

    #[test]
    fn every_rank_of_equal_hosts_sees_whether_mpiruns_has_ranks() {
        for by_node in [false, true] {
            for (hosts, slots) in [(2, 1), (2, 2), (3, 1), (3, 4), (5, 2), (8, 8)] {
                let all = vec![slots; hosts];
                let size = hosts as u32 * slots;
                let idle = answers(true, &all, size, by_node);
                if !by_node || hosts == 2 {
                    assert!(
                        idle.iter().all(|it| *it == Some(true)),
                        "{hosts} of {slots}: {idle:?}"
                    );
                }
                // The last of the hosts is empty.
                let more = vec![slots; hosts + 1];
                if !by_node {
                    let busy = answers(false, &more, size, by_node);
                    assert!(
                        busy.iter().all(|it| *it == Some(false)),
                        "{hosts} of {slots}: {busy:?}"
                    );
                }
            }
        }
    }

    proptest::proptest! {
        /// Hosts may differ: a rank that cannot see it says so, and no other is wrong.
        #[test]
        fn no_rank_of_two_or_three_hosts_is_wrong(
            slots in proptest::collection::vec(1_u32..5, 2..4), less in 0_u32..4, by_node: bool,
        ) {
            let size = slots.iter().sum::<u32>() - less.min(slots[slots.len() - 1] - 1);
            for answer in answers(true, &slots, size, by_node) {
                assert_ne!(answer, Some(false), "{slots:?}, {size} ranks");
            }
            // By node, no host stays empty while others get a second rank.
            let more = if by_node { slots.clone() } else { [&slots[..], &[4]].concat() };
            for answer in answers(false, &more, size, by_node) {
                assert_ne!(answer, Some(true), "{slots:?}, {size} ranks");
            }
        }
    }
}
