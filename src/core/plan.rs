//! What a program gets: decided once, then printed or performed.
//!
//! A plan follows from the place of this process, and from what the user asks for. Whatever it
//! still needs, the caller finds out and plans again. Nothing here touches the process.

use std::ffi::OsString;

use crate::cluster::context::{CONTEXT, Context, Seen, Server};
use crate::cluster::discover::launcher_of;
use crate::cluster::info::{Carried, ClusterInfo};
use crate::cluster::master::{Meeting, Scope};
use crate::cluster::overrides::LAUNCHER;
use crate::cluster::threads::ThreadCount;
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::export::{Exports, Placeholders, Set, Target, TargetFile, TemplateError};
use crate::launcher::{Launcher, VARIABLES};
use crate::value::rank::Rank;
use crate::value::sourced::Known;

/// Variables of this process that the workers of a node's launcher must not take for their own.
const OF_THIS_PROCESS: [&str; 6] =
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", LAUNCHER, CONTEXT];

/// torchrun's own name for the number of workers.
const WORKERS: &str = "PET_NPROC_PER_NODE";

/// What decides what a program gets, besides the place of this process.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Who reads the variables.
    pub reader: Reader,
    /// Whether an inner mpienv must tell this program's variables from those of a launcher that
    /// the program starts: see [`ClusterInfo::marked`].
    pub is_marked: bool,
    /// The number of threads that its libraries start. `None` keeps the variables as they are.
    pub threads: Option<ThreadCount>,
    /// Whether it keeps the launcher's binding to cores.
    pub keeps_binding: bool,
    /// The codes of the warnings that are printed before it starts.
    pub said: Vec<String>,
    /// Variables of what this process has done for it.
    pub also: Vec<(&'static str, String)>,
    /// The words of the command, if there is one.
    pub words: Vec<OsString>,
    /// Whether the words have placeholders.
    pub is_template: bool,
    /// Whether all ranks meet before the program starts, so that they can agree on a secret.
    pub meets: bool,
    /// The secret that they have agreed on.
    pub secret: Option<String>,
}

/// Who reads the variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A rank's program.
    Program(Target),
    /// A launcher of the node's ranks, such as torchrun.
    Node,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader::Program(Target::default())
    }
}

/// What a program gets.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The words of its command, or why they cannot be expanded. Until the ranks have met,
    /// `{secret}` stands for itself.
    pub words: Result<Vec<OsString>, WordsError>,
    /// Its variables, or why they are not known.
    pub variables: Result<Exports, Error>,
    /// The file that it reads. It is written when the plan is performed, and its path becomes the
    /// value of its variable.
    pub file: Option<TargetFile>,
    /// The variables of the scheduler that has to run beside it.
    pub scheduler: Option<Exports>,
    /// The number of OpenMP threads among its variables. `None` if no number is set for it.
    pub threads: Option<u32>,
    /// What is still to be found out.
    pub needs: Needs,
}

/// What the ranks have to tell each other before the plan is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Where each rank listens.
    pub endpoints: bool,
    /// A secret.
    pub secret: bool,
}

/// Why the words of the command cannot be expanded.
#[derive(Clone, thiserror::Error)]
pub enum WordsError {
    /// A placeholder needs a place that this process does not have.
    #[error(transparent)]
    Place(#[from] Error),
    /// A word is wrong.
    #[error(transparent)]
    Words(#[from] TemplateError),
}

debug_is_text!(WordsError);

impl Plan {
    /// Plans for the program of this process's rank or node.
    #[must_use]
    pub fn new(info: &ClusterInfo, options: &Options) -> Plan {
        let (words, secrets) = match words(info, options) {
            Ok((words, secrets)) => (Ok(words), secrets),
            Err(error) => (Err(error), Vec::new()),
        };
        let variables = match options.reader {
            Reader::Program(set) => of_program(info, set, options),
            Reader::Node => of_node(info, options).map(|exports| (exports, None)),
        };
        let asks = |error: &Error| matches!(error.reason(), Reason::HostsUnknown { .. });
        let has_secret = options.is_template && Placeholders::have_secret(&options.words);
        let needs = Needs {
            endpoints: variables.as_ref().is_err_and(asks),
            secret: has_secret && options.meets && options.secret.is_none(),
        };
        let (variables, file) = match variables {
            Ok((mut exports, file)) => {
                options.also.iter().for_each(|(name, value)| exports.set(*name, value.clone()));
                secrets.into_iter().for_each(|(name, value)| exports.set(name, value));
                (Ok(exports), file)
            }
            Err(error) => (Err(error), None),
        };
        let scheduler = match options.reader {
            Reader::Program(set) if info.rank().is_first() => {
                variables.as_ref().ok().and_then(|exports| exports.of_scheduler(set))
            }
            _ => None,
        };
        let threads = info.omp_threads(options.threads);
        Plan { words, variables, file, scheduler, threads, needs }
    }

    /// Returns the variables for a shell, which reads no file.
    ///
    /// # Errors
    /// Returns an error if the variables are not known, or if the program reads a file.
    pub fn for_shell(self, reader: Reader) -> Result<Exports, Error> {
        let exports = self.variables?;
        match (reader, self.file) {
            (Reader::Program(set), file) => of_shell(set, (exports, file)),
            (Reader::Node, _) => Ok(exports),
        }
    }
}

/// Names and values.
type Variables = Vec<(String, String)>;

/// Returns the words of the command, and the variables in which it gets the secret.
fn words(info: &ClusterInfo, options: &Options) -> Result<(Vec<OsString>, Variables), WordsError> {
    let words = &options.words;
    if !options.is_template {
        return Ok((words.clone(), Vec::new()));
    }
    let values = match options.reader {
        Reader::Node => info.per_node_placeholders()?,
        Reader::Program(_) => info.placeholders(),
    };
    match &options.secret {
        _ if !options.meets || !Placeholders::have_secret(words) => {
            Ok((values.expand_words(words)?, Vec::new()))
        }
        Some(secret) => Ok(values.with_secret(secret).expand_apart(words)?),
        None => Ok((values.with_secret("{secret}").expand_words(words)?, Vec::new())),
    }
}

/// Returns the variables that all programs of a rank get.
pub(crate) fn of_rank(info: &ClusterInfo, options: &Options) -> Result<Exports, Error> {
    let Carried { overrides, to_unset, context } = carried(info, options);
    let number = |value: Option<u32>| value.map(|value| value.to_string());
    let mut exports = Exports::default();
    for (name, value) in [
        ("RANK", number(Some(info.rank().index()))),
        ("WORLD_SIZE", number(Some(info.world_size()))),
        ("LOCAL_RANK", number(info.local_rank())),
        ("LOCAL_WORLD_SIZE", number(info.local_world_size())),
        ("NODE_RANK", number(info.node_rank())),
        ("MASTER_ADDR", Some(info.master_addr()?.to_string())),
        ("MASTER_PORT", Some(info.master_port().to_string())),
        ("NCCL_SOCKET_IFNAME", info.nccl_socket_ifname().map(str::to_owned)),
    ] {
        value.into_iter().for_each(|value| exports.set(name, value));
    }
    overrides.into_iter().for_each(|(name, value)| exports.set(name, value));
    to_unset.into_iter().for_each(|name| exports.remove_unless_set(name));
    for (name, count) in info.threads(options.threads) {
        exports.set(name, count.to_string());
    }
    set_interface(info, &mut exports);
    if let Some(launcher) = context {
        let context = context_of(info, options, launcher, Seen::now(&info.inherited), &exports);
        exports.set(CONTEXT, context.to_text());
    }
    Ok(exports)
}

/// Returns what the exports carry besides the values.
fn carried(info: &ClusterInfo, options: &Options) -> Carried {
    let place = if options.is_marked { &info.marked() } else { info };
    let mut carried = place.carried.clone();
    if options.threads.is_some() {
        // Without a context, an inner mpienv takes what this one sets for the user's own.
        carried.context.get_or_insert(info.launcher());
    }
    carried
}

fn set_interface(info: &ClusterInfo, exports: &mut Exports) {
    for (name, value) in info.interface().iter().flat_map(|own| &own.variables) {
        exports.set(*name, value.clone());
    }
}

/// Returns the variables that a rank's program reads, and the file that it needs besides.
pub(crate) fn of_program(
    info: &ClusterInfo,
    set: Target,
    options: &Options,
) -> Result<(Exports, Option<TargetFile>), Error> {
    let inherited: &Environment = &info.inherited;
    let mut exports = of_rank(info, options)?;
    let context = carried(info, options).context;
    let Set { additions, place, unset, file, .. } = set.set();
    if set.set().adds_nothing() && context.is_none() {
        return Ok((exports, None));
    }
    let before = inherited.with(exports.iter());
    let file = file.map(|file| file(info)).transpose()?.flatten();
    for addition in *additions {
        if let Some(value) = (addition.value)(info)? {
            exports.set(addition.name, value);
        }
    }
    let place = place
        .map(|place| place(info, &inherited.with(exports.iter())))
        .transpose()?
        .unwrap_or_default();
    let is_placed = !place.is_empty();
    place.into_iter().for_each(|(name, value)| exports.set(name, value));
    let wanted =
        |name: &&str| unset.iter().any(|prefix| name.starts_with(prefix)) && is_plain(name);
    let names: Vec<_> = inherited.names().filter(wanted).map(str::to_owned).collect();
    // mpienv in a child process cannot detect the launcher from variables that were unset.
    let is_gone = !names.is_empty();
    if is_gone && inherited.is_set(LAUNCHER) && context.is_none() {
        exports.set(LAUNCHER, Launcher::User.name().to_owned());
    }
    let takes_some =
        info.launcher().variables().any(|variable| names.iter().any(|name| name == variable.name));
    names.into_iter().for_each(|name| exports.remove(name));
    let after = inherited.with(exports.iter());
    // The launcher would still be detected, but its variables could not be read.
    let is_torn = takes_some && (info.launcher().spec().marker)(&after).is_some();
    // The program's variables are also those of a launcher of its own.
    let is_other = || launcher_of(&after) != launcher_of(&before);
    // The context keeps launcher variables that are meant only for the program from misleading
    // other processes.
    let context =
        context.or_else(|| (is_placed || is_torn || is_other()).then_some(info.launcher()));
    if let Some(launcher) = context {
        let launcher = if is_gone { Launcher::User } else { launcher };
        let context = context_of(info, options, launcher, Seen::now(&after), &exports);
        exports.set(CONTEXT, context.to_text());
    }
    Ok((exports, file))
}

/// Returns the variables for a shell, which reads no file.
pub(crate) fn of_shell(
    set: Target,
    (exports, file): (Exports, Option<TargetFile>),
) -> Result<Exports, Error> {
    let Some(TargetFile { variable, .. }) = file else { return Ok(exports) };
    let what = "a file with the addresses of the ranks".to_owned();
    let remedy = format!(
        "start the program with `mpienv exec --for {0}` or `mpienv launch --for {0}`, which write it, or set {variable} \
         to a file of your own",
        set.name()
    );
    Err(Error::new(Reason::ProgramNeeds { program: set.title(), what }, remedy).of(variable))
}

/// Returns the variables of a launcher of the node's ranks.
pub(crate) fn of_node(info: &ClusterInfo, options: &Options) -> Result<Exports, Error> {
    info.check_per_node()?;
    let (node, nodes) = (info.rank().to_string(), info.world_size().to_string());
    let (host, port) = (info.master_addr()?.to_string(), info.master_port().to_string());
    let mut exports = Exports::default();
    for (plain, pet, value) in [
        ("NODE_RANK", "PET_NODE_RANK", node),
        ("NNODES", "PET_NNODES", nodes),
        ("MASTER_ADDR", "PET_MASTER_ADDR", host),
        ("MASTER_PORT", "PET_MASTER_PORT", port),
    ] {
        exports.set(plain, value.clone());
        exports.set(pet, value);
    }
    // A user's own value takes precedence over the platform's.
    let workers = info.workers_per_node().filter(|_| !info.inherited.is_set(WORKERS));
    if let Some(workers) = workers {
        exports.set(WORKERS, workers.to_string());
    }
    if let Some(value) = info.nccl_socket_ifname() {
        exports.set("NCCL_SOCKET_IFNAME", value.to_owned());
    }
    set_interface(info, &mut exports);
    let to_unset = OF_THIS_PROCESS.iter().chain(&info.carried.to_unset);
    to_unset.for_each(|name| exports.remove_unless_set(name));
    // The launcher divides the node's cores among its workers.
    info.own_threads(options.threads).into_iter().for_each(|(name, _)| exports.remove(name));
    Ok(exports)
}

/// Returns the context that processes inherit together with these exports.
fn context_of(
    info: &ClusterInfo,
    options: &Options,
    launcher: Launcher,
    mut seen: Seen,
    exports: &Exports,
) -> Context {
    for (name, value) in
        exports.iter().filter(|(name, _)| VARIABLES.contains(*name) || name.starts_with("MASTER_"))
    {
        seen.put(name, value);
    }
    for (name, count) in info.own_threads(options.threads) {
        seen.put(name, Some(&count.to_string()));
    }
    seen.put_starters(&info.inherited);
    let Meeting { addr, addr_scope, port_scope, token_scope, .. } = &info.meeting;
    let addr = addr.as_ref().ok().filter(|_| *addr_scope == Scope::Job);
    let server = addr.and_then(|addr| Server::of_master(&addr.source));
    let server_of_place = server.filter(|_| launcher == info.launcher());
    let is_answer = |known: &Known<u32>| {
        known.as_ref().zip(server_of_place).is_some_and(|(known, it)| known.source == it.source())
    };
    let rank = |index: Option<u32>, size: Option<u32>| Rank::new(index?, size?).ok();
    let node = rank(info.node_rank(), info.node_count());
    let local = rank(info.local_rank(), info.local_world_size());
    let token = Some(info.token().as_str()).filter(|token| !token.is_empty());
    Context {
        launcher,
        master_addr: addr.map(|addr| addr.value.to_string()),
        master_port: (*port_scope == Scope::Job).then(|| info.master_port().to_string()),
        is_port_chosen: *port_scope == Scope::Job && info.meeting.default_port.is_used,
        token: token.filter(|_| *token_scope == Scope::Job).map(str::to_owned),
        server,
        place: Some(info.rank())
            .filter(|rank| rank.size() > 1)
            .map(|rank| (rank, info.local_world_size() == Some(1) && info.node_count() != Some(1))),
        node: node.filter(|_| is_answer(&info.placement.node_rank)),
        // Flux sets the local rank alone.
        local: local.filter(|_| is_answer(&info.placement.local_size)),
        seen,
        said: [&info.earlier.said[..], &options.said].concat(),
        is_one_of_several: info.one_of_several().is_some(),
        keeps_binding: info.earlier.keeps_binding || options.keeps_binding,
        is_asked_alone: launcher == Launcher::Alone && info.has_launcher(),
    }
}

/// Returns whether every dialect can express this name. Programs do not read variables with other
/// names.
fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
