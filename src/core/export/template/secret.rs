//! `{secret}`, which must not become a word of a command: other users of the host can read these.

use std::ffi::OsString;

use super::parse::{Piece, parse};
use super::placeholder::SECRET;
use super::{Fault, Placeholders, TemplateError};

/// Names and values.
type Variables = Vec<(String, String)>;

impl Placeholders {
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
        check_words(words)?;
        let (hidden, visible): (Vec<_>, Vec<_>) = words.iter().cloned().partition(has_secret);
        let mut variables = Vec::new();
        for word in hidden.iter().filter_map(|word| word.to_str()) {
            let word = self.expand(word)?;
            let variable = word.as_deref().and_then(|word| word.split_once('='));
            variables.extend(variable.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        Ok((self.expand_words(&visible)?, variables))
    }
}

/// Refuses the secret in any word that is not a variable of `env` before the command.
pub(super) fn check_words(words: &[OsString]) -> Result<(), TemplateError> {
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
