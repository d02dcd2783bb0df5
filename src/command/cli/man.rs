//! `mpienv man`: prints one page for the command and its subcommands.

use std::io::{self, Write};

use clap::{Arg, Args as _};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use mpienv_core::seam::OWN_VARIABLES;

use super::failure::exit_code;
use super::place::PlaceOptions;
use super::{Failure, stream};

/// The day of the page's last change.
const DATE: &str = "2026-11-30";

/// Where the recipes install the guide. The page does not know in which folder it is.
const GUIDE: &str = "If the command is PREFIX/bin/mpienv and the guide is installed, it begins at \
    PREFIX/share/doc/mpienv/src/guide/README.md.";

/// The files that mpienv reads or writes.
const FILES: &[(&str, &str)] = &[
    (
        "DIR/rank.R/stdout, DIR/rank.R/stderr",
        "The output of rank R with launch --log-dir DIR; DIR/attempt_K/rank.R with --max-restarts.",
    ),
    (
        "DIR/stall.json",
        "What the ranks of a stalled job did, with launch --log-dir DIR --stall-timeout.",
    ),
    ("FILE", "The hosts to blame or of which no rank arrived, with check --bad-hosts FILE."),
    ("$TMPDIR", "For the folder of NCCL's log during check --gpu."),
    ("$MPIENV_TOKEN_FILE", "The secret of the job."),
    (
        "$NCCL_CONF_FILE or ~/.nccl.conf, /etc/nccl.conf",
        "Read to leave NCCL_SOCKET_IFNAME alone if NCCL's own file sets it.",
    ),
    ("$PBS_NODEFILE", "Read to see whether a PBS job has several processes."),
    ("/proc, /sys", "Read to find the parent processes, the cores and the devices."),
];

pub(crate) fn run(command: clap::Command) -> Result<(), Failure> {
    let mut page = Vec::new();
    write(command, &mut page)?;
    // Without escapes, troff prints other characters that no shell accepts.
    let page = without_idle_breaks(&String::from_utf8_lossy(&page))
        .replace('`', r"\(ga")
        .replace('~', r"\(ti")
        .replace('^', r"\(ha");
    Ok(stream::print(page.as_bytes())?)
}

/// Removes line breaks beside a blank line, which breaks the line too. mandoc warns about them.
fn without_idle_breaks(page: &str) -> String {
    let lines: Vec<&str> = page.lines().collect();
    let is_blank = |at: Option<usize>| {
        at.and_then(|at| lines.get(at))
            .is_some_and(|line| line.is_empty() || line.starts_with(".sp"))
    };
    let kept = lines.iter().enumerate().filter(|(at, line)| {
        **line != ".br" || !(is_blank(at.checked_sub(1)) || is_blank(Some(at + 1)))
    });
    kept.flat_map(|(_, line)| [*line, "\n"]).collect()
}

fn write(command: clap::Command, to: &mut Vec<u8>) -> io::Result<()> {
    // `mpienv help export` needs no section.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let page = Man::new(command.clone()).title("MPIENV").manual("User Commands").date(DATE);
    page.render_title(to)?;
    page.render_name_section(to)?;
    let placeholder = command.get_subcommand_value_name().unwrap_or("COMMAND");
    let [name, verb, option] = [bold(command.get_name()), italic(placeholder), italic("OPTION")];
    let synopsis = [name, roman(" "), verb, roman(" ["), option, roman("]...")];
    // Users copy the names of variables and options, so they must not be hyphenated.
    Roff::new().control("SH", ["SYNOPSIS"]).control("nh", []).text(synopsis).to_writer(to)?;
    page.render_description_section(to)?;
    for verb in command.get_subcommands().cloned() {
        write_verb(verb, to)?;
    }
    common_options(&command, to)?;
    definitions("EXIT STATUS", exit_code::MEANINGS, roman, to)?;
    definitions("ENVIRONMENT", OWN_VARIABLES, bold, to)?;
    definitions("FILES", FILES, italic, to)?;
    examples("SH", &command, to)?;
    see_also(to)
}

/// The options that tell where a process is, which most commands share.
fn shared() -> clap::Command {
    PlaceOptions::augment_args(clap::Command::new("mpienv").disable_help_flag(true))
}

/// Returns a subcommand without the options that are in the page's list of common options.
fn without_common(verb: clap::Command) -> clap::Command {
    let shared = shared();
    let is_reader = shared
        .get_arguments()
        .all(|common| verb.get_arguments().any(|own| own.get_id() == common.get_id()));
    let is_common = |own: &clap::Arg| {
        let mut common = shared.get_arguments();
        own.get_id() == "help" || (is_reader && common.any(|arg| arg.get_id() == own.get_id()))
    };
    verb.mut_args(|arg| if is_common(&arg) { arg.hide(true) } else { arg })
}

fn write_verb(verb: clap::Command, to: &mut Vec<u8>) -> io::Result<()> {
    let name = verb.get_bin_name().unwrap_or_else(|| verb.get_name()).to_owned();
    let verb = without_common(verb);
    let has_common =
        verb.get_arguments().any(|arg| arg.is_hide_set() && arg.get_id() == "master_addr");
    let synopsis = synopsis_of_verb(&name, &verb, has_common);
    Roff::new().control("SH", [name.to_uppercase().as_str()]).text(synopsis).to_writer(to)?;
    let page = Man::new(verb.clone());
    let mut sections = Vec::new();
    page.render_description_section(&mut sections)?;
    if verb.get_arguments().any(|arg| !arg.is_hide_set()) {
        page.render_options_section(&mut sections)?;
    }
    // The headings of a page become subheadings, because each subcommand is one section here. The
    // description follows the synopsis and needs none.
    for line in String::from_utf8_lossy(&sections).lines() {
        match line.strip_prefix(".SH ") {
            Some("DESCRIPTION") => writeln!(to, ".PP")?,
            Some(heading) => writeln!(to, ".SS {heading}")?,
            None => writeln!(to, "{line}")?,
        }
    }
    examples("SS", &verb, to)
}

/// The options of a subcommand and their values, without those that are hidden.
fn synopsis_of_verb(name: &str, verb: &clap::Command, has_common: bool) -> Vec<Inline> {
    let shown = || verb.get_arguments().filter(|arg| !arg.is_hide_set());
    let mut line = vec![bold(name)];
    for arg in shown().filter(|arg| !arg.is_positional()) {
        push(&mut line, arg.is_required_set(), named_option(arg));
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

fn named_option(arg: &Arg) -> Vec<Inline> {
    let long = bold(format!("--{}", arg.get_long().unwrap_or_default()));
    let mut words = match arg.get_short() {
        Some(short) => vec![bold(format!("-{short}")), roman("|"), long],
        None => vec![long],
    };
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

/// Writes the options of the command itself, and those that most subcommands share.
fn common_options(command: &clap::Command, to: &mut Vec<u8>) -> io::Result<()> {
    Man::new(command.clone()).render_options_section(to)?;
    let readers = command
        .get_subcommands()
        .filter(|verb| verb.get_arguments().any(|arg| arg.get_id() == "master_addr"));
    let names = readers.map(clap::Command::get_name).collect::<Vec<_>>().join(", ");
    let apply = roman(format!("These options apply to: {names}."));
    Roff::new().control("SS", ["Common options"]).text([apply]).to_writer(to)?;
    let mut options = Vec::new();
    Man::new(shared()).render_options_section(&mut options)?;
    for line in String::from_utf8_lossy(&options).lines().filter(|line| *line != ".SH OPTIONS") {
        writeln!(to, "{line}")?;
    }
    Ok(())
}

/// Writes a section of terms and what they mean.
fn definitions(
    heading: &str,
    terms: &[(impl ToString, &str)],
    style: fn(String) -> Inline,
    to: &mut Vec<u8>,
) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    for (term, meaning) in terms {
        roff.control("TP", []).text([style(term.to_string())]).text([roman(*meaning)]);
    }
    roff.to_writer(to)
}

/// Writes the examples at the end of a command's help, line by line.
fn examples(level: &str, command: &clap::Command, to: &mut Vec<u8>) -> io::Result<()> {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut roff = Roff::new();
    roff.control(level, ["EXAMPLES"]).control("nf", []);
    for line in text.lines().skip(1) {
        roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    roff.control("fi", []).to_writer(to)
}

fn see_also(to: &mut Vec<u8>) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    for name in ["mpirun", "srun", "munge", "nproc"] {
        roff.text([bold(name), roman("(1),")]);
    }
    roff.text([bold("taskset"), roman("(1)")]);
    roff.control("PP", []).text([roman(GUIDE)]);
    roff.to_writer(to)
}
