//! What the braces of a word mean.

use super::Fault;
use crate::environment::digits;

/// Conditions that a word may begin with. They select the nodes that keep the word.
pub(super) const CONDITIONS: [&str; 2] = ["first_node", "other_nodes"];

/// The placeholder that decides whether a condition holds.
pub(super) const NODE_RANK: &str = "node_rank";

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Text(String),
    /// A name.
    Value(&'a str),
    /// Each side is a name or a number.
    Sum {
        left: &'a str,
        sign: char,
        right: &'a str,
    },
    Condition {
        first_node: bool,
    },
}

impl<'a> Piece<'a> {
    /// Returns the names whose values it needs.
    pub(super) fn names(&self) -> Vec<&'a str> {
        let mut names = match *self {
            Piece::Text(_) => vec![],
            Piece::Value(name) => vec![name],
            Piece::Sum { left, right, .. } => vec![left, right],
            Piece::Condition { .. } => vec![NODE_RANK],
        };
        names.retain(|name| is_name(name));
        names
    }
}

/// Splits a word into its parts, in order.
pub(super) fn parse(word: &str) -> Result<Vec<Piece<'_>>, Fault> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        text += before;
        if let Some(after) = from.strip_prefix("{{").or_else(|| from.strip_prefix("}}")) {
            text += &from[..1];
            rest = after;
            continue;
        }
        let inside = from.strip_prefix('{').ok_or(Fault::NotOpened)?;
        let (inside, after) = inside.split_once('}').ok_or(Fault::NotClosed)?;
        let is_first = pieces.is_empty() && text.is_empty();
        let piece = placeholder(inside.trim())?;
        if matches!(piece, Piece::Condition { .. }) && (!is_first || after.is_empty()) {
            return Err(Fault::Misplaced(inside.trim().to_owned()));
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut text)));
        }
        pieces.push(piece);
        rest = after;
    }
    text += rest;
    pieces.extend((!text.is_empty()).then_some(Piece::Text(text)));
    Ok(pieces)
}

fn placeholder(inside: &str) -> Result<Piece<'_>, Fault> {
    if let Some(index) = CONDITIONS.iter().position(|condition| *condition == inside) {
        return Ok(Piece::Condition { first_node: index == 0 });
    }
    let (is_right, piece) = match inside.char_indices().find(|(_, c)| "+-*".contains(*c)) {
        None => (is_name(inside), Piece::Value(inside)),
        Some((at, sign)) => {
            let (left, right) = (inside[..at].trim(), inside[at + 1..].trim());
            let is_side = |side| is_name(side) || digits::<u64>(side).is_some();
            (is_side(left) && is_side(right), Piece::Sum { left, sign, right })
        }
    };
    if is_right { Ok(piece) } else { Err(Fault::Malformed(inside.to_owned())) }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
