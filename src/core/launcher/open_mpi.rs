//! Open MPI's `mpirun` (`mpiexec`, `prterun`), versions 4 and 5; AzureML starts it for its MPI
//! jobs.
//!
//! mpienv does not read `OMPI_COMM_WORLD_NODE_RANK`, which is a rank among this node's processes
//! and not the node's number, or `OMPI_UNIVERSE_SIZE`, which counts slots and not ranks.

use std::net::IpAddr;

use crate::error::quote;
use crate::finding::{Finding, Severity};
use crate::launcher::prelude::*;
use crate::value::host::Host;

variables! {
    /// The variables that Open MPI sets for every process.
    pub struct OpenMpiVars {
        "[Open MPI: environment variables](https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html)" {
            RANK = "OMPI_COMM_WORLD_RANK" => rank: u32, "rank";
            SIZE = "OMPI_COMM_WORLD_SIZE" => size: u32, "world size";
            LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK" => local_rank: u32, "rank on this node; in no fixed relation to the rank";
            LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE" => local_size: u32, "ranks on this node";
        }
        "[PMIx standard](https://pmix.github.io/pmix-standard)" {
            NAMESPACE = "PMIX_NAMESPACE" => namespace: Option<String>, "the job's identity, the same on all ranks";
        }
        "recorded from Open MPI 4.1.4" {
            NUM_NODES = "OMPI_MCA_orte_num_nodes" => num_nodes: Option<u32>, "nodes of the job; version 4, internal";
            HNP_URI = "OMPI_MCA_orte_hnp_uri" => hnp_uri: Option<String>, "addresses of the host where mpirun runs; version 4, internal";
            NODE_REGEX = "OMPI_MCA_orte_node_regex" => node_regex: Option<String>, "hosts with a daemon, mpirun's first, and their numbers; version 4, internal";
            LOCAL_DAEMON_URI = "OMPI_MCA_orte_local_daemon_uri" => local_daemon_uri: Option<String>, "the same of this host's daemon; version 4, internal";
        }
    }
}

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[OpenMpiVars::VARIABLES],
    marker: |environment| first_set(environment, &[RANK, SIZE]),
    read,
    starts: Starts::Processes,
    advice: Advice {
        start: "start the process with mpirun",
        programs: Some(Programs {
            names: "mpirun mpiexec orterun prterun prun mpirun.openmpi mpiexec.openmpi",
            verbs: "",
            options: "-n 2",
        }),
        one_per_node: "`mpirun --map-by ppr:1:node`; on Azure `process_count_per_instance: 1`",
        // mpirun passes the caller's variables to other hosts only with -x.
        give_master: "`mpirun -x MASTER_ADDR=HOST`",
        unbind: Some("mpirun --bind-to none"),
        ..Advice::PLAIN
    },
    mpi: MpiFamily::OpenMpi,
    nested: Nested {
        local: &[LOCAL_RANK, LOCAL_SIZE],
        identity: Some((HNP_URI, &[NUM_NODES, LOCAL_DAEMON_URI])),
        starters: &["orterun", "orted", "prterun", "prted", "prte"],
        ..Nested::PLAIN
    },
    samples: &[
        Sample {
            title: "Open MPI 4",
            set: |process, vars| {
                set(process, vars);
                // The address where the daemon of a node listens. The daemon of node 0 is mpirun
                // itself.
                let family = 3_024_551_936 + (process.job << 16);
                let uri = |node| format!("{family}.{node};tcp://{}:60493", process.address(node));
                vars.set(NAMESPACE, family + 1);
                vars.set(NUM_NODES, process.nodes);
                vars.set(HNP_URI, uri(0));
                vars.set(LOCAL_DAEMON_URI, uri(process.node));
            },
        },
        Sample {
            title: "Open MPI 5",
            set: |process, vars| {
                set(process, vars);
                vars.set(NAMESPACE, format!("prterun-node0-{}@1", 367 + process.job));
                vars.set("OMPI_VERSION", "5.0.11");
                vars.set("PRTE_LAUNCHED", 1);
            },
        },
    ],
};

fn set(process: &Process<'_>, vars: &mut Setter) {
    vars.set_all([RANK, SIZE, LOCAL_RANK, LOCAL_SIZE], process.place());
    vars.set("OMPI_COMM_WORLD_NODE_RANK", process.local_rank);
    vars.set("OMPI_UNIVERSE_SIZE", process.size);
    vars.set("PMIX_RANK", process.rank);
}

fn read(environment: &Environment, marker: Marker) -> Result<Placement, Error> {
    let mut vars: OpenMpiVars = marker.read(environment)?;
    if vars.namespace.as_deref().is_some_and(is_of_version_5) {
        // Version 5 sets none of these. They belong to an outer job, or another program is meant to
        // read them.
        (vars.num_nodes, vars.hnp_uri) = (None, None);
        (vars.node_regex, vars.local_daemon_uri) = (None, None);
    }
    let placement = marker
        .place(by(RANK, vars.rank), by(SIZE, vars.size))?
        .with_local(Some(by(LOCAL_RANK, vars.local_rank)), Some(by(LOCAL_SIZE, vars.local_size)))?;
    let nodes = vars.num_nodes.filter(|&nodes| is_possible(nodes, vars.local_size, vars.size));
    let mut placement = placement
        .with_nodes(None, by(NUM_NODES, nodes))
        .with_job(NAMESPACE, vars.namespace.clone());
    if let Some(uri) = &vars.hnp_uri {
        match mpirun_host(uri) {
            Some(host) => {
                placement.master_addr = host.map(|host| Sourced::new(host, source_of_host(&vars)))
            }
            None => placement.findings.push(uri_unreadable(uri)),
        }
        placement.master_doubt = rank_0_is_elsewhere(&vars);
    }
    Ok(placement)
}

/// Returns whether a daemon other than mpirun itself, which is daemon 0, started this process:
/// `1234.2;tcp4://...`.
pub(crate) fn is_of_remote_daemon(environment: &Environment) -> bool {
    let servers = environment.names().filter(|name| name.starts_with("PMIX_SERVER_URI"));
    let daemons =
        servers.filter_map(|name| environment.text(name)?.split_once(';')?.0.rsplit_once('.'));
    daemons.map(|(_, number)| number).any(|number| number != "0")
}

/// Returns whether a namespace is version 5's, which has PRRTE's form `prterun-HOST-1234@1`.
/// Version 4 uses numbers.
fn is_of_version_5(namespace: &str) -> bool {
    namespace.contains('@')
}

/// Returns whether `nodes` nodes can hold `size` ranks, with `local_size` here and at least one on
/// each other node.
// With a rankfile, 4.1.4 reports twice the number of nodes to some ranks.
fn is_possible(nodes: u32, local_size: u32, size: u32) -> bool {
    let elsewhere = size - local_size;
    if elsewhere == 0 { nodes == 1 } else { nodes >= 2 && nodes - 1 <= elsewhere }
}

fn source_of_host(vars: &OpenMpiVars) -> String {
    let proof = if vars.rank == 0 && vars.local_daemon_uri == vars.hnp_uri {
        "and rank 0 is there"
    } else {
        "which is rank 0's unless the job was placed elsewhere"
    };
    format!("{HNP_URI}: the host of mpirun, {proof}")
}

/// Reports that mpirun runs on another host. Rank 0 knows this, because its own daemon is then
/// another one.
fn rank_0_is_elsewhere(vars: &OpenMpiVars) -> Option<Finding> {
    let (hnp, own) = (vars.hnp_uri.as_ref()?, vars.local_daemon_uri.as_ref()?);
    if hnp == own || vars.size == vars.local_size {
        return None;
    }
    if vars.rank != 0 {
        return mpirun_may_be_alone(vars, own);
    }
    Some(Finding {
        severity: Severity::Warning,
        code: "master-not-rank-0",
        what: format!("{HNP_URI} is {hnp:?}, but rank 0's own daemon is {own:?}"),
        why: "Open MPI names only the host of mpirun, and rank 0 does not run there: the ranks would wait for a master that never appears".into(),
        remedy: "give rank 0's host to all ranks, as in `mpirun -x MASTER_ADDR=HOST`".into(),
    })
}

/// Reports on a rank above 0 that mpirun's host may have no ranks: more hosts have a daemon than
/// ranks.
///
/// The same list with the same numbers also belongs to a job that leaves the last of its hosts
/// empty, so this proves nothing.
fn mpirun_may_be_alone(vars: &OpenMpiVars, own: &str) -> Option<Finding> {
    let (regex, nodes) = (vars.node_regex.as_ref()?, vars.num_nodes?);
    let daemons = number_of_daemons(regex)?;
    if daemons <= nodes {
        return None;
    }
    // mpirun fills the hosts in the order of their daemons, and numbers the ranks of a host in
    // order.
    let first_is_skipped = number_of_daemon(own).is_some_and(|number| number >= nodes);
    let is_likely = first_is_skipped || vars.local_rank == vars.rank;
    Some(Finding {
        severity: if is_likely { Severity::Warning } else { Severity::Note },
        code: "master-not-rank-0",
        what: format!("{NODE_REGEX} is {regex:?}: {daemons} hosts, but {NUM_NODES} is {nodes}"),
        why: "Open MPI names only the host of mpirun, and that may be the host without ranks: the ranks would wait for a master that never appears".into(),
        remedy: "give rank 0's host to all ranks, as in `mpirun -x MASTER_ADDR=HOST`".into(),
    })
}

/// Returns the number of a daemon, given its URI: `1234.2;tcp://...`.
fn number_of_daemon(uri: &str) -> Option<u32> {
    uri.split_once(';')?.0.rsplit_once('.')?.1.parse().ok()
}

/// Returns the number of hosts in a list such as `nodeC,[2:10].77.0.1,nodeB@0(3)`: what follows
/// the last `@` are the numbers of the daemons, a number for one, or the first and how many.
fn number_of_daemons(regex: &str) -> Option<u32> {
    let (_, numbers) = regex.rsplit_once('@')?;
    let count = |range: &str| match range.split_once('(') {
        Some((first, count)) => {
            let _first: u32 = first.parse().ok()?;
            count.strip_suffix(')')?.parse().ok()
        }
        None => range.parse().ok().map(|_: u32| 1),
    };
    numbers.split(',').try_fold(0_u32, |sum, range| sum.checked_add(count(range)?))
}

/// How well other hosts can reach an address, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Ordinary,
    /// The address of a container's or virtual machine's bridge, which is the same on every host.
    Bridge,
    LinkLocal,
}

/// Returns the host in a URI such as `1234.0;tcp://10.0.0.4,172.17.0.1:5000;tcp6://[fd00::4]:5001`.
///
/// Returns `None` if the URI has another form. Otherwise returns the address that other hosts can
/// reach best, if any.
fn mpirun_host(uri: &str) -> Option<Option<Host>> {
    let (_job, contacts) = uri.split_once(';')?;
    let mut best: Option<(Reach, IpAddr)> = None;
    for contact in contacts.split(';') {
        let (scheme, rest) = contact.split_once("://")?;
        let (addresses, ports) = rest.rsplit_once(':')?;
        ports.split(',').try_for_each(|port| port.parse::<u16>().map(drop)).ok()?;
        let addresses = match scheme {
            "tcp" => addresses,
            "tcp6" => addresses.strip_prefix('[')?.strip_suffix(']')?,
            _ => return None,
        };
        for address in addresses.split(',') {
            let address: IpAddr = address.parse().ok()?;
            if let Some(reach) = reach(address)
                && best.is_none_or(|(found, _)| reach < found)
            {
                best = Some((reach, address));
            }
        }
    }
    Some(best.map(|(_, address)| Host::from(address)))
}

fn uri_unreadable(uri: &str) -> Finding {
    Finding {
        severity: Severity::Warning,
        code: "mpirun-address-unreadable",
        what: format!("{HNP_URI} is {}", quote(uri)),
        why: "it is not of the form JOB;tcp://ADDRESS,...:PORT,..., so it names no host".into(),
        remedy: "where MASTER_ADDR is needed, give it: `mpirun -x MASTER_ADDR=HOST`".into(),
    }
}

/// Returns `None` for an address that no other host can reach.
fn reach(address: IpAddr) -> Option<Reach> {
    match address {
        _ if address.is_loopback() || address.is_unspecified() => None,
        IpAddr::V4(v4) if v4.is_link_local() => Some(Reach::LinkLocal),
        // A link-local IPv6 address is unreachable without a zone.
        IpAddr::V6(v6) if v6.is_unicast_link_local() => None,
        IpAddr::V4(v4) => Some(match v4.octets() {
            // The defaults of Docker (one network after another), Podman and libvirt.
            [172, 17..=31, 0, 1] | [10, 88, 0, 1] | [192, 168, 122, 1] => Reach::Bridge,
            _ => Reach::Ordinary,
        }),
        IpAddr::V6(_) => Some(Reach::Ordinary),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::Launcher;

    fn host(uri: &str) -> Option<String> {
        mpirun_host(uri).expect(uri).map(|host| host.to_string())
    }

    #[test]
    fn the_first_address_that_others_can_reach_is_taken() {
        for (uri, expected) in [
            ("3024486400.0;tcp://10.77.0.1:39829", Some("10.77.0.1")),
            (
                "3030122496.0;tcp://10.77.0.1,10.78.0.1:49239;tcp6://[fd77::1]:50139",
                Some("10.77.0.1"),
            ),
            ("1.0;tcp://10.77.0.1,172.17.0.1:56097", Some("10.77.0.1")),
            ("1.0;tcp://172.17.0.1,10.77.0.1:56097", Some("10.77.0.1")),
            ("1.0;tcp://172.17.0.1:56097", Some("172.17.0.1")),
            ("1.0;tcp://172.20.0.9:56097", Some("172.20.0.9")),
            ("1.0;tcp://169.254.3.4,192.168.122.1:1", Some("192.168.122.1")),
            ("1.0;tcp://169.254.3.4,127.0.0.1:1", Some("169.254.3.4")),
            ("1.0;tcp://127.0.0.1:58931", None),
            (
                "1.0;tcp6://[fe80::b9b:ac5d,2620:10d:c083:150e::3000:2]:43370",
                Some("2620:10d:c083:150e::3000:2"),
            ),
            ("1.0;tcp6://[fe80::1,::1]:43370", None),
            // With `--mca oob_tcp_dynamic_ipv4_ports 15000-15001`.
            ("3059154944.0;tcp://10.77.0.1:15000,15001", Some("10.77.0.1")),
            ("1.0;tcp6://[fd77::1]:15000,15001", Some("fd77::1")),
        ] {
            assert_eq!(host(uri).as_deref(), expected, "{uri}");
        }
    }

    #[test]
    fn a_uri_of_another_form_names_no_host() {
        let others = "x 1.0; 1.0;tcp:// 1.0;tcp://10.0.0.1 1.0;tcp://10.0.0.1:x 1.0;tcp://h:1 \
                      1.0;udp://10.0.0.1:1 1.0;tcp6://fd00::1:1 1.0;tcp://10.0.0.1,:1 \
                      1.0;tcp://10.0.0.1:1; 1.0;tcp://10.0.0.1:1,";
        for bad in others.split(' ').chain([""]) {
            assert_eq!(mpirun_host(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_number_of_nodes_that_cannot_be_is_not_believed() {
        for (nodes, local_size, is) in
            [(2, 2, true), (3, 2, true), (1, 4, true), (4, 2, false), (1, 2, false), (2, 4, false)]
        {
            assert_eq!(is_possible(nodes, local_size, 4), is, "{nodes} nodes, {local_size} here");
        }
    }

    #[test]
    fn every_rank_says_that_mpiruns_host_may_have_no_ranks() {
        let severity = |place: [&str; 3], daemon: u32, regex, nodes| {
            let [rank, local_rank, local_size] = place;
            let own = format!("1.{daemon};tcp://10.77.0.9:1");
            let vars = [(RANK, rank), (SIZE, "4"), (LOCAL_RANK, local_rank)];
            let vars = vars.into_iter().chain([(LOCAL_SIZE, local_size), (NUM_NODES, nodes)]);
            let vars = vars.chain([(NODE_REGEX, regex), (HNP_URI, "1.0;tcp://10.77.0.1:1")]);
            let vars = vars.chain([(LOCAL_DAEMON_URI, own.as_str())]);
            let marker = Marker { launcher: Launcher::OpenMpi, variable: RANK };
            let doubt = read(&Environment::from_vars(vars), marker).unwrap().master_doubt;
            doubt.map(|finding| (finding.code, finding.severity))
        };
        let warning = Some(("master-not-rank-0", Severity::Warning));
        // mpirun on nodeA or nodeC, ranks on the two others, as recorded from 4.1.4.
        for regex in ["nodeA,nodeB,nodeC@0(3)", "nodeC,[2:10].77.0.1,[2:10].77.0.2@0(3)"] {
            for (rank, local_rank, daemon) in [("0", "0", 1), ("1", "1", 1), ("2", "0", 2)] {
                assert_eq!(severity([rank, local_rank, "2"], daemon, regex, "2"), warning);
            }
        }
        // Ranks on nodeA and nodeB, and nodeC empty, or every second rank on each of two hosts.
        let note = Some(("master-not-rank-0", Severity::Note));
        assert_eq!(severity(["2", "0", "2"], 1, "nodeA,nodeB,nodeC@0(3)", "2"), note);
        for (regex, nodes) in [("nodeA,nodeB@0(2)", "2"), ("nodeA,nodeB@0,1", "2"), ("x@y", "1")] {
            assert_eq!(severity(["2", "0", "2"], 1, regex, nodes), None, "{regex}");
        }
    }

    #[test]
    fn only_a_rank_0_on_mpiruns_host_knows_that_the_host_is_its_own() {
        let (here, there) = ("1.0;tcp://10.77.0.1:1", "1.1;tcp://10.77.0.2:1");
        for (rank, own, proven) in [("0", here, true), ("0", there, false), ("1", here, false)] {
            let vars =
                [(RANK, rank), (SIZE, "4"), (LOCAL_RANK, rank), (LOCAL_SIZE, "2"), (HNP_URI, here)];
            let vars = vars.into_iter().chain([(LOCAL_DAEMON_URI, own)]);
            let marker = Marker { launcher: Launcher::OpenMpi, variable: RANK };
            let master = read(&Environment::from_vars(vars), marker).unwrap().master_addr.unwrap();
            assert_eq!(
                master.source.ends_with("and rank 0 is there"),
                proven,
                "rank {rank}: {}",
                master.source
            );
        }
    }
}
