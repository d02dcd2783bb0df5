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
    Value(&'a str),
    Sum { left: Operand<'a>, sign: char, right: Operand<'a> },
    Condition { first_node: bool },
}

/// One side of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand<'a> {
    Name(&'a str),
    Number(u64),
}

impl<'a> Piece<'a> {
    /// Returns the names whose values it needs.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let operands = match *self {
            Piece::Text(_) => [None, None],
            Piece::Value(name) => [Some(Operand::Name(name)), None],
            Piece::Sum { left, right, .. } => [Some(left), Some(right)],
            Piece::Condition { .. } => [Some(Operand::Name(NODE_RANK)), None],
        };
        operands.into_iter().flatten().filter_map(|operand| match operand {
            Operand::Name(name) => Some(name),
            Operand::Number(_) => None,
        })
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
    let malformed = || Fault::Malformed(inside.to_owned());
    let Some(at) = inside.find(['+', '-', '*']) else {
        return match operand(inside) {
            Some(Operand::Name(name)) => Ok(Piece::Value(name)),
            _ => Err(malformed()),
        };
    };
    let (left, right) = inside.split_at(at);
    let sign = right.chars().next().ok_or_else(malformed)?;
    let left = operand(left).ok_or_else(malformed)?;
    let right = operand(&right[1..]).ok_or_else(malformed)?;
    Ok(Piece::Sum { left, sign, right })
}

fn operand(text: &str) -> Option<Operand<'_>> {
    let text = text.trim();
    if let Some(number) = digits(text) {
        return Some(Operand::Number(number));
    }
    let is_name = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then_some(Operand::Name(text))
}
