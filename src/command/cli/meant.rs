//! The command line that was probably meant by one that is invalid: changed until it is valid.

use std::ffi::OsString;

use crate::StartError;
use clap::CommandFactory;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::{Command, inner_launcher, words, worker};

/// How launchers call the number of processes.
const COUNTS: [&str; 6] = ["-n", "-np", "--np", "--nprocs", "--num-processes", "--num_processes"];
/// How many words are inspected.
const MOST: usize = 32;

/// Adds the line to type to the error in a command line, in place of what clap suggests.
pub(super) fn explain(error: &mut clap::Error) {
    let typed: Vec<OsString> = std::env::args_os().skip(1).collect();
    // A word like one of the subcommands is a misspelled one.
    if error.get(ContextKind::SuggestedSubcommand).is_some() && !typed.iter().any(|word| word == "--") {
        return;
    }
    let kinds = [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand, ErrorKind::MissingRequiredArgument];
    let Some(line) = Some(&typed).filter(|_| kinds.contains(&error.kind())).and_then(|typed| line(typed)) else {
        return;
    };
    for kind in [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::Suggested] {
        error.remove(kind);
    }
    let tip = ContextValue::StyledStrs(vec![StyledStr::from(format!("type {line}"))]);
    error.insert(ContextKind::Suggested, tip);
}

/// Returns the line to type in place of one whose program cannot be started.
pub(super) fn for_program(error: &StartError) -> Option<String> {
    let meant = words::line(error.meant()?);
    // A worker does not know the line that was typed.
    let typed: Vec<OsString> = std::env::args_os().skip(1).take_while(|word| word != "--").collect();
    let typed = if worker::request().is_some() { "...".to_owned() } else { words::line(&typed) };
    Some(format!("type `mpienv {typed} -- {meant}`"))
}

/// Returns the first change of the words that makes them valid, as a line.
fn line(typed: &[OsString]) -> Option<String> {
    let valid = candidates(typed).into_iter().find(|words| {
        let words = words.iter().cloned();
        Command::command().try_get_matches_from(std::iter::once("mpienv".into()).chain(words)).is_ok()
    })?;
    let program = valid.iter().position(|word| word == "--").and_then(|at| valid.get(at + 1..));
    Some(program.and_then(inner_launcher::in_order).unwrap_or_else(|| format!("mpienv {}", words::line(&valid))))
}

/// Returns the words with a subcommand, with `--`, and with the number of workers, as far as these are missing.
fn candidates(typed: &[OsString]) -> Vec<Vec<OsString>> {
    let command = Command::command();
    let is_verb = |word: &OsString| command.get_subcommands().any(|verb| word == verb.get_name());
    let with = |verb: &str, rest: &[OsString]| [&[verb.into()][..], rest].concat();
    let Some((first, rest)) = typed.split_first().filter(|(first, _)| *first != "help") else { return Vec::new() };
    let has_dashes = typed.iter().any(|word| word == "--");
    let bases = match typed.iter().position(is_verb) {
        Some(0) if first == "exec" => vec![typed.to_vec(), with("launch", rest)],
        Some(0) => vec![typed.to_vec()],
        // Options before the subcommand.
        Some(at) if starts_with_dash(first) => vec![[&typed[at..=at], &typed[..at], &typed[at + 1..]].concat()],
        _ if has_dashes && !starts_with_dash(first) => vec![with("exec", rest), with("launch", rest)],
        _ => vec![with("exec", typed), with("launch", typed)],
    };
    bases.into_iter().flat_map(|base| variants(&base)).collect()
}

fn variants(base: &[OsString]) -> Vec<Vec<OsString>> {
    let end = base.iter().position(|word| word == "--");
    let mut counted = base.to_vec();
    let is_launch = base.first().is_some_and(|verb| verb == "launch");
    // Words after the first program are its own.
    let options =
        base.iter().take(end.unwrap_or(base.len())).skip(1).position(|word| COUNTS.iter().any(|count| word == count));
    if let Some(at) = options.filter(|_| is_launch) {
        counted[at + 1] = "--nproc-per-node".into();
    }
    let mut all = Vec::new();
    for count in [&[][..], &["--nproc-per-node".into(), "auto".into()]] {
        if !count.is_empty() && !is_launch {
            continue;
        }
        let words = [&counted[..1], count, &counted[1..]].concat();
        if end.is_none() {
            // `--` before the first word that can be a program.
            let is_program = |word: &OsString| {
                !starts_with_dash(word) && word.to_str().is_none_or(|text| text.parse::<f64>().is_err())
            };
            let places = (1 + count.len()..words.len().min(MOST)).filter(|&at| is_program(&words[at]));
            all.extend(places.map(|at| [&words[..at], &["--".into()], &words[at..]].concat()));
        }
        all.push(words);
    }
    all
}

fn starts_with_dash(word: &OsString) -> bool {
    word.as_encoded_bytes().starts_with(b"-")
}
