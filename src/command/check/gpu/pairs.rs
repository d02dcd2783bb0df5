//! Which ranks measure with each other, two at a time, to tell a rank from a path.

use std::collections::BTreeMap;

/// Pairs of ranks that measure at the same time.
pub(super) type Round = Vec<(u32, u32)>;

/// Returns rounds in which each rank meets its two neighbors: first those of its host, then the
/// ranks with the same place on the hosts before and after. `hosts`: the host of each rank.
///
/// The pairs of one round have no rank in common, and all are within hosts or all between hosts, so
/// that only like is compared with like.
pub(super) fn rounds(hosts: &[&str]) -> Vec<(bool, Round)> {
    let mut of_host: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    let mut columns: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for (rank, host) in (0..).zip(hosts) {
        let members = of_host.entry(host).or_default();
        columns.entry(members.len()).or_default().push(rank);
        members.push(rank);
    }
    let within = merged(of_host.into_values()).into_iter().map(|round| (false, round));
    let between = merged(columns.into_values()).into_iter().map(|round| (true, round));
    within.chain(between).collect()
}

/// Lets all rings measure at the same time.
fn merged(rings: impl Iterator<Item = Vec<u32>>) -> Vec<Round> {
    let mut rounds: Vec<Round> = Vec::new();
    for ring in rings {
        for (at, round) in ring_rounds(&ring).into_iter().enumerate() {
            if rounds.len() <= at {
                rounds.push(Vec::new());
            }
            rounds[at].extend(round);
        }
    }
    rounds
}

/// The neighbors in a ring, in two rounds, or three if their number is odd.
fn ring_rounds(ring: &[u32]) -> Vec<Round> {
    let count = ring.len();
    let pair = |at: usize| (ring[at], ring[(at + 1) % count]);
    let starting = |first: usize| (first..count - 1).step_by(2).map(pair).collect::<Round>();
    let mut rounds = match count {
        0 | 1 => return Vec::new(),
        2 => vec![starting(0)],
        _ => vec![starting(0), starting(1)],
    };
    // The last one and the first one.
    if count > 2 {
        match count % 2 {
            0 => rounds[1].push(pair(count - 1)),
            _ => rounds.push(vec![pair(count - 1)]),
        }
    }
    rounds
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
