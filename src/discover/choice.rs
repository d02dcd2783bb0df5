//! Which launcher started this process: the innermost of those that have left variables.

use crate::context::{CONTEXT, Context};
use crate::environment::Environment;
use crate::error::{Error, Reason};
use crate::launcher::{Change, IDENTITIES, Row, TABLE, shown};
use crate::master;
use crate::placement::{Launcher, Source, Sourced};
use crate::wish;

const NODE_RANK: &str = "NODE_RANK";

/// The launcher that is believed, and why.
pub(super) struct Choice {
    pub row: &'static Row,
    pub source: Source,
    /// Other rows that may be this process's too, and must agree.
    pub rest: Vec<&'static Row>,
    /// Whether the process is still the one that the context is about.
    pub is_of_context: bool,
}

pub(super) fn choose(
    environment: &Environment,
    wish: Option<&Sourced<Launcher>>,
    context: Option<&Context>,
) -> Result<Choice, Error> {
    if let Some(wish) = wish {
        let row = find(environment, wish.value).ok_or_else(|| {
            let remedy = format!("select the launcher that started this process, or none (unset {})", wish::LAUNCHER);
            Error::new(Reason::LauncherAbsent(wish.value), remedy).of(wish::LAUNCHER).found(wish.value.name())
        })?;
        let is_of_context =
            context.is_some_and(|context| context.launcher == wish.value && changed(environment, context).is_empty());
        return Ok(Choice { row, source: wish.source.clone(), rest: Vec::new(), is_of_context });
    }
    match context {
        Some(context) => innermost(environment, context),
        None => Ok(outermost_first_seen(environment)),
    }
}

/// Without a context the order of the table decides, and others that disagree are suspicious.
fn outermost_first_seen(environment: &Environment) -> Choice {
    let found = TABLE.iter().enumerate().find_map(|(index, row)| Some((index, row, (row.detect)(environment)?)));
    // The last row takes every environment.
    let (index, row, evidence) = found.unwrap_or((TABLE.len() - 1, &TABLE[TABLE.len() - 1], ""));
    let source = if row.launcher == Launcher::Alone { evidence.into() } else { shown(environment, evidence).into() };
    Choice { row, source, rest: TABLE[index + 1..].iter().collect(), is_of_context: false }
}

/// A launcher whose variables have changed since the context was written started this process; where none has, this is
/// the process of the context, or a child of it.
fn innermost(environment: &Environment, context: &Context) -> Result<Choice, Error> {
    let mut changed = changed(environment, context).into_iter();
    if let Some(row) = changed.next() {
        let evidence = (row.detect)(environment).unwrap_or_default();
        let source = format!("{}, set since mpienv started the process around this one", shown(environment, evidence));
        return Ok(Choice { row, source: source.into(), rest: changed.collect(), is_of_context: false });
    }
    // A program may have been given RANK and its kin alone, without what the launcher had set.
    let row = find(environment, context.launcher).or_else(|| find(environment, Launcher::User));
    let row = row.ok_or_else(|| {
        let remedy = format!("keep the variables that mpienv set for this process, or unset {CONTEXT} too");
        Error::new(Reason::LauncherAbsent(context.launcher), remedy).of(CONTEXT)
    })?;
    let evidence = (row.detect)(environment).unwrap_or_default();
    let source = match row.launcher {
        Launcher::Alone => evidence.into(),
        _ => shown(environment, evidence).into(),
    };
    Ok(Choice { row, source, rest: Vec::new(), is_of_context: true })
}

fn find(environment: &Environment, launcher: Launcher) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.launcher == launcher && (row.detect)(environment).is_some())
}

/// The rows whose launchers may have started somebody since the context was written, the likeliest first.
fn changed(environment: &Environment, context: &Context) -> Vec<&'static Row> {
    let changes = TABLE.iter().filter_map(|row| Some((row.change(environment, &context.seen)?, row)));
    let changes: Vec<(Change, &Row)> = changes.collect();
    // A launcher that sets another's variables too is known by its own.
    let surest = changes.iter().map(|(change, _)| *change).min();
    if surest.is_none() && has_other_master(environment, context) {
        return find(environment, context.launcher).into_iter().collect();
    }
    // torchrun gives every worker a file of its own: without another one RANK was set by somebody else.
    let is_torchruns = |row: &Row| row.launcher != Launcher::Torchrun || surest == Some(Change::Own);
    let likeliest = changes.into_iter().filter(|(change, row)| Some(*change) == surest && is_torchruns(row));
    likeliest.map(|(_, row)| row).collect()
}

/// Whether a worker's master is not the one that it was given: the ranks of a script may be numbered as its own.
fn has_other_master(environment: &Environment, context: &Context) -> bool {
    let variables = [master::MASTER_ADDR, master::MASTER_PORT];
    context.launcher == Launcher::User && variables.iter().any(|name| context.seen.is_changed(environment, name))
}

impl Choice {
    /// The environment without what an outer job told of its own master and nodes, where this process inherited that.
    pub(super) fn without_outer(&self, environment: &Environment, context: Option<&Context>) -> Option<Environment> {
        let outer = context.filter(|_| !self.is_of_context)?;
        let is_left = |name: &str| !outer.seen.is_changed(environment, name);
        let inherited: &[&str] = match self.row.launcher {
            // It sets the master too: that is its own, though it be the same.
            Launcher::Torchrun => &[],
            // Who sets RANK and WORLD_SIZE sets the master with them, and not always the node's number.
            Launcher::User => &[NODE_RANK],
            _ => &[master::MASTER_ADDR, master::MASTER_PORT],
        };
        let of_outer = |name: &str| match name {
            master::MASTER_ADDR => is_same(environment, name, &outer.master_addr),
            master::MASTER_PORT => is_same(environment, name, &outer.master_port),
            name => is_left(name),
        };
        let unchanged = IDENTITIES.iter().filter(|(identity, _)| is_left(identity));
        let of_its_job = unchanged.flat_map(|(identity, others)| others.iter().chain([identity]));
        let left = inherited.iter().filter(|name| of_outer(name)).chain(of_its_job);
        Some(environment.with(left.map(|name| (*name, None))))
    }
}

fn is_same(environment: &Environment, name: &str, value: &Option<String>) -> bool {
    value.is_some() && environment.text(name).ok().flatten() == value.as_deref()
}
