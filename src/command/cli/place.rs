//! The options that tell where this process is, and how a place is read with them.

use std::str::FromStr;

use crate::{
    ClusterInfo, ClusterInfoBuilder, Environment, Error, Finding, Host, Interface, Launcher,
    MasterPort, NcclIfname, PortRange, Rank, Reason, UnknownName,
};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use mpienv_ask::on_interface;
use mpienv_ask::seam::{
    ask_if_needed, keep_pmix, on_own_interfaces, precludes_mpi, read_with_pmix,
};

use super::{Quiet, launcher_connection, number, stream};

/// Values that take precedence over the environment.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct PlaceOptions {
    /// Use this launcher instead of detecting one [env: MPIENV_LAUNCHER]
    ///
    /// `user` reads a RANK and a WORLD_SIZE that you have set yourself; `alone` is for a single
    /// process.
    #[arg(long, value_name = "NAME", value_parser = named(Launcher::ALL, Launcher::name))]
    launcher: Option<Launcher>,
    /// The host of rank 0 [env: MPIENV_MASTER_ADDR]
    #[arg(long, value_name = "HOST", alias = "master_addr")]
    master_addr: Option<Host>,
    /// The port at the host of rank 0, or `auto` to derive one from the job [env:
    /// MPIENV_MASTER_PORT]
    #[arg(long, value_name = "PORT", alias = "master_port")]
    master_port: Option<MasterPort>,
    /// Derive ports from this range, 20000-29999 by default; the same on all ranks [env:
    /// MPIENV_PORT_RANGE]
    #[arg(long, value_name = "LOW-HIGH")]
    port_range: Option<PortRange>,
    /// NCCL_SOCKET_IFNAME: a value, `keep` or `unset` [env: MPIENV_NCCL_IFNAME]
    #[arg(long, value_name = "VALUE", value_parser = ifname)]
    nccl_ifname: Option<NcclIfname>,
    /// Let gloo, TensorPipe, NCCL, UCX and vLLM use this network interface: `auto`, a name, or a
    /// range of addresses such as 10.0.0.0/16 [env: MPIENV_INTERFACE]
    ///
    /// auto: the interface with the route to rank 0's host. Sets GLOO_SOCKET_IFNAME,
    /// TP_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, UCX_NET_DEVICES and VLLM_HOST_IP, each unless you have
    /// set it. Without this option, `exec` and `launch` set only GLOO_SOCKET_IFNAME, and only if
    /// the job is on several nodes and gloo would use a loopback address, because this host's name
    /// has no other one (`default`); `keep` sets nothing.
    #[arg(long, value_name = "INTERFACE")]
    interface: Option<Interface>,
    /// This is the only process on its node, and its rank is the number of the node
    #[arg(long, conflicts_with_all = ["node_rank", "nnodes"])]
    one_per_node: bool,
    /// The number of this node, from 0, if the platform does not set it; needs --nnodes
    #[arg(
        long,
        value_name = "R",
        alias = "node_rank",
        requires = "nnodes",
        conflicts_with = "launcher",
        value_parser = number
    )]
    node_rank: Option<u32>,
    /// The number of nodes, each with one process; above 1, needs --node-rank and a master such as
    /// --master-addr
    #[arg(long, value_name = "N", conflicts_with = "launcher", value_parser = nodes)]
    nnodes: Option<u32>,
    /// Ask the launcher's PMIx server for the host of rank 0; `mpienv export --help` has its limits
    #[arg(long)]
    ask_pmix: bool,
}

/// Returns a parser of one of these by name for clap, whose help and completions list the names.
pub(super) fn named<T>(
    all: &'static [T],
    name_of: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + FromStr<Err = UnknownName>,
{
    PossibleValuesParser::new(all.iter().map(|&one| name_of(one))).try_map(|name| name.parse::<T>())
}

/// Parses the value of `--nnodes`.
fn nodes(text: &str) -> Result<u32, &'static str> {
    let nodes = number(text)?;
    if nodes == 0 { Err("expected a whole number of 1 or more") } else { Ok(nodes) }
}

/// Parses the value of `--nccl-ifname`, which may be any text but none.
fn ifname(text: &str) -> Result<NcclIfname, &'static str> {
    let is_empty = text.trim().is_empty();
    let expected = "expected NCCL's names of interfaces, `keep`, or `unset` to let NCCL choose";
    if is_empty { Err(expected) } else { Ok(text.into()) }
}

impl PlaceOptions {
    /// Returns what reads this process's place with these values.
    fn builder(&self) -> Result<ClusterInfoBuilder, Error> {
        let own = self.clone();
        let mut builder = ClusterInfo::builder().environment(&Environment::current());
        builder = own.launcher.into_iter().fold(builder, ClusterInfoBuilder::launcher);
        builder = own.master_addr.into_iter().fold(builder, ClusterInfoBuilder::master_addr);
        builder = own.master_port.into_iter().fold(builder, ClusterInfoBuilder::master_port);
        builder = own.port_range.into_iter().fold(builder, ClusterInfoBuilder::port_range);
        builder = own.nccl_ifname.into_iter().fold(builder, ClusterInfoBuilder::nccl_ifname);
        builder = own.interface.into_iter().fold(builder, ClusterInfoBuilder::interface);
        if let Some(nodes) = own.nnodes {
            // The only node has number 0.
            let only = (nodes == 1).then_some(0);
            let rank = own.node_rank.or(only).ok_or_else(|| {
                let reason = Reason::Malformed(format!("not given, although --nnodes {nodes} is"));
                let remedy = format!("give each node its number, 0 to {}", nodes - 1);
                Error::new(reason, remedy).of("--node-rank")
            })?;
            let outside = |error| {
                let remedy = "give a number below --nnodes";
                Error::new(error, remedy).of("--node-rank").found(rank.to_string())
            };
            builder = builder.node(Rank::new(rank, nodes).map_err(outside)?);
        }
        Ok(if own.one_per_node { builder.one_per_node() } else { builder })
    }

    /// Reads the process's place. Asks the launcher only if `--ask-pmix` says so.
    pub(super) fn read(&self, quiet: Quiet) -> Result<ClusterInfo, Error> {
        self.read_with(&self.builder()?, quiet)
    }

    fn read_with(&self, builder: &ClusterInfoBuilder, quiet: Quiet) -> Result<ClusterInfo, Error> {
        if !self.ask_pmix {
            return builder.read();
        }
        let environment = builder.snapshot();
        if !quiet.is_asked(&environment) {
            warn_of_asking(&environment);
        }
        let info = read_with_pmix(builder)?;
        keep_pmix(&info, &launcher_connection::start)?;
        Ok(info)
    }
}

/// The place of a command that all ranks run, and whether it asks the launcher for what its
/// variables do not say.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct JointPlaceOptions {
    #[command(flatten)]
    place: PlaceOptions,
    /// Do not ask the launcher for the host of rank 0 if nothing names it [env: MPIENV_ASK=0]
    ///
    /// Under MPICH, Intel MPI, MVAPICH and Flux, mpienv asks over PMI. All ranks must run the same
    /// command, and wait 60 s for each other, or as many seconds as MPIENV_ASK says. Under Open
    /// MPI 5 and PRRTE, it asks over PMIx.
    #[arg(long)]
    no_ask: bool,
}

impl JointPlaceOptions {
    /// Reads the process's place, and asks the launcher if nothing names the master.
    pub(super) fn read(&self, quiet: Quiet) -> Result<ClusterInfo, Error> {
        let builder = self.place.builder()?;
        let read = self.place.read_with(&builder, quiet);
        if self.no_ask {
            return read;
        }
        ask_if_needed(read, &builder, Some(&launcher_connection::start))
    }

    /// Like [`JointPlaceOptions::read`], for a command that only inspects: if the launcher does not
    /// answer, returns what the variables say, and the finding `launcher-no-answer`. Asks only if
    /// `may_ask`.
    pub(super) fn inspect(&self, may_ask: bool) -> Result<(ClusterInfo, Option<Finding>), Error> {
        let builder = self.place.builder()?;
        let read = self.place.read_with(&builder, Quiet::NEVER);
        if self.no_ask || !may_ask {
            return Ok((read?, None));
        }
        let unasked = read.as_ref().ok().cloned();
        match (ask_if_needed(read, &builder, Some(&launcher_connection::start)), unasked) {
            (Ok(info), _) => Ok((info, None)),
            (Err(error), None) => Err(error),
            (Err(error), Some(info)) => Ok((info, Some(no_answer(&error)))),
        }
    }
}

fn no_answer(error: &Error) -> Finding {
    let text = error.to_string();
    let what = text.strip_suffix(&format!("; {}", error.remedy())).unwrap_or(&text);
    Finding::error(
        "launcher-no-answer",
        what,
        "the commands that ask the launcher for rank 0's host fail with this error",
        // After the reason, an error's remedy may go on with "or".
        error.remedy().trim_start_matches("or "),
    )
}

/// Warns once on each node of what `--ask-pmix` costs, because a program that is started later
/// would fail without naming the cause.
fn warn_of_asking(environment: &Environment) {
    let is_first = environment.get("OMPI_COMM_WORLD_LOCAL_RANK").is_none_or(|rank| rank == "0");
    if is_first && precludes_mpi(environment) {
        let style = anstyle::AnsiColor::Yellow.on_default().bold();
        let text = format!(
            "{style}mpienv: warning:{style:#} --ask-pmix under Open MPI 4: this rank and the programs it starts can no \
             longer call MPI_Init; if a program needs MPI, first run `mpirun ... mpienv show --ask-pmix` on the same hosts, \
             then start the job with `mpirun -x MASTER_ADDR=HOST`\n"
        );
        stream::report(&text);
    }
}

/// Returns the place with the interface that `exec` and `launch` select. Without an option or a
/// variable, no name is resolved for it.
pub(super) fn on_known_interface(info: ClusterInfo) -> Result<ClusterInfo, Error> {
    match info.asked_interface() {
        Some(_) => on_interface(&info),
        None => Ok(on_own_interfaces(info)),
    }
}
