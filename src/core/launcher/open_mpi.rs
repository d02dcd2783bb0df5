//! Open MPI's `mpirun` (`mpiexec`, `prterun`), versions 4 and 5; AzureML starts it for its MPI
//! jobs.
//!
//! mpienv does not read `OMPI_COMM_WORLD_NODE_RANK`, which is a rank among this node's processes
//! and not the node's number, or `OMPI_UNIVERSE_SIZE`, which counts slots and not ranks.

mod daemons;

use std::net::IpAddr;

use crate::error::quote;
use crate::finding::Finding;
use crate::launcher::jsm;
use crate::launcher::prelude::*;
use crate::launcher::starter::ORTERUN;
use crate::value::host::Host;

use self::daemons::{Daemons, Seen, are_placed_by_hand, mpirun_is_alone};

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

/// What version 5 sets for every process.
const LAUNCHED: &str = "PRTE_LAUNCHED";

pub(super) const SPEC: LauncherSpec = LauncherSpec {
    variables: &[OpenMpiVars::VARIABLES],
    marker: |environment| {
        let marker = environment.first_set(&[RANK, SIZE]);
        // Spectrum MPI's jsrun sets some of these variables too, but starts no mpirun.
        let has_mpirun = || environment.first_set(&[HNP_URI, LAUNCHED]).is_some();
        marker.filter(|_| has_mpirun() || !jsm::sets_those_of_open_mpi(environment))
    },
    starts: Starts::Processes,
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
    mpi: MpiFamily::OpenMpi,
    local: &[LOCAL_RANK, LOCAL_SIZE],
    identity: Some((HNP_URI, &[NUM_NODES, LOCAL_DAEMON_URI])),
    starters: &[ORTERUN, "orted", "prterun", "prted", "prte"],
    samples: &[
        Sample {
            title: Some("Open MPI 4"),
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
            title: Some("Open MPI 5"),
            set: |process, vars| {
                set(process, vars);
                vars.set(NAMESPACE, format!("prterun-node0-{}@1", 367 + process.job));
                vars.set("OMPI_VERSION", "5.0.11");
                vars.set(LAUNCHED, 1);
            },
        },
    ],
    ..LauncherSpec::plain(read)
};

fn set(process: &Process<'_>, vars: &mut Setter) {
    vars.set_all([RANK, SIZE, LOCAL_RANK, LOCAL_SIZE], process.place());
    vars.set("OMPI_COMM_WORLD_NODE_RANK", process.local_rank);
    vars.set("OMPI_UNIVERSE_SIZE", process.size);
    vars.set("PMIX_RANK", process.rank);
}

fn read(marker: Marker<'_>) -> Result<Placement, Error> {
    let mut vars: OpenMpiVars = marker.read()?;
    // A namespace of version 5 has PRRTE's form `prterun-HOST-1234@1`. Version 4 uses numbers.
    if vars.namespace.as_deref().is_some_and(|namespace| namespace.contains('@')) {
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
    let Some(uri) = &vars.hnp_uri else { return Ok(placement) };
    let Some(host) = mpirun_host(uri) else {
        placement.findings.push(uri_unreadable(uri));
        return Ok(placement);
    };
    let is_elsewhere = vars.rank == 0 && vars.size != vars.local_size;
    placement.not_master = host.clone().zip(not_here(&vars)).filter(|_| is_elsewhere);
    match rank_0(&vars, marker.environment) {
        Rank0::WithMpirun(proof) => {
            placement.master_addr = by(format!("{HNP_URI}: the host of mpirun, {proof}"), host);
        }
        Rank0::First(first) => placement.master_addr = Some(first),
        Rank0::Unknown(why) => placement.master_unknown = Some(why),
    }
    Ok(placement)
}

/// Returns whether a daemon other than mpirun itself, which is daemon 0, started this process:
/// `1234.2;tcp4://...`.
pub(crate) fn is_of_remote_daemon(environment: &Environment) -> bool {
    let mut servers = environment.texts().filter(|(name, _)| name.starts_with("PMIX_SERVER_URI"));
    servers.any(|(_, uri)| number_of_daemon(uri).is_some_and(|number| number != "0"))
}

/// Returns whether `nodes` nodes can hold `size` ranks, with `local_size` here and at least one on
/// each other node.
// With a rankfile, 4.1.4 reports twice the number of nodes to some ranks.
fn is_possible(nodes: u32, local_size: u32, size: u32) -> bool {
    let elsewhere = size - local_size;
    if elsewhere == 0 { nodes == 1 } else { nodes >= 2 && nodes - 1 <= elsewhere }
}

/// Where rank 0 is.
enum Rank0 {
    /// On the host of mpirun, and what makes that sure.
    WithMpirun(&'static str),
    /// On the host of the first daemon that mpirun started.
    First(Sourced<Host>),
    /// Elsewhere, or that cannot be seen from here, for this reason.
    Unknown(String),
}

/// Returns where rank 0 is. All ranks of a job come to the same, or do not know.
fn rank_0(vars: &OpenMpiVars, environment: &Environment) -> Rank0 {
    let usual = Rank0::WithMpirun("which is rank 0's unless the job was placed elsewhere");
    let Some(own) = &vars.local_daemon_uri else { return usual };
    if vars.local_daemon_uri == vars.hnp_uri {
        return if vars.rank == 0 { Rank0::WithMpirun("and rank 0 is there") } else { usual };
    }
    if vars.size == vars.local_size {
        return usual;
    }
    let nodes = vars.num_nodes.filter(|&nodes| is_possible(nodes, vars.local_size, vars.size));
    let place = nodes.zip(number_of_daemon(own).and_then(|number| number.parse().ok()));
    let place = place.filter(|_| !are_placed_by_hand(environment));
    let daemons = vars.node_regex.as_deref().and_then(Daemons::read);
    // More hosts have a daemon than ranks.
    let more = place.zip(daemons).filter(|((nodes, _), daemons)| daemons.count > *nodes);
    let Some(((nodes, daemon), daemons)) = more else {
        // The others take mpirun's host for rank 0's.
        return if vars.rank == 0 { Rank0::Unknown(elsewhere(own)) } else { usual };
    };
    let &OpenMpiVars { rank, size, local_rank, local_size, .. } = vars;
    let seen = Seen { rank, size, local_rank, local_size, daemon, nodes };
    let count = daemons.count;
    match (mpirun_is_alone(seen, environment), daemons.first_remote) {
        (Some(false), _) => usual,
        (Some(true), Some(first)) if rank > 0 || daemon.get() == 1 => match first.parse() {
            Ok(host) => Rank0::First(Sourced::new(
                host,
                format!("{NODE_REGEX}: the first host after mpirun's, which has no rank"),
            )),
            Err(error) => Rank0::Unknown(format!("{NODE_REGEX} has {first:?}: {error}")),
        },
        _ if rank == 0 => Rank0::Unknown(elsewhere(own)),
        _ => Rank0::Unknown(format!(
            "Open MPI names only mpirun's host, and {count} hosts have a daemon but {nodes} have ranks: rank {rank} cannot \
             see whether mpirun's has some"
        )),
    }
}

/// What rank 0 says if its host is not the one that the others take for it.
fn elsewhere(own: &str) -> String {
    format!(
        "Open MPI names only mpirun's host, and rank 0 is on another one, whose daemon is {own}"
    )
}

/// What rank 0 says about a `MASTER_ADDR` that names mpirun's host.
fn not_here(vars: &OpenMpiVars) -> Option<Finding> {
    let (hnp, own) = (vars.hnp_uri.as_ref()?, vars.local_daemon_uri.as_ref()?);
    (hnp != own).then(|| {
        Finding::warning(
            "master-not-rank-0",
            format!("MASTER_ADDR is the host of mpirun ({hnp}), but rank 0's own daemon is {own}"),
            "the ranks would wait for a master that never appears",
            "give rank 0's host to all ranks, as in `mpirun -x MASTER_ADDR=HOST`",
        )
    })
}

/// Returns the number of a daemon, given its URI: `1234.2;tcp://...`.
fn number_of_daemon(uri: &str) -> Option<&str> {
    Some(uri.split_once(';')?.0.rsplit_once('.')?.1)
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
    let mut reached = Vec::new();
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
            reached.extend(reach(address).map(|reach| (reach, address)));
        }
    }
    // Of equal ones, the first.
    let best = reached.into_iter().min_by_key(|(reach, _)| *reach);
    Some(best.map(|(_, address)| Host::from(address)))
}

fn uri_unreadable(uri: &str) -> Finding {
    Finding::warning(
        "mpirun-address-unreadable",
        format!("{HNP_URI} is {}", quote(uri)),
        "it is not of the form JOB;tcp://ADDRESS,...:PORT,..., so it names no host",
        "where MASTER_ADDR is needed, give it: `mpirun -x MASTER_ADDR=HOST`",
    )
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

    /// Where rank 0 is, as a rank reads it: a host, or why it is unknown.
    fn master(rank: u32, daemon: u32, more: &[(&str, &str)]) -> Result<String, String> {
        let own = format!("1.{daemon};tcp://10.77.0.{}:1", daemon + 1);
        let [number, local] = [rank, rank % 2].map(|number| number.to_string());
        let vars = [(RANK, number.as_str()), (SIZE, "4"), (LOCAL_RANK, &local), (LOCAL_SIZE, "2")];
        let vars = vars.into_iter().chain([(HNP_URI, "1.0;tcp://10.77.0.1:1")]);
        let vars = vars.chain([(LOCAL_DAEMON_URI, own.as_str())]).chain(more.iter().copied());
        let environment = Environment::from_vars(vars);
        let marker =
            Marker { environment: &environment, launcher: Launcher::OpenMpi, variable: RANK };
        let placement = read(marker).unwrap();
        let host = placement.master_addr.map(|host| host.value.to_string());
        host.ok_or_else(|| placement.master_unknown.unwrap())
    }

    #[test]
    fn all_ranks_of_an_mpirun_without_ranks_name_the_first_host_after_its_own() {
        for (regex, first) in [
            ("nodeA,nodeB,nodeC@0(3)", "nodeB"),
            ("nodeA,[2:10].77.0.2,[2:10].77.0.3@0(3)", "10.77.0.2"),
        ] {
            for (rank, daemon) in [(0, 1), (1, 1), (2, 2), (3, 2)] {
                let found = master(rank, daemon, &[(NUM_NODES, "2"), (NODE_REGEX, regex)]);
                assert_eq!(found, Ok(first.to_owned()), "rank {rank}");
            }
        }
        // Ranks on nodeA and nodeB, and nodeC empty.
        for (rank, daemon) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
            let list = (NODE_REGEX, "nodeA,nodeB,nodeC@0(3)");
            let list = if daemon == 0 { None } else { Some(list) };
            let vars: Vec<_> = [(NUM_NODES, "2")].into_iter().chain(list).collect();
            assert_eq!(master(rank, daemon, &vars), Ok("10.77.0.1".to_owned()), "rank {rank}");
        }
    }

    #[test]
    fn a_rank_0_that_the_others_cannot_find_names_no_host() {
        let list = (NODE_REGEX, "nodeA,nodeB,nodeC@0(3)");
        let rankfile = ("OMPI_MCA_orte_rankfile", "file");
        for vars in [
            // Two program contexts, of which mpirun's host has the second.
            vec![(NUM_NODES, "2"), (NODE_REGEX, "nodeA,nodeB@0(2)")],
            vec![(NUM_NODES, "4"), list],
            vec![(NUM_NODES, "2"), list, rankfile],
            vec![(NUM_NODES, "2"), list, ("OMPI_MCA_rmaps", "seq")],
            vec![],
        ] {
            let why = master(0, 1, &vars).unwrap_err();
            assert!(why.ends_with("whose daemon is 1.1;tcp://10.77.0.2:1"), "{vars:?}: {why}");
            assert_eq!(master(1, 1, &vars), Ok("10.77.0.1".to_owned()), "{vars:?}");
        }
        // It is not on the first host.
        assert!(master(0, 2, &[(NUM_NODES, "2"), list]).is_err());
    }

    #[test]
    fn a_rank_that_cannot_see_whether_mpiruns_host_has_ranks_says_so() {
        let ranking = ("OMPI_MCA_rmaps_base_ranking_policy", "node");
        let list = (NODE_REGEX, "nodeA,nodeB,nodeC@0(3)");
        let why = master(1, 1, &[(NUM_NODES, "2"), list, ranking]).unwrap_err();
        assert!(why.contains("3 hosts have a daemon but 2 have ranks: rank 1 cannot see"), "{why}");
    }

    #[test]
    fn a_daemon_that_has_mpiruns_number_and_another_address_tells_nothing() {
        let list = (NODE_REGEX, "nodeA,nodeB,nodeC@0(3)");
        let own = (LOCAL_DAEMON_URI, "2.0;tcp://10.77.0.2:1");
        let vars = [(NUM_NODES, "2"), list, own];
        assert_eq!(master(2, 0, &vars), Ok("10.77.0.1".to_owned()));
        assert!(
            master(0, 0, &vars).unwrap_err().ends_with("whose daemon is 2.0;tcp://10.77.0.2:1")
        );
    }

    #[test]
    fn only_a_rank_0_on_mpiruns_host_knows_that_the_host_is_its_own() {
        let (here, there) = ("1.0;tcp://10.77.0.1:1", "1.1;tcp://10.77.0.2:1");
        for (rank, own, proven) in [("0", here, true), ("1", there, false), ("1", here, false)] {
            let vars =
                [(RANK, rank), (SIZE, "4"), (LOCAL_RANK, rank), (LOCAL_SIZE, "2"), (HNP_URI, here)];
            let vars = vars.into_iter().chain([(LOCAL_DAEMON_URI, own)]);
            let environment = Environment::from_vars(vars);
            let marker =
                Marker { environment: &environment, launcher: Launcher::OpenMpi, variable: RANK };
            let master = read(marker).unwrap().master_addr.unwrap();
            assert_eq!(
                master.source.ends_with("and rank 0 is there"),
                proven,
                "rank {rank}: {}",
                master.source
            );
        }
    }
}
