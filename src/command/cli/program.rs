//! The program that a command starts: the options that say what it gets, and its words.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::Command;

use crate::{ClusterInfo, Finding, Target};
use clap::Args;
use mpienv_ask::seam::with_own_addr;
use mpienv_core::seam::{Placeholders, PlanOptions, Reader, TemplateError, shell_quoted};

use super::place::named;
use super::stream;
use super::threads::ThreadsOption;

/// The program whose variables are set.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(super) struct Program {
    /// Also set the variables that this program reads
    #[arg(long = "for", value_name = "PROGRAM", default_value = "torch", value_parser = named(Target::ALL, Target::name), long_help = long_help_of_for())]
    pub(super) set: Target,
}

impl Program {
    /// Returns who reads the variables: the program, or a launcher of the node's ranks.
    pub(super) fn reader(self, per_node: bool) -> Reader {
        if per_node { Reader::Node } else { Reader::Program(self.set) }
    }
}

fn long_help_of_for() -> String {
    // The manual page joins the lines, so each line must be a sentence.
    let mut text = "Also set the variables that this program reads\n\n".to_owned();
    for set in Target::ALL {
        let names: Vec<_> = set.variables().map(|variable| variable.name).collect();
        let names = if names.is_empty() {
            "RANK and so on, as with every program".to_owned()
        } else {
            names.join(", ")
        };
        let unset = set.removed_prefixes();
        let unset = if unset.is_empty() {
            String::new()
        } else {
            format!("; unsets inherited {}*", unset.join("*, "))
        };
        text += &format!("{} ({}): {names}{unset}{}.\n", set.name(), set.title(), set.note());
    }
    text
}

/// The command of `exec` and `launch`, and what it gets besides.
#[derive(Args, Debug)]
pub(super) struct ProgramOptions {
    #[command(flatten)]
    pub(super) threads: ThreadsOption,
    /// Replace placeholders such as {node_rank} in the arguments of the command
    #[arg(long, long_help = long_help_of_template())]
    pub(super) template: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
}

fn long_help_of_template() -> String {
    let mut text =
        "Replace placeholders such as {node_rank} in the arguments of the command\n\n".to_owned();
    for (name, meaning) in Placeholders::names() {
        text += &format!("{{{name}}}: {}.\n", meaning.replace('`', ""));
    }
    text + "\n{node_rank*8}, {master_port+1} and {nnodes-1}: one product, sum or difference of placeholders and numbers. \
            {{ and }}: braces. An argument that starts with {first_node} is kept on node 0 only, without the placeholder; one that \
            starts with {other_nodes} is kept on the other nodes only. No shell reads the arguments. A placeholder that does not \
            exist or has no value is an error, and nothing starts."
}

impl ProgramOptions {
    /// Returns what the plan of the program depends on. An option that sets a variable adds it to
    /// `also`.
    pub(super) fn plan_options(&self, reader: Reader) -> PlanOptions {
        PlanOptions {
            reader,
            words: self.command.clone(),
            is_template: self.template,
            ..PlanOptions::default()
        }
    }

    /// Checks the words for errors that would occur on every node.
    pub(super) fn check_words(&self) -> Result<(), TemplateError> {
        if self.template { Placeholders::check_words(&self.command) } else { Ok(()) }
    }

    /// Returns the place with this host's own address, if the words need it.
    pub(super) fn with_own_addr(&self, info: ClusterInfo) -> ClusterInfo {
        let needs_own = self.template && Placeholders::name_own_addr(&self.command);
        if needs_own { with_own_addr(&info) } else { info }
    }

    /// Reports processes of a node that would all get the same words for the node.
    pub(super) fn same_words_on_node(&self, info: &ClusterInfo) -> Option<Finding> {
        let processes = info.local_world_size().filter(|&size| size > 1)?;
        (self.template && Placeholders::are_for_a_node(&self.command)).then(|| Finding::warning("same-words-on-node", format!("each of this node's {processes} processes starts the same command, which names the node"), "a server that expects one process on each node then meets several with the same number", "start one process on each node, or use {rank} or {local_rank} in the command"))
    }
}

/// Returns the command with these words, of which the first is its name.
pub(super) fn command(words: &[OsString]) -> Command {
    // clap requires at least one word.
    let mut command = Command::new(words.first().map_or(OsStr::new(""), |name| name));
    command.args(words.iter().skip(1));
    command
}

/// Prints the words, one per line, quoted for a shell.
pub(super) fn print(words: &[OsString]) -> io::Result<()> {
    let mut text = Vec::new();
    for word in words {
        text.extend(quoted(word));
        text.push(b'\n');
    }
    stream::print(&text)
}

/// Returns the words as a line for a shell.
pub(super) fn line(words: &[OsString]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| quoted(word)).collect();
    String::from_utf8_lossy(&quoted.join(&b' ')).into_owned()
}

fn quoted(word: &OsStr) -> Vec<u8> {
    match word.to_str() {
        // An option's `=` needs no quotes.
        Some(text) => match text.strip_prefix('-').and_then(|_| text.split_once('=')) {
            Some((name, value)) if shell_quoted(name) == name && !value.is_empty() => {
                format!("{name}={}", shell_quoted(value)).into_bytes()
            }
            _ => shell_quoted(text).into_bytes(),
        },
        None => {
            let parts: Vec<_> = word.as_encoded_bytes().split(|byte| *byte == b'\'').collect();
            [b"'", &parts.join(&br"'\''"[..])[..], b"'"].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_word_is_quoted_where_a_shell_would_read_something_into_it() {
        for (word, expected) in [
            ("serve", "serve"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$HOME", "'$HOME'"),
            ("it's", r"'it'\''s'"),
            ("--port=6379", "--port=6379"),
            ("--port=", "'--port='"),
            ("--name=a b", "--name='a b'"),
            ("A=1", "'A=1'"),
        ] {
            assert_eq!(quoted(OsStr::new(word)), expected.as_bytes(), "{word}");
        }
        let no_text = OsStr::from_bytes(b"\xff it's");
        assert_eq!(quoted(no_text), b"'\xff it'\\''s'");
    }
}
