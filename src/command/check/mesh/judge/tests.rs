use super::*;
use crate::command::check::mesh::plan;

const FAST: f64 = 1.25e9;
const NEAR: f64 = 50e-6;

fn measured(rate: f64, round_trip: f64) -> Measured {
    let (clock, clock_error) = (0.0, round_trip / 2.0);
    Measured { round_trip, clock, clock_error, there: rate, back: rate, both: rate }
}

/// All pairs of a complete job, with what `of` says of each; `None` is blocked.
fn job(hosts: usize, of: impl Fn(usize, usize) -> Option<Measured>) -> Vec<Between> {
    let pairs = plan::rounds(hosts).concat();
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
                let all = job(hosts, |a, b| Some(if a == bad || b == bad { slow } else { fast }));
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
    assert_eq!(judge(2, &all), [Fault::ClocksDiffer(3.0)]);
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
    let mut pairs = plan::rounds(hosts).concat();
    for attempt in 0..4 {
        for pair in pairs {
            let own = noisy(dice, is_slow(pair));
            match all.iter_mut().find(|between| between.hosts == pair) {
                Some(known) => known.measured = known.measured.map(|known| known.better(own)),
                None => all.push(between(pair, Some(own))),
            }
        }
        let met: Vec<Pair> = all.iter().map(|between| between.hosts).collect();
        pairs = plan::again(hosts, &standing_out(hosts, &all, false), &met, attempt == 2);
    }
    all
}

#[test]
fn above_64_hosts_a_host_is_told_from_a_cable_in_95_of_100_random_cases() {
    let mut dice = Dice(21);
    let mut right = 0;
    for case in 0..100 {
        let hosts = 65 + dice.below(448);
        let met = plan::rounds(hosts).concat();
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
