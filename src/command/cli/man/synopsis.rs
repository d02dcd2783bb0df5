//! The synopses of the manual page, with the values of the options.

use clap::Arg;
use clap_mangen::roff::{Inline, bold, italic, roman};

/// `mpienv COMMAND [OPTION]...`
pub(super) fn of_command(command: &clap::Command) -> Vec<Inline> {
    let placeholder = command.get_subcommand_value_name().unwrap_or("COMMAND");
    vec![
        bold(command.get_name()),
        roman(" "),
        italic(placeholder),
        roman(" ["),
        italic("OPTION"),
        roman("]..."),
    ]
}

/// The options of a subcommand and their values, without those that are hidden.
pub(super) fn of_verb(name: &str, verb: &clap::Command, has_common: bool) -> Vec<Inline> {
    let shown = || verb.get_arguments().filter(|arg| !arg.is_hide_set());
    let mut line = vec![bold(name)];
    for arg in shown().filter(|arg| !arg.is_positional()) {
        push(&mut line, arg.is_required_set(), option(arg));
    }
    if has_common {
        line.extend([roman(" ["), italic("COMMON-OPTION"), roman("]...")]);
    }
    for arg in shown().filter(|arg| arg.is_positional()) {
        let mut words = if arg.is_last_set() { vec![bold("--"), roman(" ")] } else { Vec::new() };
        words.push(italic(value(arg)));
        if arg.get_num_args().is_some_and(|range| range.max_values() > 1) {
            words.push(roman("..."));
        }
        push(&mut line, arg.is_required_set(), words);
    }
    line
}

fn push(line: &mut Vec<Inline>, is_required: bool, words: Vec<Inline>) {
    let (start, end) = if is_required { (" ", "") } else { (" [", "]") };
    line.push(roman(start));
    line.extend(words);
    line.push(roman(end));
}

fn option(arg: &Arg) -> Vec<Inline> {
    let mut words = Vec::new();
    match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => {
            words.extend([bold(format!("-{short}")), roman("|"), bold(format!("--{long}"))]);
        }
        (Some(short), None) => words.push(bold(format!("-{short}"))),
        (None, long) => words.push(bold(format!("--{}", long.unwrap_or_default()))),
    }
    if arg.get_action().takes_values() {
        words.extend([roman(" "), italic(value(arg))]);
    }
    words
}

fn value(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let named = names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    if named.is_empty() { arg.get_id().as_str().to_uppercase() } else { named }
}
