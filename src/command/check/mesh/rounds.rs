//! Who measures with whom, and when: rounds of pairs in which every host has one partner at most.

/// Up to this number, every host meets all others. Above, each meets a few.
pub(super) const MOST_COMPLETE: usize = 64;
/// How many more hosts are met by one whose connections are slow.
const MORE: usize = 3;

/// Two hosts, the lower one first.
pub(super) type Pair = (usize, usize);

/// The rounds of a job of this many hosts.
pub(super) fn rounds(hosts: usize) -> Vec<Vec<Pair>> {
    let circle = hosts + hosts % 2;
    let all = circle.saturating_sub(1);
    if hosts <= MOST_COMPLETE {
        return (0..all).map(|round| round_of(hosts, round)).collect();
    }
    // Neighboring rounds together connect all hosts. The distance then doubles, so that two hosts
    // rarely have several partners in common.
    let count = hosts.next_power_of_two().ilog2();
    let chosen = [0].into_iter().chain((0..count - 1).map(|exponent| 1 << exponent));
    chosen.map(|round| round_of(hosts, round)).collect()
}

/// One round of the circle method: one place stays, and the others move on by one in each round.
fn round_of(hosts: usize, round: usize) -> Vec<Pair> {
    let circle = hosts + hosts % 2;
    let moving = circle - 1;
    let place = |at: usize| if at == 0 { moving } else { (round + at - 1) % moving };
    let pairs = (0..circle / 2).map(|at| ordered(place(at), place(circle - 1 - at)));
    // With an odd number, the host whose partner does not exist rests.
    pairs.filter(|&(_, second)| second < hosts).collect()
}

fn ordered(one: usize, other: usize) -> Pair {
    (one.min(other), one.max(other))
}

/// Distributes pairs over as few rounds as a simple rule finds.
pub(crate) fn disjoint<T: Copy + PartialEq>(pairs: &[(T, T)]) -> Vec<Vec<(T, T)>> {
    let mut rounds: Vec<Vec<(T, T)>> = Vec::new();
    for &(first, second) in pairs {
        let is_busy = |round: &Vec<(T, T)>| {
            round.iter().any(|&(a, b)| [a, b].iter().any(|one| [first, second].contains(one)))
        };
        match rounds.iter_mut().find(|round| !is_busy(round)) {
            Some(round) => round.push((first, second)),
            None => rounds.push(vec![(first, second)]),
        }
    }
    rounds
}

/// The pairs to measure again, and in a large job also new partners for the hosts that stand out,
/// so that a slow host can be told from a slow cable. The last time there are no new partners,
/// because what other load does to them could not be measured again.
pub(super) fn again(hosts: usize, standing_out: &[Pair], met: &[Pair], is_last: bool) -> Vec<Pair> {
    let mut often = vec![0; hosts];
    let mut pairs: Vec<Pair> = Vec::new();
    for &(first, second) in standing_out {
        // A host that is slow stands out in all of its pairs.
        if often[first] < MORE || often[second] < MORE {
            often[first] += 1;
            often[second] += 1;
            pairs.push((first, second));
        }
    }
    if hosts <= MOST_COMPLETE || is_last {
        return pairs;
    }
    let suspects: Vec<usize> = (0..hosts).filter(|&host| often[host] > 0).collect();
    for &suspect in &suspects {
        let others = (1..hosts).map(|step| (suspect + step * (hosts / 3 + 1)) % hosts);
        let is_new = |&other: &usize| {
            let pair = ordered(suspect, other);
            other != suspect && often[other] == 0 && !met.contains(&pair) && !pairs.contains(&pair)
        };
        let new: Vec<_> = others.filter(is_new).take(MORE).collect();
        pairs.extend(new.into_iter().map(|other| ordered(suspect, other)));
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn assert_disjoint(rounds: &[Vec<Pair>], hosts: usize) {
        for round in rounds {
            let busy: BTreeSet<_> = round.iter().flat_map(|&(a, b)| [a, b]).collect();
            assert_eq!(busy.len(), 2 * round.len(), "{round:?}");
            assert!(busy.iter().all(|&host| host < hosts));
            assert!(round.iter().all(|&(first, second)| first < second));
        }
    }

    #[test]
    fn up_to_64_hosts_every_pair_meets_once_in_as_few_rounds_as_possible() {
        for hosts in 0..=MOST_COMPLETE {
            let rounds = rounds(hosts);
            assert_disjoint(&rounds, hosts);
            let pairs: Vec<_> = rounds.iter().flatten().collect();
            let different: BTreeSet<_> = pairs.iter().collect();
            assert_eq!(
                (pairs.len(), different.len()),
                (hosts * hosts.saturating_sub(1) / 2, pairs.len())
            );
            assert_eq!(rounds.len(), (hosts + hosts % 2).saturating_sub(1));
        }
    }

    #[test]
    fn above_64_hosts_each_meets_log2_others_and_all_are_connected() {
        for hosts in [65, 66, 100, 127, 128, 129, 511, 512, 513, 1000, 4097] {
            let rounds = rounds(hosts);
            assert_disjoint(&rounds, hosts);
            let log2 = hosts.next_power_of_two().ilog2() as usize;
            assert_eq!(rounds.len(), log2);
            let pairs: BTreeSet<_> = rounds.iter().flatten().copied().collect();
            assert_eq!(pairs.len(), rounds.iter().map(Vec::len).sum::<usize>());
            let mut partners = vec![Vec::new(); hosts];
            for &(a, b) in &pairs {
                partners[a].push(b);
                partners[b].push(a);
            }
            assert!(partners.iter().all(|partners| partners.len() + 1 >= log2));
            let mut reached = BTreeSet::from([0]);
            let mut next = vec![0];
            while let Some(host) = next.pop() {
                next.extend(partners[host].iter().filter(|&&other| reached.insert(other)));
            }
            assert_eq!(reached.len(), hosts);
        }
    }

    proptest! {
        #[test]
        fn any_pairs_become_disjoint_rounds(pairs in prop::collection::btree_set((0..40usize, 0..40usize), 0..80)) {
            let pairs: Vec<_> = pairs.into_iter().filter(|(a, b)| a < b).collect();
            let rounds = disjoint(&pairs);
            assert_disjoint(&rounds, 40);
            let mut all: Vec<_> = rounds.into_iter().flatten().collect();
            all.sort_unstable();
            prop_assert_eq!(all, pairs);
        }

        #[test]
        fn a_host_that_stands_out_in_a_large_job_meets_three_more(hosts in 65..600usize, slow in 0..65usize) {
            let met: Vec<_> = rounds(hosts).concat();
            let of_slow: Vec<_> = met.iter().copied().filter(|&(a, b)| a == slow || b == slow).collect();
            let again = again(hosts, &of_slow, &met, false);
            let new = again.iter().filter(|pair| !met.contains(pair));
            let new: Vec<_> = new.filter(|&&(a, b)| a == slow || b == slow).collect();
            prop_assert_eq!(new.len(), MORE);
        }
    }
}
