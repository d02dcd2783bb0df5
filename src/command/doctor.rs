//! Finds problems in a process's environment and on its host, before a job hangs.

pub(crate) mod cores;
pub(crate) mod devices;
pub(crate) mod interface;
mod machine;
mod mpi_library;
pub(crate) mod port;

pub use machine::Machine;
pub use mpi_library::MpiLibrary;

pub(crate) use machine::{addresses, ended_launcher, ended_task, gone_session};

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::command::check::SIMULATED;
use crate::{ClusterInfo, Finding, Host, LaunchStyle, Launcher, Severity, Subnet, host_name};
use mpienv_ask::seam::{interfaces, is_bridge, is_link_local};
use mpienv_core::seam::{ASKED, POD};

/// Returns what is wrong or suspicious in this process's place, its environment and its host.
///
/// The findings of reading ([`ClusterInfo::findings`]) come first, then those of this module, whose
/// codes are in [the guide](crate::guide::findings).
#[must_use]
pub fn examine(info: &ClusterInfo, machine: &Machine) -> Vec<Finding> {
    // All ranks of a simulated job run on this host, whatever its nodes are called.
    let between_hosts =
        |finding: Option<Finding>| finding.filter(|_| !info.environment().is_set(SIMULATED));
    let (interfaces, is_first) = (&machine.interfaces, info.rank().is_first());
    let of_master = match &machine.master {
        Err(reason) => [unresolved(info, reason), None],
        Ok(found) => [
            not_here(info, found, interfaces).filter(|_| is_first),
            between_hosts(loopback(info, found, interfaces)),
        ],
    };
    let checks: [Option<Finding>; 15] = [
        master_link_local(info),
        port::taken(info, machine.port),
        port::privileged(info, machine.port),
        port::ephemeral(info, machine),
        between_hosts(hostname_loopback(info, machine)),
        stale_open_mpi(machine.gone_session.clone()),
        between_hosts(stale_slurm(info, machine.ended_task)),
        between_hosts(stale_place(machine.ended_launcher.clone())),
        between_hosts(proxy(info)),
        devices::few(info, &machine.topology.devices),
        cores::binding(info, machine.cores),
        cores::device_far(info, machine),
        mpi_library::differs(info, machine),
        interface::nccl(info, interfaces),
        interface::gloo(info, interfaces),
    ];
    let found = of_master.into_iter().chain(checks).flatten();
    info.findings().iter().cloned().chain(found).collect()
}

/// Returns this host's interfaces that `NCCL_SOCKET_IFNAME` allows, by NCCL's own grammar. `None`
/// if it is not set, so that NCCL chooses the interfaces itself.
#[must_use]
pub fn nccl_interfaces<'a>(info: &ClusterInfo, machine: &'a Machine) -> Option<Vec<&'a str>> {
    Some(interface::selected(info.nccl_socket_ifname()?, &machine.interfaces))
}

/// Returns only the finding `master-unresolved` or `master-not-here`, for rank 0 of a job that is
/// known to be on one node.
///
/// If the master is a loopback address or this host's own name, no lookup is made.
pub(crate) fn master_of_one_node(info: &ClusterInfo, patience: Duration) -> Option<Finding> {
    uncertain_master(info).filter(|_| is_on_one_node(info) == Some(true))?;
    // If the process has no place, the master may be right.
    let unplaced = |finding: &Finding| finding.code == "place-unknown";
    if info.findings().iter().any(|it| unplaced(it) && it.severity > Severity::Note) {
        return None;
    }
    master_elsewhere(info, patience).map(|(finding, _)| finding)
}

/// Returns only the finding `master-not-here`, for rank 0 of a job that may be on several nodes. Its
/// program starts, because the address may lead to this host.
pub(crate) fn master_of_several_nodes(info: &ClusterInfo, patience: Duration) -> Option<Finding> {
    let host = uncertain_master(info)?;
    // The launcher's list of hosts has shown it already.
    let is_said = info.findings().iter().any(|finding| finding.code == "master-not-rank-0");
    if is_said || !several_nodes(info) || info.agent_listens() {
        return None;
    }
    // A name that does not resolve yet may do so when the program needs it.
    not_here(info, &addresses(host, patience).ok()?, &interfaces()).map(as_warning)
}

/// Returns an error as it is before a program starts, which may not need what is wrong.
pub(crate) fn as_warning(mut error: Finding) -> Finding {
    error.severity = Severity::Warning;
    error
}

/// Like [`master_of_one_node`], but for rank 0 of any job. Also returns the addresses of the
/// master's name.
pub(crate) fn master_elsewhere(
    info: &ClusterInfo,
    patience: Duration,
) -> Option<(Finding, Vec<IpAddr>)> {
    let host = info.master_addr().ok().filter(|_| info.rank().is_first())?;
    match addresses(host, patience) {
        Err(reason) => Some((unresolved(info, &reason)?, Vec::new())),
        Ok(found) => Some((not_here(info, &found, &interfaces())?, found)),
    }
}

/// Returns the master that this process names, if it is rank 0, unless that is obviously this host.
fn uncertain_master(info: &ClusterInfo) -> Option<&Host> {
    let host = info.master_addr().ok().filter(|_| info.rank().is_first())?;
    let is_own = |own: String| host.to_string().eq_ignore_ascii_case(&own);
    (!host.is_loopback() && !host_name().is_some_and(is_own)).then_some(host)
}

/// Returns whether the job may be on several nodes.
fn several_nodes(info: &ClusterInfo) -> bool {
    is_on_one_node(info) != Some(true)
}

/// Returns whether the job is on one node, if that is known.
fn is_on_one_node(info: &ClusterInfo) -> Option<bool> {
    match (info.launch_style(), info.node_count()) {
        (LaunchStyle::Alone | LaunchStyle::SingleNode, _) => Some(true),
        (LaunchStyle::PerNode | LaunchStyle::PerProcess, _) => Some(false),
        (_, nodes) => nodes.map(|nodes| nodes == 1),
    }
}

fn unresolved(info: &ClusterInfo, reason: &str) -> Option<Finding> {
    let host = info.master_addr().ok()?;
    let master = match &*info.provenance().master_addr {
        "MASTER_ADDR" => format!("MASTER_ADDR is {host}, which"),
        source => format!("the master {host} ({source})"),
    };
    Some(Finding::error(
        "master-unresolved",
        format!("{master} does not resolve here: {reason}"),
        match info.rank().is_first() {
            true => "the other ranks look for this rank, rank 0, by that name",
            false => "this rank cannot reach rank 0",
        },
        unless_stale(
            info,
            "use rank 0's IP address instead, or add the name to DNS or /etc/hosts on every host",
        ),
    ))
}

/// Returns a remedy for a wrong master, after the one for a master that a user named for another
/// job.
fn unless_stale(info: &ClusterInfo, remedy: &str) -> String {
    let Some((host, own)) = info.users_master() else { return remedy.to_owned() };
    let how = match &*host.source {
        ASKED => format!("omit the option that names {}", host.value),
        source => format!("unset {source}={}, if it is left from another job", host.value),
    };
    format!("{how}: this job then uses {own}; or {remedy}")
}

/// Reports that none of the master's addresses, if it has any, belongs to this host, which is rank
/// 0's.
fn not_here(
    info: &ClusterInfo,
    found: &[IpAddr],
    interfaces: &[(String, IpAddr)],
) -> Option<Finding> {
    let host = info.master_addr().ok()?;
    let is_here = |address: &IpAddr| {
        address.is_loopback()
            || address.is_unspecified()
            || interfaces.iter().any(|(_, own)| own == address)
    };
    if found.is_empty() || found.iter().any(is_here) {
        return None;
    }
    if info.agent_listens() {
        return Some(Finding::note(
            "master-not-here",
            format!(
                "this is rank 0, and MASTER_ADDR {host} is the host of another agent of torchrun, which keeps the store"
            ),
            "PyTorch's ranks meet at the store and find each other; a program that listens on rank 0 itself is not found at \
             MASTER_ADDR, nor are the meetings of mpienv",
            format!(
                "none is needed for PyTorch; for others, start torchrun with its static rendezvous (rdzv_backend=static) and \
                 rank 0's host as the master, or give them one of this host's addresses: {}",
                routed(interfaces)
            ),
        ));
    }
    let source = &info.provenance().master_addr;
    // Azure's variables take precedence over MASTER_ADDR.
    let (from, variable) = match source.starts_with("AZ_") {
        true => (format!(" (of {source})"), "MPIENV_MASTER_ADDR"),
        false => (String::new(), "MASTER_ADDR"),
    };
    let own = routed(interfaces);
    let (own, such) = match own.is_empty() {
        true => ("it has only loopback addresses".to_owned(), "an address of this host"),
        false => (format!("its addresses: {own}"), "one of these addresses"),
    };
    Some(Finding::error(
        "master-not-here",
        format!(
            "this is rank 0, but MASTER_ADDR {host}{from} is not an address of this host ({own})"
        ),
        "the other ranks look for rank 0 on another host and never find it",
        unless_stale(
            info,
            &format!(
                "set {variable} to {such} on all ranks, unless this one forwards to this host (a Kubernetes Service, NAT)"
            ),
        ),
    ))
}

/// Lists the addresses at which other hosts may reach this one, with their interfaces; bridges only
/// if there is nothing else.
fn routed(interfaces: &[(String, IpAddr)]) -> String {
    let reachable = interfaces.iter().filter(|(_, own)| !own.is_loopback() && !is_link_local(own));
    let (bridges, others): (Vec<_>, Vec<_>) = reachable.partition(|(name, _)| is_bridge(name));
    let own = if others.is_empty() { bridges } else { others };
    own.iter().map(|(name, address)| format!("{address} ({name})")).collect::<Vec<_>>().join(", ")
}

/// Returns only the finding `master-loopback`, if the job is known to be on several nodes and the
/// master's address is a loopback address, or that of every interface, as it stands, so that no
/// lookup is made.
pub(crate) fn loopback_of_several_nodes(info: &ClusterInfo) -> Option<Finding> {
    let environment = info.environment();
    let host = info.master_addr().ok()?;
    let every = host.address().filter(IpAddr::is_unspecified);
    // By hand, several nodes may be tried on one machine, but each pod is a machine of its own.
    let is_by_hand = info.launcher() == Launcher::User && !environment.is_set(POD);
    if every.is_none() && (is_by_hand || !host.is_loopback())
        || is_on_one_node(info) != Some(false)
        || environment.is_set(SIMULATED)
    {
        return None;
    }
    let address = host.address().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let own = if info.rank().is_first() { interfaces() } else { Vec::new() };
    loopback(info, &[address], &own)
}

fn loopback(
    info: &ClusterInfo,
    found: &[IpAddr],
    interfaces: &[(String, IpAddr)],
) -> Option<Finding> {
    let host = info.master_addr().ok()?;
    let first = found.first()?;
    if info.lacks_own_address()
        || !several_nodes(info)
        || !found.iter().all(|address| address.is_loopback() || address.is_unspecified())
    {
        return None;
    }
    let is_name = host.address().is_none() && !host.is_loopback();
    let (severity, nodes) = match is_on_one_node(info) {
        None => (Severity::Note, "the job may be on several nodes"),
        // Other hosts may resolve the name to a better address.
        Some(_) if is_name => (Severity::Warning, "the job is on several nodes"),
        Some(_) => (Severity::Error, "the job is on several nodes"),
    };
    let what = if is_name {
        format!("MASTER_ADDR {host} resolves to {first} here")
    } else {
        format!("MASTER_ADDR is {host}")
    };
    let own = Some(routed(interfaces)).filter(|own| info.rank().is_first() && !own.is_empty());
    let own = own.map_or(String::new(), |own| format!(" (this is rank 0, with {own})"));
    let mend = if is_name { ", or correct /etc/hosts" } else { "" };
    Some(Finding::new(
        severity,
        "master-loopback",
        format!("{what}, and {nodes}"),
        "on each host this address means the host itself: ranks on other hosts look for rank 0 on their own host and never find it",
        unless_stale(
            info,
            &format!(
                "set MASTER_ADDR for all ranks to an address of rank 0's host that the others can reach{own}{mend}"
            ),
        ),
    ))
}

fn master_link_local(info: &ClusterInfo) -> Option<Finding> {
    let host = info.master_addr().ok()?;
    is_link_local(&host.address()?).then(|| {
        Finding::warning(
            "master-link-local",
            format!("MASTER_ADDR {host} is a link-local address"),
            "it belongs to a different interface on every host, and few programs accept a zone",
            "use a routable address of rank 0's host, or its name",
        )
    })
}

fn hostname_loopback(info: &ClusterInfo, machine: &Machine) -> Option<Finding> {
    let (name, addresses) = &machine.own_name;
    if !several_nodes(info) || addresses.is_empty() || !addresses.iter().all(IpAddr::is_loopback) {
        return None;
    }
    // An interface that was asked for is set for the other libraries too.
    let set = info.interface().map_or(&[][..], |own| &own.variables);
    if set.iter().any(|(variable, _)| *variable == "TP_SOCKET_IFNAME") {
        return None;
    }
    let address = addresses.first()?;
    Some(Finding::warning(
        "hostname-loopback",
        format!("this host's name {name} resolves to {address}"),
        "gloo and others announce the address of their host's name to the other hosts, which then connect to themselves",
        format!(
            "correct /etc/hosts; until then {}set MPIENV_INTERFACE=auto",
            match set {
                [(variable, name), ..] => format!(
                    "gloo works under `mpienv exec` and `launch`, which set {variable}={name}, and for other programs "
                ),
                [] => String::new(),
            }
        ),
    ))
}

/// Returns the finding `stale-open-mpi` for what [`gone_session`] has found.
pub(crate) fn stale_open_mpi(gone: Option<(&'static str, PathBuf)>) -> Option<Finding> {
    let (variable, folder) = gone?;
    Some(Finding::warning(
        "stale-open-mpi",
        format!("{variable} names {}, which does not exist", folder.display()),
        "Open MPI removes it when a job ends: its variables are left from that job, or this container does not mount the folder",
        "start the program with mpirun, mount the folder, or use a shell without OMPI_ and PMIX_ variables",
    ))
}

/// Returns the finding `stale-slurm` for the process that [`ended_task`] has found.
pub(crate) fn stale_slurm(info: &ClusterInfo, ended: Option<u32>) -> Option<Finding> {
    let id = ended.filter(|_| info.launcher() == Launcher::Slurm)?;
    Some(Finding::warning(
        "stale-slurm",
        format!("SLURM_TASK_PID is {id}, and this host has no process {id} of that task"),
        "the task that Slurm set these variables for has ended, or ran on another host: the rank and size are left from it",
        "start the program with srun, or use a shell without SLURM_ variables",
    ))
}

/// Returns the finding `stale-place` for what [`ended_launcher`] has found.
pub(crate) fn stale_place(ended: Option<String>) -> Option<Finding> {
    Some(Finding::warning(
        "stale-place",
        ended?,
        "the launcher that set these variables has probably ended, or ran on another host: the rank and size are left from it",
        "start the program with the launcher, or use a shell without its variables",
    ))
}

fn proxy(info: &ClusterInfo) -> Option<Finding> {
    let environment = info.environment();
    let host = info.master_addr().ok()?.to_string();
    let get = |name: &str| environment.get(name).map(|value| value.to_string_lossy().into_owned());
    let names = [
        "grpc_proxy",
        "https_proxy",
        "http_proxy",
        "all_proxy",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "ALL_PROXY",
    ];
    let name = names.into_iter().find(|name| environment.is_set(name))?;
    let left_out = |list: String| {
        list.split(',').map(str::trim).any(|entry| entry == "*" || covers(entry, &host))
    };
    if !several_nodes(info) || ["no_proxy", "NO_PROXY"].into_iter().filter_map(get).any(left_out) {
        return None;
    }
    Some(Finding::warning(
        "proxy",
        format!("{name} is set, but no_proxy does not exempt the master {host}"),
        "programs that use gRPC or HTTP would send their connections to rank 0 through the proxy",
        format!("add {host} to no_proxy on all hosts, or unset {name} for the job"),
    ))
}

/// Returns whether an entry of no_proxy covers a host: the host itself, or a domain or a range of
/// addresses that contains it.
fn covers(entry: &str, host: &str) -> bool {
    if let (Ok(range), Ok(address)) = (entry.parse::<Subnet>(), host.parse()) {
        return range.contains(address);
    }
    let domain = entry.strip_prefix('.').unwrap_or(entry);
    !domain.is_empty()
        && (host == domain || host.strip_suffix(domain).is_some_and(|front| front.ends_with('.')))
}
