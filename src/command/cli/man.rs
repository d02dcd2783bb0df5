//! `mpienv man`: prints one page for the command and its subcommands.

use std::io::{self, Write};

use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::exit_code::ExitCode;
use super::{Failure, stream};

pub(crate) fn run(command: clap::Command) -> Result<(), Failure> {
    let mut page = Vec::new();
    write(command, &mut page)?;
    // Without escapes, troff prints other characters that no shell accepts.
    let page = String::from_utf8_lossy(&page)
        .replace('`', r"\(ga")
        .replace('~', r"\(ti")
        .replace('^', r"\(ha");
    Ok(stream::print(page.as_bytes())?)
}

fn write(command: clap::Command, to: &mut Vec<u8>) -> io::Result<()> {
    // `mpienv help export` needs no section.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let page = Man::new(command.clone()).title("MPIENV").manual("User Commands");
    page.render_title(to)?;
    // Users copy the names of variables, so they must not be hyphenated.
    Roff::new().control("nh", []).to_writer(to)?;
    page.render_name_section(to)?;
    page.render_synopsis_section(to)?;
    page.render_description_section(to)?;
    page.render_options_section(to)?;
    for verb in command.get_subcommands().cloned() {
        write_verb(verb, to)?;
    }
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in ExitCode::MEANINGS {
        roff.control("TP", []).text([roman(code.to_string())]).text([roman(*meaning)]);
    }
    roff.to_writer(to)?;
    examples(&command, to)
}

fn write_verb(verb: clap::Command, to: &mut Vec<u8>) -> io::Result<()> {
    let name = verb.get_bin_name().unwrap_or_else(|| verb.get_name()).to_uppercase();
    Roff::new().control("SH", [name.as_str()]).to_writer(to)?;
    let page = Man::new(verb.clone());
    let mut sections = Vec::new();
    page.render_synopsis_section(&mut sections)?;
    page.render_description_section(&mut sections)?;
    page.render_options_section(&mut sections)?;
    examples(&verb, &mut sections)?;
    // The headings of a page become subheadings, because each subcommand is one section here.
    for line in String::from_utf8_lossy(&sections).lines() {
        match line.strip_prefix(".SH ") {
            Some(heading) => writeln!(to, ".SS {heading}")?,
            None => writeln!(to, "{line}")?,
        }
    }
    Ok(())
}

/// Writes the examples at the end of a command's help, line by line.
fn examples(command: &clap::Command, to: &mut Vec<u8>) -> io::Result<()> {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in text.lines().skip(1) {
        roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    roff.control("fi", []).to_writer(to)
}
