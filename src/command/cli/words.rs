//! The words of the command to start, with placeholders on request.

use std::ffi::{OsStr, OsString};
use std::io;

use crate::{ClusterInfo, Finding, Severity};
use clap::Args;
use mpienv_ask::seam::with_own_addr;
use mpienv_core::seam::{Placeholders, TemplateError, finding, shell_quoted};

/// Whether the command's words have placeholders.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct TemplateOption {
    /// Replace placeholders such as {node_rank} in the arguments of the command
    #[arg(long, long_help = long_help())]
    template: bool,
}

fn long_help() -> String {
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

impl TemplateOption {
    /// Returns whether the words have placeholders.
    pub(super) fn is_asked(self) -> bool {
        self.template
    }

    /// Checks the words for errors that would occur on every node.
    pub(super) fn check(self, words: &[OsString]) -> Result<(), TemplateError> {
        if self.template { Placeholders::check_words(words) } else { Ok(()) }
    }

    /// Returns the place with this host's own address, if the words need it.
    pub(super) fn complete(self, info: ClusterInfo, words: &[OsString]) -> ClusterInfo {
        let needs_own = self.template && Placeholders::name_own_addr(words);
        if needs_own { with_own_addr(&info) } else { info }
    }

    /// Reports processes of a node that would all get the same words for the node.
    pub(super) fn finding(self, info: &ClusterInfo, words: &[OsString]) -> Option<Finding> {
        let processes = info.local_world_size().filter(|&size| size > 1)?;
        (self.template && Placeholders::are_for_a_node(words)).then(|| finding(
            Severity::Warning,
            "same-words-on-node",
            format!("each of this node's {processes} processes starts the same command, which names the node"),
            "a server that expects one process on each node then meets several with the same number".to_owned(),
            "start one process on each node, or use {rank} or {local_rank} in the command".to_owned(),
        ))
    }
}

/// Prints the words, one per line, quoted for a shell.
pub(super) fn print(words: &[OsString]) -> io::Result<()> {
    let mut text = Vec::new();
    for word in words {
        text.extend(quoted(word));
        text.push(b'\n');
    }
    super::stream::print(&text)
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
        None => [b"'", word.as_encoded_bytes(), b"'"].concat(),
    }
}

#[cfg(test)]
mod tests {
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
    }
}
