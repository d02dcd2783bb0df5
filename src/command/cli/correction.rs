//! The command line that was probably meant by one that is invalid: changed until it is valid.

use std::ffi::OsString;

use crate::StartError;
use clap::CommandFactory;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use mpienv_core::seam::{meant_launcher, mistakes};
use mpienv_launch::seam::{foreseen, meant};

use super::typed::{self, is_option};
use super::{Command, program, worker};

/// How many words are inspected.
const MOST: usize = 32;
/// Stands for the program in a line that has none.
const PROGRAM: &str = "CMD";

/// Adds the line to type to the error in a command line, in place of what clap suggests.
pub(super) fn explain(error: &mut clap::Error) {
    let typed: Vec<OsString> = std::env::args_os().skip(1).collect();
    // clap suggests the word as a value after `--`, where it would be the program's name.
    if error.get(ContextKind::Suggested).is_some_and(|tip| tip.to_string().contains(" as a value"))
    {
        error.remove(ContextKind::Suggested);
    }
    drop_distant(error);
    let of_kind = match error.kind() {
        ErrorKind::UnknownArgument => option_tip(error, &typed).map(str::to_owned),
        ErrorKind::InvalidSubcommand => help_tip(error, &typed),
        _ => launcher_tip(error).map(str::to_owned),
    };
    if let Some(tip) = of_kind {
        suggest(error, tip, &[ContextKind::SuggestedValue, ContextKind::SuggestedArg]);
    }
    // A word like one of the subcommands is a misspelled one.
    if error.get(ContextKind::SuggestedSubcommand).is_some()
        && !typed.iter().any(|word| word == "--")
    {
        return;
    }
    let kinds = [
        ErrorKind::UnknownArgument,
        ErrorKind::InvalidSubcommand,
        ErrorKind::MissingRequiredArgument,
    ];
    let Some(tip) = kinds.contains(&error.kind()).then(|| tip(&typed)).flatten() else {
        return;
    };
    // The usage is that of the subcommand that was typed, perhaps instead of the right one.
    let replaced =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::Usage];
    suggest(error, tip, &replaced);
}

/// Suggests this in place of what clap says of these kinds.
fn suggest(error: &mut clap::Error, tip: String, replaced: &[ContextKind]) {
    for kind in replaced {
        error.remove(*kind);
    }
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        ContextValue::Strings(texts) => texts.first().map(String::as_str),
        _ => None,
    }
}

/// Removes what clap suggests if it hardly resembles what was typed, and the usage with it.
fn drop_distant(error: &mut clap::Error) {
    for (kind, typed) in [
        (ContextKind::SuggestedArg, ContextKind::InvalidArg),
        (ContextKind::SuggestedValue, ContextKind::InvalidValue),
    ] {
        let pair = text(error, kind).zip(text(error, typed));
        if pair.is_some_and(|(suggested, typed)| !is_close(suggested, typed)) {
            error.remove(kind);
            error.remove(ContextKind::Usage);
        }
    }
}

/// Returns whether one of the words may be a misspelling of the other, or is its beginning.
fn is_close(suggested: &str, typed: &str) -> bool {
    let [suggested, typed] = [suggested, typed].map(|word| word.trim_start_matches('-'));
    let most = if typed.len() < 5 { 1 } else { 2 };
    let is_begun = |word: &str, whole: &str| word.len() > 2 && whole.starts_with(word);
    mistakes(suggested, typed) <= most || is_begun(suggested, typed) || is_begun(typed, suggested)
}

/// Returns what to say of an option of another launcher.
fn option_tip(error: &clap::Error, words: &[OsString]) -> Option<&'static str> {
    let name = text(error, ContextKind::InvalidArg)?;
    let is_simulated = words.first().is_some_and(|verb| verb == "simulate");
    if is_simulated { typed::shape(name) } else { typed::option(name) }
}

/// Returns what to say of the name of a subcommand after `help`.
fn help_tip(error: &clap::Error, words: &[OsString]) -> Option<String> {
    match words.first()?.to_str()? {
        "help" => {}
        "version" => return Some("type mpienv --version".to_owned()),
        _ => return None,
    }
    let typed = text(error, ContextKind::InvalidSubcommand)?;
    let command = Command::command();
    let mut names = command.get_subcommands().map(clap::Command::get_name);
    Some(match names.find(|name| is_close(name, typed)) {
        Some(name) => format!("a similar subcommand exists: '{name}'"),
        None => "`mpienv help` lists all".to_owned(),
    })
}

/// Returns which launcher to name in place of a batch system or a program of a launcher.
fn launcher_tip(error: &clap::Error) -> Option<&'static str> {
    if !text(error, ContextKind::InvalidArg)?.starts_with("--launcher") {
        return None;
    }
    meant_launcher(text(error, ContextKind::InvalidValue)?)
}

/// Returns the line to type in place of one whose program cannot be started.
pub(super) fn for_program(error: &StartError) -> Option<String> {
    let meant = program::line(meant(error)?);
    // A worker does not know the line that was typed.
    let typed: Vec<OsString> =
        std::env::args_os().skip(1).take_while(|word| word != "--").collect();
    let typed = if worker::is_worker() { "...".to_owned() } else { program::line(&typed) };
    Some(format!("type `mpienv {typed} -- {meant}`"))
}

/// Returns what to type instead: the first change of the words that makes them valid.
fn tip(typed: &[OsString]) -> Option<String> {
    let ordered = |words: &[OsString]| {
        let found = typed::find(words).filter(typed::Found::starts_job)?;
        Some(found.in_order(|line| format!("type {line}")))
    };
    if let Some(tip) = ordered(typed) {
        return Some(tip);
    }
    let mut valid = first_valid(typed).or_else(|| {
        // Perhaps only the program is missing.
        let missing: &[&str] = match typed.iter().position(|word| word == "--") {
            None => &["--", PROGRAM],
            Some(at) if at + 1 == typed.len() => &[PROGRAM],
            Some(_) => return None,
        };
        first_valid(
            &typed.iter().cloned().chain(missing.iter().map(OsString::from)).collect::<Vec<_>>(),
        )
    })?;
    if let Some(at) = valid.iter().position(|word| word == "--") {
        let program = valid.split_off(at + 1);
        if let Some(tip) = ordered(&program) {
            return Some(tip);
        }
        let error = foreseen(&program::command(&program)).filter(|_| program != [PROGRAM]);
        valid.extend(error.and_then(|error| meant(&error).map(<[_]>::to_vec)).unwrap_or(program));
    }
    Some(format!("type mpienv {}", program::line(&valid)))
}

fn first_valid(typed: &[OsString]) -> Option<Vec<OsString>> {
    candidates(typed).into_iter().find(|words| {
        let words = words.iter().cloned();
        Command::command()
            .try_get_matches_from(std::iter::once("mpienv".into()).chain(words))
            .is_ok()
    })
}

/// Returns the place of the subcommand.
pub(super) fn verb_at(words: &[OsString]) -> Option<usize> {
    let command = Command::command();
    words.iter().position(|word| command.get_subcommands().any(|verb| word == verb.get_name()))
}

/// Returns the words with a subcommand, with `--`, and with the number of workers, as far as these
/// are missing.
fn candidates(typed: &[OsString]) -> Vec<Vec<OsString>> {
    let with = |verb: &str, rest: &[OsString]| [&[verb.into()][..], rest].concat();
    let is_command = |word: &OsString| word != "help" && word != "version";
    let Some((first, rest)) = typed.split_first().filter(|(first, _)| is_command(first)) else {
        return Vec::new();
    };
    let has_dashes = typed.iter().any(|word| word == "--");
    let bases = match verb_at(typed) {
        Some(0) if first == "exec" => vec![typed.to_vec(), with("launch", rest)],
        Some(0) => vec![typed.to_vec()],
        // Options before the subcommand.
        Some(at) if is_option(first) => {
            vec![[&typed[at..=at], &typed[..at], &typed[at + 1..]].concat()]
        }
        _ if has_dashes && !is_option(first) => {
            vec![with("exec", rest), with("launch", rest)]
        }
        _ => vec![with("exec", typed), with("launch", typed)],
    };
    bases.into_iter().flat_map(|base| variants(&base)).collect()
}

fn variants(base: &[OsString]) -> Vec<Vec<OsString>> {
    let end = base.iter().position(|word| word == "--");
    let is_launch = base.first().is_some_and(|verb| verb == "launch");
    let counts: &[&[OsString]] =
        if is_launch { &[&[], &["--nproc-per-node".into(), "auto".into()]] } else { &[&[]] };
    let mut all = Vec::new();
    for count in counts {
        let words = [&base[..1], count, &base[1..]].concat();
        if let Some(end) = end {
            let (options, program) = words.split_at(end + count.len());
            all.push([&renamed(options, is_launch)[..], program].concat());
            continue;
        }
        // `--` before the first word that can be a program.
        let is_program = |word: &OsString| {
            !is_option(word) && word.to_str().is_none_or(|text| text.parse::<f64>().is_err())
        };
        let places = (1 + count.len()..words.len().min(MOST)).filter(|&at| is_program(&words[at]));
        all.extend(places.map(|at| {
            [&renamed(&words[..at], is_launch)[..], &["--".into()], &words[at..]].concat()
        }));
        all.push(words);
    }
    all
}

/// Returns the options with the number of workers under its own name. Words after the program's
/// name are its own.
fn renamed(options: &[OsString], is_launch: bool) -> Vec<OsString> {
    let place = (1..options.len()).filter(|_| is_launch);
    let found = place.filter_map(|at| Some((at, typed::count(&options[at..])?))).next();
    found.map_or(options.to_vec(), |(at, (value, used))| {
        [&options[..at], &["--nproc-per-node".into(), value.to_owned()], &options[at + used..]]
            .concat()
    })
}
