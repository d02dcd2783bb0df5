//! Commands with placeholders: `{node_rank}` becomes this process's value.

mod parse;
mod placeholder;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

use crate::cluster::info::ClusterInfo;
use crate::environment::digits;
use crate::error::Error;
use parse::{NODE_RANK, Piece, parse};
use placeholder::{
    ASKED, MASTER_PORT, OF_PROCESS, PLACEHOLDERS, Placeholder, SECRET, Unknown, Value,
};

/// The values that replace placeholders in the words of a command.
///
/// | in a word | what it becomes |
/// | --- | --- |
/// | `{name}` | the value of one of [`Placeholders::names`] |
/// | `{name+1}`, `{name*name}`, `{name-1}` | one sum, product or difference of numbers and placeholders that are numbers |
/// | `{{`, `}}` | a brace |
/// | `{first_node}WORD` | `WORD` on node 0; on other nodes the word is left out |
/// | `{other_nodes}WORD` | `WORD` on all nodes but node 0, where the word is left out |
///
/// No shell reads the words, so a value is never split or executed.
#[derive(Clone, Debug)]
pub struct Placeholders {
    info: ClusterInfo,
    /// Whether the command is for the whole node.
    per_node: bool,
    /// What replaces `{secret}`, once the ranks have met.
    secret: Option<String>,
}

/// Names and values.
type Variables = Vec<(String, String)>;

impl Placeholders {
    /// Returns the name of each placeholder, and what replaces it.
    pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
        PLACEHOLDERS.iter().map(|&(name, meaning, _)| (name, meaning))
    }

    /// Returns a word with each placeholder replaced, or `None` if the word is for other nodes.
    ///
    /// # Errors
    /// Returns an error if a placeholder does not exist or has no value here, or if braces do not
    /// form a placeholder.
    pub fn expand(&self, word: &str) -> Result<Option<String>, TemplateError> {
        self.expanded(word).map_err(|fault| fault.of(word.as_ref()))
    }

    /// Checks the words for errors that would occur on every node, without using any values.
    ///
    /// # Errors
    /// Returns an error if a placeholder does not exist, if braces do not form a placeholder, or if
    /// other users could read the secret.
    pub fn check_words(words: &[OsString]) -> Result<(), TemplateError> {
        let mut texts = words.iter().filter_map(|word| word.to_str());
        let check = |word| parse(word)?.iter().try_for_each(check);
        texts.try_for_each(|word| check(word).map_err(|fault| fault.of(word.as_ref())))?;
        check_secret(words)
    }

    /// Returns whether the words contain this host's own address or its interface.
    pub fn name_own_addr(words: &[OsString]) -> bool {
        names_in(words).any(|name| ASKED.contains(&name))
    }

    /// Returns whether the words contain the node, but nothing that differs between the node's
    /// processes.
    pub fn are_for_a_node(words: &[OsString]) -> bool {
        let names: BTreeSet<&str> = names_in(words).collect();
        names.contains(NODE_RANK) && !["rank", "local_rank"].iter().any(|name| names.contains(name))
    }

    /// Returns the words of a command with each placeholder replaced, without the words for other
    /// nodes.
    ///
    /// Words that are not UTF-8 are kept as they are.
    ///
    /// # Errors
    /// Same as [`Placeholders::expand`]. Also returns an error if no word is left, or if a word
    /// with braces is not UTF-8.
    pub fn expand_words(&self, words: &[OsString]) -> Result<Vec<OsString>, TemplateError> {
        let mut expanded = Vec::new();
        for word in words {
            match word.to_str() {
                Some(text) => expanded.extend(self.expand(text)?.map(OsString::from)),
                None if word.as_encoded_bytes().iter().any(|byte| b"{}".contains(byte)) => {
                    return Err(Fault::NotUnicode.of(word));
                }
                None => expanded.push(word.clone()),
            }
        }
        if expanded.is_empty() {
            let word = words.first().cloned().unwrap_or_default();
            return Err(Fault::NothingLeft.of(&word));
        }
        Ok(expanded)
    }

    /// Returns whether a word of a command has the secret.
    pub fn have_secret(words: &[OsString]) -> bool {
        words.iter().any(has_secret)
    }

    /// Returns these values with the secret that all ranks have got.
    #[must_use]
    pub fn with_secret(self, secret: &str) -> Placeholders {
        Placeholders { secret: Some(secret.to_owned()), ..self }
    }

    /// Returns the words of a command without those that have the secret, and the variables that
    /// these words set.
    ///
    /// # Errors
    /// Same as [`Placeholders::expand_words`].
    pub fn expand_apart(
        &self,
        words: &[OsString],
    ) -> Result<(Vec<OsString>, Variables), TemplateError> {
        check_secret(words)?;
        let (hidden, visible): (Vec<_>, Vec<_>) = words.iter().cloned().partition(has_secret);
        let mut variables = Vec::new();
        for word in hidden.iter().filter_map(|word| word.to_str()) {
            let word = self.expand(word)?;
            let variable = word.as_deref().and_then(|word| word.split_once('='));
            variables.extend(variable.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        Ok((self.expand_words(&visible)?, variables))
    }

    fn expanded(&self, word: &str) -> Result<Option<String>, Fault> {
        let mut text = String::new();
        for piece in parse(word)? {
            match piece {
                Piece::Text(piece) => text += &piece,
                Piece::Condition { first_node } => {
                    // A condition is the first piece of its word.
                    if (self.number(NODE_RANK)? == 0) != first_node {
                        // An error in the rest of the word is an error on every node.
                        return parse(word)?.iter().try_for_each(check).map(|()| None);
                    }
                }
                Piece::Value(name) => match self.value(name)? {
                    Value::Number(number) => text += &number.to_string(),
                    Value::Text(value) => text += &value,
                },
                Piece::Sum { left, sign, right } => {
                    text += &self.sum(left, sign, right)?.to_string()
                }
            }
        }
        Ok(Some(text))
    }

    fn value(&self, name: &str) -> Result<Value, Fault> {
        let (_, _, value) = find(name)?;
        let not_known =
            |why: String| Fault::NotKnown { name: name.to_owned(), why, known: self.known() };
        if self.per_node && OF_PROCESS.contains(&name) {
            return Err(not_known("the command is for the whole node".to_owned()));
        }
        if let (SECRET, Some(secret)) = (name, &self.secret) {
            return Ok(Value::Text(secret.clone()));
        }
        value(&self.info).map_err(|unknown| match unknown {
            Unknown::Error(error) => Fault::Environment(error),
            Unknown::Because(why) => not_known(why),
        })
    }

    /// Returns the names that have a value here.
    fn known(&self) -> Vec<&'static str> {
        let is_known = |&&(name, _, value): &&Placeholder| {
            let is_there = match ASKED.contains(&name) {
                true => self.info.master_addr().is_ok(),
                false => value(&self.info).is_ok(),
            };
            is_there && !(self.per_node && OF_PROCESS.contains(&name))
        };
        PLACEHOLDERS.iter().filter(is_known).map(|&(name, ..)| name).collect()
    }

    fn number(&self, name: &str) -> Result<u64, Fault> {
        match self.value(name)? {
            Value::Number(number) => Ok(number),
            Value::Text(_) => Err(Fault::NotANumber(name.to_owned())),
        }
    }

    fn sum(&self, left: &str, sign: char, right: &str) -> Result<u64, Fault> {
        let side = |side: &str| digits(side).map_or_else(|| self.number(side), Ok);
        let (a, b) = (side(left)?, side(right)?);
        let result = match sign {
            '+' => a.checked_add(b),
            '-' => a.checked_sub(b),
            _ => a.checked_mul(b),
        };
        let is_port = [left, right].contains(&MASTER_PORT);
        let most = if is_port { u64::from(u16::MAX) } else { u64::MAX };
        let least = u64::from(is_port);
        let result = result.filter(|result| (least..=most).contains(result));
        result.ok_or_else(|| Fault::OutOfRange { sum: format!("{a} {sign} {b}"), least, most })
    }
}

/// Returns the names of the placeholders in the words that can be parsed.
fn names_in(words: &[OsString]) -> impl Iterator<Item = &str> {
    let pieces = words.iter().filter_map(|word| parse(word.to_str()?).ok()).flatten();
    pieces.flat_map(|piece| piece.names())
}

/// Returns an error if a name in a piece does not exist.
fn check(piece: &Piece<'_>) -> Result<(), Fault> {
    piece.names().into_iter().try_for_each(|name| find(name).map(drop))
}

fn find(name: &str) -> Result<&'static Placeholder, Fault> {
    let found = PLACEHOLDERS.iter().find(|&&(known, ..)| known == name);
    found.ok_or_else(|| Fault::NoSuchName(name.to_owned()))
}

impl ClusterInfo {
    /// Returns the values that replace placeholders in a command for this process.
    pub(crate) fn placeholders(&self) -> Placeholders {
        Placeholders { info: self.clone(), per_node: false, secret: None }
    }

    /// Returns the values that replace placeholders in a command for the whole node. Those of a
    /// rank are not available.
    pub(crate) fn per_node_placeholders(&self) -> Result<Placeholders, Error> {
        Ok(Placeholders { info: self.as_node()?, per_node: true, secret: None })
    }
}

// `{secret}` must not become a word of a command: other users of the host can read these.

/// Refuses the secret in any word that is not a variable of `env` before the command.
fn check_secret(words: &[OsString]) -> Result<(), TemplateError> {
    match words.iter().skip(variables(words)).find(|word| has_secret(word)) {
        None => Ok(()),
        Some(word) => Err(Fault::SecretIsVisible.of(word)),
    }
}

/// Returns how many words are `env` and the variables that it sets.
fn variables(words: &[OsString]) -> usize {
    let is_env = words.first().is_some_and(|word| word == "env");
    let variables = words.iter().skip(1).take_while(|word| is_variable(word));
    if is_env { 1 + variables.count() } else { 0 }
}

fn is_variable(word: &OsString) -> bool {
    let name = word.to_str().and_then(|word| word.split_once('=')).map(|(name, _)| name);
    name.is_some_and(|name| !name.starts_with('-') && !has_secret(&name.into()))
}

fn has_secret(word: &OsString) -> bool {
    let pieces = word.to_str().and_then(|word| parse(word).ok()).unwrap_or_default();
    pieces.iter().any(|piece| matches!(piece, Piece::Value(SECRET)))
}

/// Why a word's placeholders cannot be replaced.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{word:?}: {fault}")]
pub struct TemplateError {
    word: String,
    fault: Fault,
}

debug_is_text!(TemplateError);

impl TemplateError {
    /// Returns whether the word itself is right, and only this environment lacks a value.
    pub fn is_by_environment(&self) -> bool {
        matches!(self.fault, Fault::NotKnown { .. } | Fault::Environment(_))
    }
}

/// What is wrong with a word.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("unknown placeholder {{{0}}}; the names are {names}; write {{{{ and }}}} for braces", names = all_names())]
    NoSuchName(String),
    #[error("{{{name}}} is not known here: {why}; known are {}", .known.join(", "))]
    NotKnown { name: String, why: String, known: Vec<&'static str> },
    #[error(transparent)]
    Environment(Error),
    #[error("{{{0}}} is not a number, so that nothing can be added to it; use it alone")]
    NotANumber(String),
    #[error("{sum} is not a number from {least} to {most}; choose smaller numbers")]
    OutOfRange { sum: String, least: u64, most: u64 },
    #[error("a {{ is not closed; write {{{{ for a brace")]
    NotClosed,
    #[error("a }} has no {{ before it; write }}}} for a brace")]
    NotOpened,
    #[error(
        "{{{0}}} is not a name, or a sum, difference or product of two names or numbers; write {{{{ and }}}} for braces"
    )]
    Malformed(String),
    #[error("{{{0}}} stands only at the beginning of a word, and needs a word after it")]
    Misplaced(String),
    #[error("it has braces and is not UTF-8; leave the braces out, or put the word into a script")]
    NotUnicode,
    #[error(
        "other users of the host can read the words of a command: give {{secret}} to it in a variable, as in \
         `env NAME={{secret}} CMD...`"
    )]
    SecretIsVisible,
    #[error("no word of the command is left on this node; give this node a command too")]
    NothingLeft,
}

impl Fault {
    fn of(self, word: &OsStr) -> TemplateError {
        TemplateError { word: word.to_string_lossy().into_owned(), fault: self }
    }
}

fn all_names() -> String {
    let names: Vec<_> =
        Placeholders::names().map(|(name, _)| name).chain(parse::CONDITIONS).collect();
    debug_assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Rank 5 of 8, the second of four on the second of two nodes.
    fn rank_5() -> ClusterInfo {
        let vars = [
            ("SLURM_PROCID", "5"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_TASKS_PER_NODE", "4(x2)"),
            ("SLURM_NODEID", "1"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_STEP_NODELIST", "node[0-1]"),
            ("SLURM_STEP_ID", "0"),
            ("MASTER_ADDR", "fe80::1"),
            ("MASTER_PORT", "65530"),
        ];
        ClusterInfo::from_vars(vars).unwrap()
    }

    fn expand(word: &str) -> Result<Option<String>, String> {
        rank_5().placeholders().expand(word).map_err(|error| error.to_string())
    }

    #[test]
    fn each_placeholder_has_its_value() {
        for (word, value) in [
            ("{rank}/{world_size}", "5/8"),
            ("{local_rank} {local_world_size} {nproc_per_node}", "1 4 4"),
            ("-n{node_rank}of{nnodes}", "-n1of2"),
            ("{hosts}", "node0,node1"),
            ("{master_addr}", "fe80::1"),
            ("{master}", "[fe80::1]:65530"),
            ("{ rank }", "5"),
            ("{node_rank*nproc_per_node}", "4"),
            ("{node_rank * 8}", "8"),
            ("{master_port+1}", "65531"),
            ("{nnodes-1}", "1"),
            ("{master_port+rank}", "65535"),
            ("{{\"a\": {rank}}}", "{\"a\": 5}"),
            ("{other_nodes}--a={rank}", "--a=5"),
            ("$(id) `id` {rank}", "$(id) `id` 5"),
            ("", ""),
        ] {
            assert_eq!(expand(word), Ok(Some(value.to_owned())), "{word}");
        }
        assert_eq!(expand("{first_node}--head"), Ok(None));
    }

    #[test]
    fn what_is_wrong_with_a_word_is_said_with_the_word() {
        let names = "rank, world_size, local_rank";
        for (word, text) in [
            ("{nod_rank}", names),
            ("{token}", names),
            ("{MPIENV_TOKEN}", names),
            ("{first_node}{nod_rank}", names),
            ("{first_node}{rank+nod_rank}", names),
            ("a{b", "a { is not closed"),
            ("a}b", "a } has no { before it"),
            ("{}", "{} is not a name, or a sum"),
            ("{\"a\": 1}", "write {{ and }} for braces"),
            ("{rank+1+1}", "is not a name, or a sum"),
            ("{+1}", "is not a name, or a sum"),
            ("{7}", "is not a name, or a sum"),
            ("{rank+99999999999999999999}", "is not a name, or a sum"),
            ("{master_addr+1}", "{master_addr} is not a number"),
            ("{master_port+6}", "65530 + 6 is not a number from 1 to 65535"),
            ("{rank-6}", "5 - 6 is not a number from 0"),
            ("{rank*18446744073709551615}", "5 * 18446744073709551615 is not a number"),
            ("x{first_node}", "{first_node} stands only at the beginning of a word"),
            (
                "{other_nodes}",
                "{other_nodes} stands only at the beginning of a word, and needs a word after it",
            ),
            ("{first_node}{other_nodes}x", "{other_nodes} stands only at the beginning"),
        ] {
            let error = expand(word).unwrap_err();
            assert!(
                error.starts_with(&format!("{word:?}: ")) && error.contains(text),
                "{word}: {error}"
            );
        }
    }

    #[test]
    fn a_value_that_is_not_known_is_an_error_that_names_those_that_are() {
        let vars = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MASTER_ADDR", "a")];
        let values = ClusterInfo::from_vars(vars).unwrap().placeholders();
        for word in ["{node_rank}", "{local_rank}", "{other_nodes}--headless"] {
            let error = values.expand(word).unwrap_err().to_string();
            assert!(error.contains(" is not known here: "), "{error}");
            assert!(
                error.ends_with("; known are rank, world_size, master_addr, master_port, master, own_addr, interface"),
                "{error}"
            );
        }
    }

    #[test]
    fn words_that_are_for_other_nodes_are_left_out_and_something_must_be_left() {
        let values = rank_5().placeholders();
        let words = |texts: &[&str]| texts.iter().map(OsString::from).collect::<Vec<_>>();
        let left = values
            .expand_words(&words(&["{first_node}head", "{other_nodes}worker", "{rank}"]))
            .unwrap();
        assert_eq!(left, ["worker", "5"]);
        let error =
            values.expand_words(&words(&["{first_node}head", "{first_node}--block"])).unwrap_err();
        assert!(error.to_string().contains("no word of the command is left"), "{error}");
    }

    #[test]
    fn bytes_that_are_not_text_pass_unless_they_have_braces() {
        use std::os::unix::ffi::OsStringExt;
        let values = rank_5().placeholders();
        let junk = OsString::from_vec(vec![0xff, b'a']);
        assert_eq!(values.expand_words(std::slice::from_ref(&junk)).unwrap(), [junk]);
        assert!(values.expand_words(&[OsString::from_vec(vec![0xff, b'{'])]).is_err());
    }

    proptest! {
        #[test]
        fn a_text_without_braces_expands_to_itself(text in "[^{}]*") {
            prop_assert_eq!(expand(&text), Ok(Some(text)));
        }

        #[test]
        fn doubled_braces_give_the_text_back(text in ".*") {
            let doubled = text.replace('{', "{{").replace('}', "}}");
            prop_assert_eq!(expand(&doubled), Ok(Some(text)));
        }

        #[test]
        fn no_word_panics(word in "[{}+*a-z_0-9 -]*") {
            let _ = expand(&word);
        }

        #[test]
        fn what_is_around_a_placeholder_stays(before in "[^{}]*", after in "[^{}]*") {
            prop_assert_eq!(expand(&format!("{before}{{rank}}{after}")), Ok(Some(format!("{before}5{after}"))));
        }
    }

    #[test]
    fn a_secret_becomes_a_variable_and_never_a_word() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let values = rank_5().placeholders().with_secret("s3cret");
        let expanded = values
            .expand_apart(&words("env A={secret} B={rank} {other_nodes}C=x{secret} run {rank}"));
        let (visible, variables) = expanded.unwrap();
        assert_eq!(visible, words("env B=5 run 5"));
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(variables, [variable("A", "s3cret"), variable("C", "xs3cret")]);
        let elsewhere = values.expand_apart(&words("env {first_node}A={secret} run"));
        assert_eq!(elsewhere.unwrap(), (words("env run"), vec![]));
        for visible in
            ["run {secret}", "A={secret} run", "env -i A={secret} run", "env {secret}=a run"]
        {
            let error = Placeholders::check_words(&words(visible)).unwrap_err().to_string();
            assert!(error.contains("other users of the host can read"), "{visible}: {error}");
        }
        let error = rank_5().placeholders().expand("{secret}").unwrap_err().to_string();
        assert!(
            error.contains("{secret} is not known here: the ranks get it when they meet"),
            "{error}"
        );
        assert!(
            values
                .expand("{secret+1}")
                .unwrap_err()
                .to_string()
                .contains("{secret} is not a number")
        );
    }
}
