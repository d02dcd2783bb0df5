//! The findings about the network between the hosts.

use super::judge::{Between, Fault, Medians, Usual};
use super::report::gbit;
use crate::Finding;
use crate::command::check::measurement::figure;

/// How many findings of one kind are listed one by one.
const MOST: usize = 16;

/// Returns a finding for each fault. `names` are those of the hosts.
pub(super) fn of(faults: &[Fault], names: &[&str], pairs: &[Between]) -> Vec<Finding> {
    let medians = Medians::new(names.len(), pairs);
    let context = Context { names, pairs, medians };
    let mut findings: Vec<Finding> = Vec::new();
    let mut left_out = 0;
    for fault in faults {
        let finding = context.finding(fault);
        let alike = findings.iter().filter(|other| other.code == finding.code).count();
        if alike < MOST { findings.push(finding) } else { left_out += 1 }
    }
    if let Some(last) = findings.last_mut().filter(|_| left_out > 0) {
        last.remedy += &format!("; {left_out} more findings of these kinds are not listed");
    }
    findings
}

struct Context<'a> {
    names: &'a [&'a str],
    pairs: &'a [Between],
    medians: Medians,
}

impl Context<'_> {
    fn finding(&self, fault: &Fault) -> Finding {
        match *fault {
            Fault::BlockedHost(host) => self.blocked_host(host),
            Fault::BlockedPair(at) => self.blocked_pair(&self.pairs[at]),
            Fault::BrokenPair(at) => self.broken_pair(&self.pairs[at]),
            Fault::SlowHost(host) => self.slow_host(host),
            Fault::SlowPair(at) => self.slow_pair(&self.pairs[at]),
            Fault::Clock(host, ahead) => self.late(host, ahead),
        }
    }

    fn blocked_host(&self, host: usize) -> Finding {
        let own = self.pairs.iter().filter(|pair| pair.has(host));
        let tried = own.flat_map(Between::unreached).next().unwrap_or_default();
        let name = self.names[host];
        let mut blocked = self.pairs.iter().filter(|pair| pair.is_blocked());
        let why = match blocked.all(|pair| pair.has(host)) {
            true => format!("{WHY}, and {name} is the host that all blocked pairs have in common"),
            false => format!("{WHY}; all pairs of {name} are blocked, and others too"),
        };
        Finding::error(
            "mesh-host-blocked",
            format!("{name} and the other hosts cannot connect to each other ({BESIDE}: {tried})"),
            why,
            format!(
                "open all TCP ports between {name} and the other hosts, or choose a network with --interface"
            ),
        )
    }

    fn blocked_pair(&self, pair: &Between) -> Finding {
        let (first, second) = (self.names[pair.hosts.0], self.names[pair.hosts.1]);
        let one_way = |from, to| {
            format!("{from} cannot connect to {to}, although {to} can connect to {from}")
        };
        let what = match pair.reached {
            [true, _] => one_way(second, first),
            [_, true] => one_way(first, second),
            _ => format!("{first} and {second} cannot connect to each other"),
        };
        let tried: Vec<_> = pair.unreached().collect();
        Finding::error(
            "mesh-pair-blocked",
            format!("{what} ({BESIDE}: {})", tried.join(", ")),
            WHY,
            format!(
                "open all TCP ports between {first} and {second}, or choose a network with --interface"
            ),
        )
    }

    fn broken_pair(&self, pair: &Between) -> Finding {
        let (first, second) = (self.names[pair.hosts.0], self.names[pair.hosts.1]);
        let error = pair.broken.as_deref().unwrap_or("no answer");
        Finding::error(
            "mesh-pair-broken",
            format!(
                "{first} and {second} connect, but what they then send does not arrive: {error}"
            ),
            "a network that drops long packets, often because of its MTU, lets only short messages \
             through",
            format!("compare the MTU of {first}, of {second} and of the switches between them"),
        )
    }

    fn slow_host(&self, host: usize) -> Finding {
        let (name, own) = (self.names[host], self.compared(self.medians.of_hosts[host]));
        Finding::warning(
            "mesh-host-slow",
            format!("{name} is slow to most other hosts: {own}"),
            "the slowest host holds back every step of the whole job",
            format!(
                "look at the network adapter, the cable and the load of {name}, or leave it out"
            ),
        )
    }

    fn slow_pair(&self, pair: &Between) -> Finding {
        let (first, second) = (self.names[pair.hosts.0], self.names[pair.hosts.1]);
        let own = self.compared(pair.measured.map(Usual::from));
        Finding::warning(
            "mesh-pair-slow",
            format!(
                "{first} and {second} are slow to each other, and not to the other hosts: {own}"
            ),
            "the slowest pair holds back every step of the whole job",
            format!("look at the path between {first} and {second}: switches, routes and cables"),
        )
    }

    fn late(&self, host: usize, ahead: f64) -> Finding {
        let others = if let [first, _] = self.names { first } else { "most other hosts" };
        let (host, seconds) = (self.names[host], ahead.abs());
        let how = if ahead < 0.0 { "behind" } else { "ahead of" };
        Finding::warning(
            "mesh-clock",
            format!("the clock of {host} is {seconds:.1} s {how} that of {others}"),
            "logs of several hosts cannot be compared, and certificates, tickets and timeouts that \
             hosts agree on may fail",
            format!("synchronize the clock of {host}, for example with chrony: chronyc tracking"),
        )
    }

    /// Says what is unusual, beside what is usual.
    fn compared(&self, own: Option<Usual>) -> String {
        let Some((own, usual)) = own.zip(self.medians.of_all) else { return String::new() };
        let rate =
            format!("{} Gbit/s (median {})", figure(gbit(own.rate)), figure(gbit(usual.rate)));
        let (own_ms, usual_ms) = (figure(own.round_trip * 1e3), figure(usual.round_trip * 1e3));
        let round_trip = format!("{own_ms} ms round trip (median {usual_ms})");
        match (own.is_low(usual), own.is_long(usual)) {
            (true, false) => rate,
            (false, true) => round_trip,
            _ => format!("{rate}, {round_trip}"),
        }
    }
}

const WHY: &str = "NCCL, gloo and MPI connect all hosts on ports that the system chooses, and a \
                   firewall lets only some ports through";

const BESIDE: &str = "tried ports other than the master's";

#[cfg(test)]
mod tests {
    use super::super::Answer;
    use super::*;

    #[test]
    fn a_blocked_pair_names_what_was_tried_in_the_direction_that_fails() {
        let mut pair = Between::new((0, 1));
        pair.reached = [true, false];
        pair.tried = [vec!["10.0.0.2:7: timed out".into()], vec!["10.0.0.1:8: timed out".into()]];
        let found = of(&[Fault::BlockedPair(0)], &["a", "b"], &[pair]);
        assert_eq!(
            found[0].what,
            "b cannot connect to a, although a can connect to b (tried ports other than the master's: \
             10.0.0.1:8: timed out)"
        );
    }

    #[test]
    fn a_blocked_host_is_what_all_blocked_pairs_have_in_common_only_if_no_other_pair_is_blocked() {
        let whys = |blocked: &[usize]| {
            let pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)].map(|pair| {
                let reached = [!blocked.contains(&pair.0) && !blocked.contains(&pair.1); 2];
                Between { reached, ..Between::new(pair) }
            });
            let faults: Vec<_> = blocked.iter().map(|&host| Fault::BlockedHost(host)).collect();
            let found = of(&faults, &["a", "b", "c", "d"], &pairs).into_iter();
            found.map(|found| found.why[WHY.len()..].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(whys(&[0]), [", and a is the host that all blocked pairs have in common"]);
        let of_two =
            ["a", "b"].map(|host| format!("; all pairs of {host} are blocked, and others too"));
        assert_eq!(whys(&[0, 1]), of_two);
    }

    #[test]
    fn a_port_that_was_tried_twice_is_listed_once() {
        let mut pair = Between::new((0, 1));
        for port in [7, 8, 7, 8] {
            let tried = format!("10.0.0.2:{port}: timed out");
            pair.note(0, &Answer { unreached: Some(tried), ..Answer::default() });
        }
        assert_eq!(pair.tried[0], ["10.0.0.2:7: timed out", "10.0.0.2:8: timed out"]);
    }
}
