//! `mpienv show`: each value and where it comes from.

use std::io;

use crate::command::check::measurement::{WIDEST, or_dash};
use crate::command::doctor::devices::HostDevices;
use crate::command::{doctor, protection};
use crate::{ClusterInfo, Environment, Finding, Host, OwnAddr, OwnInterface, host_name};
use clap::Args;
use mpienv_ask::seam::would_ask;
use mpienv_core::seam::{counted, printable};
use mpienv_launch::seam::{
    Cpus, Topology, allowed_cpus, count_cores, nodes_of, numa_nodes, topology,
};
use serde_json::{Value, json};

use super::place::{PlaceOptions, on_known_interface};
use super::threads::{Runs, ThreadShare, ThreadsOption};
use super::warn::suspicious;
use super::{Failure, Quiet, examples, lines_of, stream, version};

/// How many hosts the table lists in full. JSON lists all.
const MOST_SHOWN: usize = 4;

/// Show each value and where it comes from
#[derive(Args, Debug)]
#[command(after_help = examples::SHOW)]
pub(super) struct Options {
    #[command(flatten)]
    place: PlaceOptions,
    /// Show this host's own address and interface too, by the route to the master
    ///
    /// Resolves the master's name, which takes at most 10 seconds, and sends no packet.
    #[arg(long)]
    own_addr: bool,
    /// Print warnings on stderr too, once on each node, as `exec` does
    #[arg(long)]
    warn: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: Options) -> Result<(), Failure> {
    let Options { place, own_addr, warn, json } = options;
    let info = place.read(Quiet::NEVER)?;
    let threads = ThreadsOption::default().share(&info, Runs::default())?;
    let too_many = threads.finding();
    let warnings = if warn { suspicious(&info, too_many.clone()) } else { Vec::new() };
    Quiet::NEVER.print(&info, &warnings);
    let info = on_known_interface(info)?;
    let own = if own_addr { Some(mpienv_ask::own_addr(&info)?) } else { None };
    let host = topology(info.environment());
    let info = &info;
    let cpus = allowed_cpus().unwrap_or_default();
    let details = Details::new(info, own, threads, cpus, &host);
    let of_place = info.findings().iter().cloned().map(|found| as_asked(found, info));
    let of_host = [
        doctor::loopback_of_several_nodes(info),
        doctor::port::privileged_of_rank_0(info),
        doctor::devices::few(info, &host.devices),
        doctor::cores::binding(info, count_cores()),
        too_many,
    ];
    let mut findings: Vec<Finding> = of_place.chain(of_host.into_iter().flatten()).collect();
    for warning in warnings {
        if findings.iter().all(|found| found.code != warning.code) {
            findings.push(warning);
        }
    }
    if json {
        return Ok(stream::print_json(&details.object(&findings)?)?);
    }
    let gap = if findings.is_empty() { "" } else { "\n" };
    // munged may take its time, and show connects to nothing.
    let rows = [rows(info), details.rows(None), details.variables()].concat();
    let text = table(&rows) + gap + &lines_of(&findings);
    Ok(stream::print_styled(&text)?)
}

/// Returns a finding as it is for the commands that ask the launcher.
pub(super) fn as_asked(found: Finding, info: &ClusterInfo) -> Finding {
    if found.code != "master-unknown" || !would_ask(info) {
        return found;
    }
    Finding::note(
        found.code,
        "no variable names rank 0's host, and this command does not ask the launcher",
        "`export`, `exec`, `launch`, `check` and `doctor` ask it for the host",
        "none is needed; `mpienv check`, started as every rank, shows the host",
    )
}

/// What is shown beside the values of `rows`.
pub(super) struct Details<'a> {
    info: &'a ClusterInfo,
    own: Option<OwnAddr>,
    pub threads: ThreadShare,
    /// `None` if the system does not tell.
    pub binding: Option<Binding>,
    /// `None` if the host has none.
    pub devices: Option<HostDevices>,
}

/// The CPUs that this process may use, how many cores they belong to, and the NUMA nodes of these.
pub(super) struct Binding {
    cpus: Cpus,
    cores: usize,
    nodes: Vec<u32>,
}

impl Binding {
    pub(super) fn object(&self) -> Value {
        let Binding { cpus, cores, nodes } = self;
        json!({ "cpus": cpus.to_string(), "cores": cores, "numa_nodes": nodes })
    }

    fn row(&self) -> [String; 3] {
        // The list may be long, and a long value would push away all sources.
        let Binding { cpus, cores, nodes } = self;
        let on =
            if nodes.is_empty() { String::new() } else { format!(" on {}", numa_nodes(nodes)) };
        row("binding", counted(*cores, "core"), format!("CPUs {cpus}{on}"))
    }
}

impl<'a> Details<'a> {
    /// Gathers what is shown of this process, which may use these CPUs of its host.
    pub(super) fn new(
        info: &'a ClusterInfo,
        own: Option<OwnAddr>,
        threads: ThreadShare,
        cpus: Cpus,
        host: &Topology,
    ) -> Details<'a> {
        let cores = host.cores_of(&cpus);
        let binding = Binding { cpus, cores: cores.len(), nodes: nodes_of(&cores) };
        let binding = Some(binding).filter(|own| !own.cpus.is_empty());
        let devices = HostDevices::of(&host.devices, info.environment());
        Details { info, own, threads, binding, devices }
    }

    /// Returns the JSON object of the place, with these findings instead of its own.
    fn object(&self, findings: &[Finding]) -> io::Result<Value> {
        let mut object = serde_json::to_value(self.info)?;
        object["version"] = version::TEXT.into();
        object["host"] = host_name().into();
        object["threads"] = self.threads.object(self.info);
        let refused = self.info.clone().require_place().err();
        object["refused"] = refused.map(|error| error.to_string()).into();
        if self.info.asked_interface().is_some() {
            object["interface"] = interface_object(self.info);
        }
        if let Some(own) = &self.own {
            object["own_addr"] = own.address.to_string().into();
            object["own_interface"] = own.interface.clone().into();
        }
        object["binding"] = self.binding.as_ref().map_or(Value::Null, Binding::object);
        object["devices"] = serde_json::to_value(&self.devices)?;
        object["findings"] = serde_json::to_value(findings)?;
        Ok(object)
    }

    /// Returns the rows after those of the place. `munged` is what munged answered, if it was asked.
    pub(super) fn rows(&self, munged: Option<&Result<(), String>>) -> Vec<[String; 3]> {
        let (info, from) = (self.info, self.info.provenance());
        let mut rows = vec![
            protection::row(info, munged),
            self.threads.row(info),
            row("hosts", or_dash(info.hosts().map(hosts)), &from.hosts),
            row("device index", or_dash(info.device_index()), &from.device_index),
        ];
        rows.extend(
            info.restart_count().map(|count| row("restart count", count, &from.restart_count)),
        );
        rows.extend(info.platform().map(|platform| row("platform", platform, &from.platform)));
        if let Some(OwnAddr { address, interface, .. }) = &self.own {
            let route = "the route to the master address";
            rows.push(row("own address", address, route));
            rows.push(row("own interface", or_dash(interface.as_ref()), route));
        }
        rows.extend(self.binding.as_ref().map(Binding::row));
        rows.extend(self.devices.as_ref().map(HostDevices::row));
        rows.extend(
            info.interface().map(|own| {
                row("interface", &own.name, format!("{} ({})", own.source, own.address))
            }),
        );
        rows
    }

    /// Returns the rows of the interface's variables.
    fn variables(&self) -> Vec<[String; 3]> {
        let own = self.info.interface().into_iter();
        let set = own.flat_map(|own| variables(own, self.info.environment()));
        let row = |(name, value, is_kept): (&str, String, bool)| {
            let source = if is_kept { "set already, kept" } else { "set" };
            row(name, printable(value.as_bytes()), source)
        };
        set.map(row).collect()
    }
}

/// Returns rows as lines with aligned columns.
pub(super) fn table(rows: &[[String; 3]]) -> String {
    let width = |column: fn(&[String; 3]) -> &String| {
        let widest = rows.iter().map(|row| column(row).chars().count()).max();
        widest.unwrap_or_default().min(WIDEST)
    };
    let (names, values) = (width(|row| &row[0]), width(|row| &row[1]));
    let (bold, dim) = (anstyle::Style::new().bold(), anstyle::Style::new().dimmed());
    let line = |[name, value, source]: &[String; 3]| {
        format!("{name:names$}  {bold}{value:values$}{bold:#}  {dim}{source}{dim:#}\n")
    };
    rows.iter().map(line).collect()
}

/// Returns the row of a value and its source.
fn row(name: &str, value: impl ToString, source: impl ToString) -> [String; 3] {
    [name.to_owned(), value.to_string(), source.to_string()]
}

/// Returns each value's name, the value, and its source.
pub(super) fn rows(info: &ClusterInfo) -> Vec<[String; 3]> {
    let from = info.provenance();
    // What is not known is not set.
    let of_place = |name, value: Option<u32>, source: &str, variable| {
        let left = info.inherited(variable).filter(|_| value.is_none());
        let left = left.map_or(String::new(), |left| {
            format!("; {variable}={} is inherited", printable(left.as_encoded_bytes()))
        });
        row(name, or_dash(value), format!("{source}{left}"))
    };
    let interfaces = info.nccl_socket_ifname().map(|names| printable(names.as_bytes()));
    vec![
        row("launcher", info.launcher(), &from.launcher),
        row("rank", info.rank(), &from.rank),
        row("world size", info.world_size(), &from.world_size),
        of_place("local rank", info.local_rank(), &from.local_rank, "LOCAL_RANK"),
        of_place(
            "local world size",
            info.local_world_size(),
            &from.local_world_size,
            "LOCAL_WORLD_SIZE",
        ),
        of_place("node rank", info.node_rank(), &from.node_rank, "NODE_RANK"),
        row("node count", or_dash(info.node_count()), &from.node_count),
        row("launch style", info.launch_style(), &from.launch_style),
        row("master address", or_dash(info.master_addr().ok()), &from.master_addr),
        row("master port", info.master_port(), &from.master_port),
        row("NCCL interfaces", or_dash(interfaces), &from.nccl_socket_ifname),
    ]
}

/// Returns a variable of the interface, what the program finds in it, and whether the user set it.
fn variables<'a>(
    own: &'a OwnInterface,
    environment: &'a Environment,
) -> impl Iterator<Item = (&'static str, String, bool)> + 'a {
    let set = own.variables.iter().map(|(name, value)| (*name, value.clone(), false));
    let kept = own.kept.iter().map(|name| {
        let value = environment.get(name).map(|value| value.to_string_lossy().into_owned());
        (*name, value.unwrap_or_default(), true)
    });
    set.chain(kept)
}

/// Returns what `exec` and `launch` set to the interface. Null if there is nothing to set.
pub(super) fn interface_object(info: &ClusterInfo) -> Value {
    let Some(own) = info.interface() else { return Value::Null };
    let entries = variables(own, info.environment());
    let values: serde_json::Map<_, _> =
        entries.map(|(name, value, _)| (name.to_owned(), value.into())).collect();
    serde_json::json!({
        "name": own.name,
        "address": own.address,
        "source": own.source,
        "variables": values,
        "kept": own.kept,
    })
}

/// Lists the hosts of a few nodes, or only the first two and the last of many.
fn hosts(hosts: &[Host]) -> String {
    match hosts {
        [first, second, .., last] if hosts.len() > MOST_SHOWN => {
            format!("{first}, {second}, ..., {last} ({} hosts)", hosts.len())
        }
        all => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}
