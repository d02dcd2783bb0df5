//! Why a command failed: the text, the option that helps, and the exit code. Findings get their text
//! here too.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::command::check::{CheckError, OF_NODES};
use crate::simulate::JobError;
use crate::{
    Environment, Error, ErrorKind, Finding, LaunchError, Launcher, Reason, Severity, StartError,
};
use mpienv_core::seam::{NO_LOCAL_SIZE, PMIX_RANK, Starts, TemplateError, WordsError};

use super::correction;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Environment(#[from] crate::Error),
    #[error(transparent)]
    Unrepresentable(#[from] crate::Unrepresentable),
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The master's name did not resolve in time.
    #[error(
        "the master {host} did not resolve within {} s: {reason}; check MASTER_ADDR and the name service, or wait longer",
        .waited.as_secs_f64()
    )]
    Unresolved { host: String, waited: Duration, reason: String },
    #[error("{0} found problems; see the findings above")]
    Findings(&'static str),
    #[error(
        "doctor found no problem on this host, but could not compare the ranks; see above, or \
         inspect this rank only with --timeout 0"
    )]
    NotCompared,
    #[error(transparent)]
    Check(#[from] CheckError),
    /// Those that met are the processes that start each node's workers.
    #[error("{0}{OF_NODES}")]
    Nodes(CheckError),
    /// The same, if they met unasked.
    #[error(
        "{0}; each of these ranks is the mpienv of a node, which meet because each counts its \
         workers: `--nproc-per-node NUMBER`, the same on every node, needs no meeting"
    )]
    CountingNodes(CheckError),
    /// Rank 0 prints why the ranks did not meet.
    #[error("the meeting of the ranks failed; rank 0 at {master} prints why")]
    OfRank0 { master: String, kind: ErrorKind, is_silent: bool },
    /// This rank's report on stdout says that it did not meet rank 0.
    #[error("doctor could not compare this rank; see above")]
    Reported,
    #[error("all ranks connected, but their settings conflict; see above")]
    Disagreement,
    #[error("all ranks met, but {0}; see above")]
    Measured(&'static str),
    /// `effect` is what did not happen, because this process is probably one of several.
    #[error("{effect}: {what}; {why}; {remedy}")]
    NotATask { effect: &'static str, what: String, why: String, remedy: String },
    #[error(
        "this mpienv was built without GPUs; build it with `cargo install --locked --path . --features gpu`"
    )]
    NoGpu,
    #[error("cannot write the list of hosts to {}: {error}; choose another file for --bad-hosts", file.display())]
    BadHosts { file: PathBuf, error: io::Error },
    /// The command is a launcher, and is not started.
    #[error("{why}; {remedy}; --allow-launcher starts it anyway")]
    InnerLauncher { why: String, remedy: String },
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(
        "the stack is too small (ulimit -s), and a thread with a larger one cannot start: {0}; raise both limits (ulimit -s, ulimit -v)"
    )]
    Stack(io::Error),
    #[error("this worker was not started: {0}; start the job again")]
    Orphan(io::Error),
    #[error(transparent)]
    Shape(#[from] JobError),
    #[error("rank {rank} does not exist in a job of {size}; choose one from 0 to {}", size - 1)]
    NoSuchRank { rank: u32, size: u32 },
    #[error(
        "cannot write stdout: {0}; check the redirection, the disk, or the program that reads the output"
    )]
    Output(#[from] io::Error),
    #[error(transparent)]
    Start(#[from] StartError),
}

impl From<WordsError> for Failure {
    fn from(error: WordsError) -> Failure {
        match error {
            WordsError::Place(error) => error.into(),
            WordsError::Words(error) => error.into(),
        }
    }
}

impl Failure {
    /// `effect` is what did not happen, because of this finding.
    pub(super) fn refused(effect: &'static str, found: Finding) -> Failure {
        let Finding { what, why, remedy, .. } = found;
        Failure::NotATask { effect, what, why, remedy }
    }

    /// Returns the same failure of a meeting in which each node has one rank.
    pub(super) fn of_nodes(self, is_unasked: bool) -> Failure {
        match self {
            Failure::Check(CheckError::Environment(_)) => self,
            Failure::Check(error) if is_unasked => Failure::CountingNodes(error),
            Failure::Check(error) => Failure::Nodes(error),
            other => other,
        }
    }

    /// Returns the same failure without a finding that was printed before the ranks met.
    pub(super) fn unless_said<'a>(self, mut said: impl Iterator<Item = &'a str>) -> Failure {
        match self {
            Failure::Check(CheckError::Master { code, error, .. })
                if said.any(|said| said == code) =>
            {
                Failure::Check(CheckError::Rendezvous(error))
            }
            other => other,
        }
    }

    /// Returns what to print, with styles: the failure, what helps, and what a launch has to add.
    pub(super) fn text(&self) -> String {
        if self.is_silent() {
            return String::new();
        }
        let style = anstyle::AnsiColor::Red.on_default().bold();
        let hint = self.hint().map_or(String::new(), |hint| format!("; {hint}"));
        let report = match self {
            Failure::Launch(error) => error.report().map_or(String::new(), ToString::to_string),
            _ => String::new(),
        };
        let end = if report.is_empty() { "" } else { "\n" };
        let text = self.cure().unwrap_or_else(|| self.to_string());
        format!("{style}mpienv:{style:#} {text}{hint}\n{report}{end}")
    }

    /// Returns the text with the option that probably helps before the library's remedy, which is
    /// for other cases.
    fn cure(&self) -> Option<String> {
        let error = self.environment()?;
        let is_unknown = matches!(error.reason(), Reason::NotPerNode(why) if why == NO_LOCAL_SIZE);
        let (text, remedy) = (error.to_string(), error.remedy());
        let start = text.strip_suffix(remedy).filter(|_| is_unknown)?;
        Some(format!(
            "{start}pass --one-per-node if no other process of the job is on its node; or {remedy}"
        ))
    }

    fn environment(&self) -> Option<&Error> {
        match self {
            Failure::Environment(error)
            | Failure::Check(CheckError::Environment(error))
            | Failure::Launch(LaunchError::Environment(error)) => Some(error),
            _ => None,
        }
    }

    /// Returns the line or the option that helps; the library does not know the options.
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Failure::Start(error) => return correction::for_program(error),
            Failure::Launch(LaunchError::TooManyRanks { .. }) => {
                "or simulate one rank with --rank R"
            }
            Failure::Launch(LaunchError::Environment(error))
                if matches!(error.reason(), Reason::NoLauncher(_)) =>
            {
                "or pass --nnodes 1 if this is the job's only node"
            }
            Failure::Unrepresentable(_) => "--shell NAME",
            _ => hint_for_error(self.environment()?)?,
        };
        Some(hint.to_owned())
    }

    /// Returns whether the reader of stdout has exited, as `head` does.
    fn is_by_reader(&self) -> bool {
        match self {
            Failure::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Failure::Launch(error) => error.kind() == ErrorKind::ReaderGone,
            _ => false,
        }
    }

    /// Returns whether something else has printed the reason, so that this rank need not.
    fn is_silent(&self) -> bool {
        match self {
            Failure::OfRank0 { is_silent, .. } => *is_silent,
            Failure::Reported => true,
            _ => self.is_by_reader(),
        }
    }

    pub(super) fn exit_code(&self) -> u8 {
        match self {
            _ if self.is_by_reader() => exit_code::READER_GONE,
            Failure::Check(error) | Failure::Nodes(error) | Failure::CountingNodes(error) => {
                error.kind().exit_code()
            }
            Failure::OfRank0 { kind, .. } => kind.exit_code(),
            Failure::Launch(error) => error.kind().exit_code(),
            Failure::Unresolved { .. } => exit_code::TIMED_OUT,
            Failure::Disagreement
            | Failure::Measured(_)
            | Failure::NotATask { .. }
            | Failure::Findings(_)
            | Failure::NotCompared
            | Failure::Reported => exit_code::CHECK_FAILED,
            Failure::Template(error) if error.is_by_environment() => exit_code::WRONG_ENVIRONMENT,
            Failure::Shape(_)
            | Failure::NoSuchRank { .. }
            | Failure::Template(_)
            | Failure::InnerLauncher { .. }
            | Failure::NoGpu => exit_code::USAGE,
            Failure::Environment(_)
            | Failure::Unrepresentable(_)
            | Failure::Output(_)
            | Failure::BadHosts { .. }
            | Failure::Stack(_)
            | Failure::Orphan(_) => exit_code::WRONG_ENVIRONMENT,
            Failure::Start(error) if error.is_not_found() => exit_code::NOT_FOUND,
            Failure::Start(_) => exit_code::NOT_EXECUTABLE,
        }
    }
}

/// How to name rank 0's host. The Python module, which passes no options, prints it too.
const MASTER: &str = "or pass mpienv --master-addr HOST";

/// The same where the launcher has a PMIx server.
const MASTER_BY_PMIX: &str =
    "or pass mpienv --master-addr HOST, or --ask-pmix, which asks the launcher's PMIx server";

/// How a command that only inspects learns it: `exec` asks the launcher.
const ASKED: &str = "or start this command with `mpienv exec --`, which asks MPICH, Intel MPI, MVAPICH, Flux, Open MPI 5 and \
                     PRRTE; or pass mpienv --master-addr HOST";

/// How to provide what a platform does not.
macro_rules! by_node {
    () => {
        "or, for one process on each node, pass mpienv --node-rank R --nnodes N --master-addr HOST, or set RANK=R \
         WORLD_SIZE=N LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=HOST"
    };
}
const NODE: &str = by_node!();

/// Variables of processes that a launcher started without a size.
const OF_TASKS: &[&str] = &["PMIX_RANK", "PBS_TASKNUM"];

fn hint_for_error(error: &Error) -> Option<&'static str> {
    match error.reason() {
        Reason::MasterUnknown { .. } => Some(if has_pmix() { MASTER_BY_PMIX } else { MASTER }),
        Reason::Malformed(_) if error.variable() == Some("PMIX_RANK") => {
            Some(concat!("or pass mpienv --ask-pmix, which asks the server; ", by_node!()))
        }
        Reason::HostsUnknown { .. } => {
            Some("or use `mpienv exec --meet TIME`: the ranks then exchange their addresses")
        }
        Reason::NotPerNode(why) if why == NO_LOCAL_SIZE => None,
        Reason::NotPerNode(_) => Some(
            "or pass --launcher alone, or --one-per-node if no other process of the job is on its node",
        ),
        Reason::Missing { .. } | Reason::Malformed(_) if may_be_node(error) => Some(NODE),
        Reason::NoLocalRank { .. } => Some("or pass --launcher user, or omit --for"),
        _ => None,
    }
}

/// Returns whether the launcher has a PMIx server.
fn has_pmix() -> bool {
    Environment::current().is_set(PMIX_RANK)
}

/// Returns whether the process may be the only one on its node, on a platform that does not provide
/// its place.
fn may_be_node(error: &Error) -> bool {
    let is_platform = |launcher: Launcher| {
        launcher == Launcher::User || launcher.spec().starts == Starts::OnePerNode
    };
    let is_task = || error.variable().is_some_and(|name| OF_TASKS.contains(&name));
    error.launcher().map_or_else(is_task, is_platform)
}

/// Returns the option that helps with a finding.
fn hint_for_finding(finding: &Finding) -> Option<&'static str> {
    match finding.code {
        "master-unknown" if finding.severity == Severity::Error => Some(ASKED),
        "place-unknown" => Some(NODE),
        "launchers-disagree" if finding.remedy.contains("torchrun --nnodes N") => {
            Some("or start it by `mpienv exec --per-node -- torchrun`, which gives it the nodes")
        }
        "too-many-threads" => Some("or pass --threads share"),
        "hostname-loopback" => Some("or pass --interface auto"),
        "nccl-nothing-left" | "nccl-bridge" => Some("or pass --nccl-ifname"),
        _ => None,
    }
}

/// Returns the lines of findings, with styles.
pub(super) fn lines_of<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> String {
    let lines = |finding: &Finding| {
        let color = match finding.severity {
            Severity::Error => anstyle::AnsiColor::Red,
            Severity::Warning => anstyle::AnsiColor::Yellow,
            _ => anstyle::AnsiColor::Cyan,
        };
        let style = color.on_default().bold();
        let hint = hint_for_finding(finding).map_or(String::new(), |hint| format!("; {hint}"));
        finding.lines(&format!("{style}{}{style:#}", finding.severity), &hint)
    };
    findings.into_iter().map(lines).collect()
}

macro_rules! codes {
    ($($name:ident = $code:expr, $meaning:literal;)+) => {
        /// The exit codes of `mpienv`.
        pub(crate) mod exit_code {
            use mpienv_core::seam as codes;

            $(#[doc = $meaning] pub(crate) const $name: u8 = $code;)+

            /// The man page's table.
            pub(crate) const MEANINGS: &[(u8, &str)] = &[$(($name, $meaning),)+];
        }
    };
}

codes! {
    OK = 0, "Success.";
    WRONG_ENVIRONMENT = codes::ENVIRONMENT,
        "The environment, or an option that has to fit it, is contradictory or incomplete; or output cannot be written.";
    USAGE = codes::USAGE, "Invalid command line.";
    CHECK_FAILED = codes::RANKS,
        "The ranks do not fit together, a rank was lost, check or doctor found a problem, or doctor \
         could not compare all ranks.";
    TIMED_OUT = codes::TIMED_OUT,
        "Not all ranks arrived in time, the name of the master did not resolve, or the job stalled.";
    NOT_EXECUTABLE = 126, "As in shells: the command exists but cannot be executed.";
    NOT_FOUND = 127, "As in shells: command not found.";
    READER_GONE = codes::READER_GONE, "As in shells: the program that read stdout has exited.";
}
