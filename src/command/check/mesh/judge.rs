//! What stands out in the measurements: hosts, pairs of hosts, and clocks.

use std::collections::VecDeque;

use super::measure::Measured;
use super::rounds::Pair;
use crate::command::check::measurement::median;

/// Below this part of the median rate, a rate is low.
const LOW: f64 = 0.5;
/// Above this multiple of the median round trip, a round trip is long.
const LONG: f64 = 3.0;
/// A round trip is long only if it takes so much longer than the median, in seconds. Less is often
/// the operating system's doing.
const LONGER: f64 = 250e-6;
/// So many seconds may clocks differ.
const LATE: f64 = 1.0;

/// What is known of two hosts.
#[derive(Clone, Debug)]
pub(super) struct Between {
    pub hosts: Pair,
    /// The best values of all attempts, as the first host sees them.
    pub measured: Option<Measured>,
    /// Why the hosts connected and then did not measure.
    pub broken: Option<String>,
    /// Whether the first host has reached the second one, and the other way around.
    pub reached: [bool; 2],
    /// Where each of them tried in vain to connect to, and why it failed.
    pub tried: [Vec<String>; 2],
}

impl Between {
    pub(super) fn new(hosts: Pair) -> Between {
        let tried = [Vec::new(), Vec::new()];
        Between { hosts, measured: None, broken: None, reached: [false; 2], tried }
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.reached != [true; 2]
    }

    fn is_broken(&self) -> bool {
        !self.is_blocked() && self.measured.is_none()
    }

    /// Where the hosts tried in vain to connect to.
    pub(super) fn unreached(&self) -> impl Iterator<Item = &str> {
        let sides = self.tried.iter().zip(self.reached).filter(|(_, reached)| !reached);
        sides.flat_map(|(tried, _)| tried).map(String::as_str)
    }

    pub(super) fn has(&self, host: usize) -> bool {
        self.hosts.0 == host || self.hosts.1 == host
    }
}

/// Something that stands out. Hosts are numbers; a pair is its place in what was judged.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fault {
    /// No host can connect to this one, or this one to no other.
    BlockedHost(usize),
    BlockedPair(usize),
    /// The hosts connect, but what they send does not arrive.
    BrokenPair(usize),
    SlowHost(usize),
    SlowPair(usize),
    /// This host's clock is ahead of the others by so many seconds. Of only two hosts, it is the
    /// second's.
    Clock(usize, f64),
}

/// The rate and the round trip that are usual for a host or for all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Usual {
    pub rate: f64,
    pub round_trip: f64,
}

impl Usual {
    /// The median of each. Of an even number, it is the better one in the middle, so that one bad
    /// connection of two does not make a host bad.
    fn of(all: &[Usual]) -> Option<Usual> {
        let values = |value: fn(&Usual) -> f64| all.iter().map(value).collect();
        let rate = median(values(|usual| usual.rate), false)?;
        Some(Usual { rate, round_trip: median(values(|usual| usual.round_trip), true)? })
    }

    pub(super) fn is_low(self, than: Usual) -> bool {
        self.rate < LOW * than.rate
    }

    pub(super) fn is_long(self, than: Usual) -> bool {
        self.round_trip > (LONG * than.round_trip).max(than.round_trip + LONGER)
    }

    fn is_bad(self, than: Usual) -> bool {
        self.is_low(than) || self.is_long(than)
    }
}

impl From<Measured> for Usual {
    fn from(measured: Measured) -> Usual {
        Usual { rate: measured.rate(), round_trip: measured.round_trip }
    }
}

/// What is usual for each host, and for all hosts.
#[derive(Clone, Debug)]
pub(super) struct Medians {
    /// `None` for a host without measurements.
    pub of_hosts: Vec<Option<Usual>>,
    pub of_all: Option<Usual>,
}

impl Medians {
    pub(super) fn new(hosts: usize, all: &[Between]) -> Medians {
        let mut of_hosts = vec![Vec::new(); hosts];
        for between in all {
            for host in [between.hosts.0, between.hosts.1] {
                of_hosts[host].extend(between.measured.map(Usual::from));
            }
        }
        let of_hosts: Vec<_> = of_hosts.iter().map(|own| Usual::of(own)).collect();
        let known: Vec<Usual> = of_hosts.iter().copied().flatten().collect();
        Medians { of_all: Usual::of(&known), of_hosts }
    }
}

/// The pairs that stand out so far, and that are worth measuring again.
pub(super) fn standing_out(hosts: usize, all: &[Between], only_blocked: bool) -> Vec<Pair> {
    let usual = Medians::new(hosts, all).of_all.filter(|_| hosts > 2 && !only_blocked);
    let is_bad = |between: &&Between| {
        let measured = between.measured.map(Usual::from);
        let is_slow = measured.zip(usual).is_some_and(|(own, usual)| own.is_bad(usual));
        between.is_blocked() || between.is_broken() || is_slow
    };
    all.iter().filter(is_bad).map(|between| between.hosts).collect()
}

/// Returns what stands out, each under the name of what causes it: a host, if most of its
/// connections do, and otherwise a pair.
pub(super) fn judge(hosts: usize, all: &[Between]) -> Vec<Fault> {
    let mut faults = blocked(hosts, all);
    let is_broken = |(at, between): (usize, &Between)| between.is_broken().then_some(at);
    faults.extend(all.iter().enumerate().filter_map(is_broken).map(Fault::BrokenPair));
    faults.extend(slow(hosts, all));
    faults.extend(clocks(hosts, all));
    faults
}

fn blocked(hosts: usize, all: &[Between]) -> Vec<Fault> {
    let is_cut_off = |&host: &usize| {
        let mut own = all.iter().filter(|between| between.has(host)).peekable();
        hosts > 2 && own.peek().is_some() && own.all(Between::is_blocked)
    };
    let cut_off = (0..hosts).filter(is_cut_off).collect();
    blame(all, cut_off, Between::is_blocked, Fault::BlockedHost, Fault::BlockedPair)
}

/// Blames these hosts, and the bad pairs to which none of them belongs.
fn blame(
    all: &[Between],
    hosts: Vec<usize>,
    is_bad: impl Fn(&Between) -> bool,
    of_host: fn(usize) -> Fault,
    of_pair: fn(usize) -> Fault,
) -> Vec<Fault> {
    let is_others = |pair: &Between| is_bad(pair) && !hosts.iter().any(|&host| pair.has(host));
    let pairs = all.iter().enumerate().filter(|(_, pair)| is_others(pair));
    let pairs: Vec<Fault> = pairs.map(|(at, _)| of_pair(at)).collect();
    hosts.into_iter().map(of_host).chain(pairs).collect()
}

fn slow(hosts: usize, all: &[Between]) -> Vec<Fault> {
    let Medians { of_hosts, of_all } = Medians::new(hosts, all);
    // Two hosts have one pair, and nothing to compare it with.
    let Some(usual) = of_all.filter(|_| hosts > 2) else { return Vec::new() };
    let measured = |host: usize| {
        all.iter().filter(|between| between.has(host) && between.measured.is_some()).count()
    };
    let is_slow = |own: &Option<Usual>| own.is_some_and(|own| own.is_bad(usual));
    let slow = (0..hosts).filter(|&host| is_slow(&of_hosts[host]) && measured(host) > 1).collect();
    let is_slow_pair = |between: &Between| is_slow(&between.measured.map(Usual::from));
    blame(all, slow, is_slow_pair, Fault::SlowHost, Fault::SlowPair)
}

/// Returns by how much each host's clock is ahead of the first host's, and how exact that is, for
/// all hosts that measurements connect with it.
fn offsets(hosts: usize, all: &[Between]) -> Vec<Option<(f64, f64)>> {
    let mut neighbors = vec![Vec::new(); hosts];
    for between in all {
        let Some(measured) = between.measured else { continue };
        let (first, second) = between.hosts;
        neighbors[first].push((second, measured));
        neighbors[second].push((first, measured.reversed()));
    }
    let mut offsets = vec![None; hosts];
    let mut next = VecDeque::from([(0, (0.0, 0.0))]);
    while let Some((host, (offset, error))) = next.pop_front() {
        // The way over the fewest hosts counts.
        let Some(unknown @ None) = offsets.get_mut(host) else { continue };
        *unknown = Some((offset, error));
        next.extend(neighbors[host].iter().map(|&(other, measured): &(_, Measured)| {
            (other, (offset + measured.clock, error + measured.clock_error))
        }));
    }
    offsets
}

/// By how much each host's clock is ahead of the median.
pub(super) fn clocks_of(hosts: usize, all: &[Between]) -> Vec<Option<(f64, f64)>> {
    let offsets = offsets(hosts, all);
    let mut known: Vec<(f64, f64)> = offsets.iter().flatten().copied().collect();
    known.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let (median, inexact) =
        known.get(known.len().saturating_sub(1) / 2).copied().unwrap_or_default();
    let from_median = |(offset, error): (f64, f64)| (offset - median, error + inexact);
    offsets.into_iter().map(|own| own.map(from_median)).collect()
}

fn clocks(hosts: usize, all: &[Between]) -> Vec<Fault> {
    let is_off = |&(ahead, error): &(f64, f64)| ahead.abs() - error > LATE;
    let ahead = if hosts == 2 { offsets(hosts, all) } else { clocks_of(hosts, all) };
    let off = |(host, own): (usize, Option<(f64, f64)>)| {
        own.filter(is_off).map(|(ahead, _)| Fault::Clock(host, ahead))
    };
    ahead.into_iter().enumerate().filter_map(off).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::check::mesh::rounds;

    const FAST: f64 = 1.25e9;
    const NEAR: f64 = 50e-6;

    fn measured(rate: f64, round_trip: f64) -> Measured {
        let (clock, clock_error) = (0.0, round_trip / 2.0);
        Measured { round_trip, clock, clock_error, there: rate, back: rate, both: rate }
    }

    /// All pairs of a complete job, with what `of` says of each; `None` is blocked.
    fn job(hosts: usize, of: impl Fn(usize, usize) -> Option<Measured>) -> Vec<Between> {
        let pairs = rounds::rounds(hosts).concat();
        pairs.into_iter().map(|pair| between(pair, of(pair.0, pair.1))).collect()
    }

    fn between(hosts: Pair, measured: Option<Measured>) -> Between {
        Between { measured, reached: [measured.is_some(); 2], ..Between::new(hosts) }
    }

    fn place(all: &[Between], pair: Pair) -> usize {
        all.iter().position(|between| between.hosts == pair).unwrap()
    }

    #[test]
    fn one_host_or_pair_of_three_to_twenty_is_named_as_itself() {
        let fast = measured(FAST, NEAR);
        for hosts in 3..=20 {
            assert_eq!(judge(hosts, &job(hosts, |_, _| Some(fast))), []);
            for bad in 0..hosts {
                for slow in [measured(FAST / 10.0, NEAR), measured(FAST, NEAR * 200.0)] {
                    let all =
                        job(hosts, |a, b| Some(if a == bad || b == bad { slow } else { fast }));
                    assert_eq!(judge(hosts, &all), [Fault::SlowHost(bad)], "{hosts} hosts");
                    let other = (bad + 1) % hosts;
                    let pair = (bad.min(other), bad.max(other));
                    let all = job(hosts, |a, b| Some(if (a, b) == pair { slow } else { fast }));
                    assert_eq!(judge(hosts, &all), [Fault::SlowPair(place(&all, pair))], "{hosts}");
                    let all = job(hosts, |a, b| ((a, b) != pair).then_some(fast));
                    assert_eq!(judge(hosts, &all), [Fault::BlockedPair(place(&all, pair))]);
                }
                let all = job(hosts, |a, b| (a != bad && b != bad).then_some(fast));
                assert_eq!(judge(hosts, &all), [Fault::BlockedHost(bad)], "{hosts} hosts");
            }
        }
    }

    #[test]
    fn a_late_clock_is_named_whichever_host_has_it() {
        for hosts in [3, 4, 5, 65, 512] {
            for late in [0, 1, hosts / 2, hosts - 1] {
                let clock = |host: usize| if host == late { -3.0 } else { 0.0 };
                let all = job(hosts, |a, b| {
                    Some(Measured { clock: clock(b) - clock(a), ..measured(FAST, NEAR) })
                });
                assert_eq!(judge(hosts, &all), [Fault::Clock(late, -3.0)], "{hosts} hosts");
            }
        }
        let all = job(2, |_, _| Some(Measured { clock: 3.0, ..measured(FAST, NEAR) }));
        assert_eq!(judge(2, &all), [Fault::Clock(1, 3.0)]);
    }

    #[test]
    fn a_clock_that_is_not_known_so_exactly_is_not_late() {
        let all =
            job(3, |_, _| Some(Measured { clock: 1.5, clock_error: 0.6, ..measured(FAST, NEAR) }));
        assert_eq!(judge(3, &all), []);
    }

    #[test]
    fn two_hosts_have_nothing_to_be_compared_with() {
        assert_eq!(judge(2, &job(2, |_, _| Some(measured(1.0, 1.0)))), []);
        assert_eq!(judge(2, &job(2, |_, _| None)), [Fault::BlockedPair(0)]);
        assert_eq!(judge(1, &[]), []);
    }

    #[test]
    fn small_differences_in_time_are_not_long() {
        let all = job(4, |a, _| Some(measured(FAST, if a == 0 { NEAR * 5.0 } else { NEAR })));
        assert_eq!(judge(4, &all), []);
    }

    #[test]
    fn a_pair_that_connects_and_does_not_measure_is_broken() {
        let mut all = job(4, |_, _| Some(measured(FAST, NEAR)));
        all[2] = Between { reached: [true; 2], ..Between::new(all[2].hosts) };
        assert_eq!(judge(4, &all), [Fault::BrokenPair(2)]);
    }

    /// Random numbers that are the same in every run: SplitMix64.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, limit: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((mixed ^ (mixed >> 31)) % limit as u64) as usize
        }

        /// A number from 0 to 1.
        fn part(&mut self) -> f64 {
            self.below(1 << 20) as f64 / f64::from(1 << 20)
        }
    }

    /// The measurement of one pair, as noisy as on a busy cluster: rates vary by a third, and one in
    /// fifty is halved for no reason that lasts.
    fn noisy(dice: &mut Dice, is_slow: bool) -> Measured {
        let glitch = if dice.below(50) == 0 { 0.4 } else { 1.0 };
        let (rate, round_trip) = if is_slow { (FAST / 4.0, NEAR * 8.0) } else { (FAST, NEAR) };
        let rate = rate * (0.67 + 0.33 * dice.part()) * glitch;
        measured(rate, round_trip * (1.0 + dice.part()) / glitch)
    }

    /// What rank 0 does: all rounds, and then up to three times what stands out.
    fn all_passes(dice: &mut Dice, hosts: usize, is_slow: impl Fn(Pair) -> bool) -> Vec<Between> {
        let mut all: Vec<Between> = Vec::new();
        let mut pairs = rounds::rounds(hosts).concat();
        for attempt in 0..4 {
            for pair in pairs {
                let own = noisy(dice, is_slow(pair));
                match all.iter_mut().find(|between| between.hosts == pair) {
                    Some(known) => known.measured = known.measured.map(|known| known.better(own)),
                    None => all.push(between(pair, Some(own))),
                }
            }
            let met: Vec<Pair> = all.iter().map(|between| between.hosts).collect();
            pairs = rounds::again(hosts, &standing_out(hosts, &all, false), &met, attempt == 2);
        }
        all
    }

    #[test]
    fn above_64_hosts_a_host_is_told_from_a_cable_in_95_of_100_random_cases() {
        let mut dice = Dice(21);
        let mut right = 0;
        for case in 0..100 {
            let hosts = 65 + dice.below(448);
            let met = rounds::rounds(hosts).concat();
            let (host, cable) = (dice.below(hosts), met[dice.below(met.len())]);
            let is_host = case % 2 == 0;
            let all = all_passes(&mut dice, hosts, |pair| match is_host {
                true => pair.0 == host || pair.1 == host,
                false => pair == cable,
            });
            let expected = match is_host {
                true => Fault::SlowHost(host),
                false => Fault::SlowPair(place(&all, cable)),
            };
            right += usize::from(judge(hosts, &all) == [expected]);
        }
        assert!(right >= 95, "{right} of 100 are right");
    }
}
