//! A snapshot of the process's environment, taken once.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::error::quote;

/// Sets the job's token, instead of one derived from the job's identity. It may be a secret.
pub(crate) const TOKEN: &str = "MPIENV_TOKEN";
/// What errors and debug output show instead of a secret.
const HIDDEN: &str = "(hidden)";

/// A snapshot of environment variables.
///
/// Names and values need not be UTF-8. A value that is not UTF-8 causes an error only if it is read
/// as text.
///
/// ```
/// use mpienv::{ClusterInfo, Environment, ReadError};
///
/// let environment = Environment::from_vars([("PMI_RANK", " 1\n"), ("PMI_SIZE", "4")]);
/// let rank: Result<Option<&str>, ReadError> = environment.get_str("PMI_RANK");
/// assert_eq!(rank, Ok(Some("1")));
/// assert_eq!(environment.get("RANK"), None);
/// assert!(!environment.is_set("RANK"));
/// assert_eq!(ClusterInfo::from_environment(&environment)?.rank().index(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// Sorted by name, each of which occurs once. Shared, because every place keeps them.
    vars: Arc<Vec<(OsString, OsString)>>,
    names: Names,
    is_current: bool,
}

/// A bit for the length and the last letter of each name. Most of the hundreds of names that are
/// looked up are not set, which a bit shows sooner than a search.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Names([u64; 4]);

impl Names {
    fn of(vars: &[(OsString, OsString)]) -> Names {
        let mut names = Names::default();
        for (name, _) in vars {
            let (word, bit) = Names::bit(name.as_encoded_bytes());
            names.0[word] |= bit;
        }
        names
    }

    /// Returns whether the name may be among these. Otherwise it is not.
    fn may_have(&self, name: &str) -> bool {
        let (word, bit) = Names::bit(name.as_bytes());
        self.0[word] & bit != 0
    }

    fn bit(name: &[u8]) -> (usize, u64) {
        let number = match name {
            [.., last] => 31 * name.len() + *last as usize,
            [] => 0,
        };
        (number / 64 % 4, 1 << (number % 64))
    }
}

/// Omits the value of the variable that holds the secret: debug output goes to logs.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.vars.iter().map(|(name, value)| match name.to_str() {
            Some(TOKEN) => (name, OsStr::new(HIDDEN)),
            _ => (name, value.as_os_str()),
        });
        f.debug_map().entries(shown).finish()
    }
}

impl Environment {
    /// Takes a snapshot of this process's environment.
    ///
    /// If its variables do not show which launcher started this process, a
    /// [`ClusterInfo`](crate::ClusterInfo) that is read from it on Linux also inspects the parent
    /// processes, and in a PBS job the file in `PBS_NODEFILE`. For any other environment, only the
    /// variables count, and a file that `MPIENV_TOKEN_FILE` names.
    #[must_use]
    pub fn current() -> Environment {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        let vars = std::env::vars_os();
        Environment { is_current: true, ..Environment::from_vars(vars) }
    }

    /// Creates an environment from these variables. If a name occurs twice, the last value counts.
    pub fn from_vars<N, V>(vars: impl IntoIterator<Item = (N, V)>) -> Environment
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        let vars = vars.into_iter();
        Environment::sorted(vars.map(|(name, value)| (name.into(), value.into())).collect())
    }

    fn sorted(mut vars: Vec<(OsString, OsString)>) -> Environment {
        // The sort is stable: the last value of a name comes first after the reversal.
        vars.reverse();
        vars.sort_by(|(one, _), (other, _)| one.cmp(other));
        vars.dedup_by(|(later, _), (earlier, _)| later == earlier);
        Environment { names: Names::of(&vars), vars: Arc::new(vars), is_current: false }
    }

    fn position(&self, name: &str) -> Result<usize, usize> {
        let name = OsStr::new(name);
        self.vars.binary_search_by(|(own, _)| own.as_os_str().cmp(name))
    }

    /// Returns the value of a variable unchanged, or `None` if it is not set.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        if !self.names.may_have(name) {
            return None;
        }
        self.position(name).ok().map(|at| self.vars[at].1.as_os_str())
    }

    /// Returns the value of a variable as text, without surrounding ASCII whitespace.
    ///
    /// Returns `None` if the variable is not set or contains only whitespace.
    ///
    /// # Errors
    /// Returns an error if the value is not UTF-8.
    pub fn get_str(&self, name: &str) -> Result<Option<&str>, ReadError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let text = value.to_str().ok_or_else(|| ReadError::NotUnicode {
            name: name.to_owned(),
            value: if name == TOKEN {
                HIDDEN.to_owned()
            } else {
                value.to_string_lossy().into_owned()
            },
        })?;
        let text = text.trim_ascii();
        Ok((!text.is_empty()).then_some(text))
    }

    /// Returns the value of a variable if it is text.
    #[doc(hidden)]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get_str(name).ok().flatten()
    }

    /// Returns the number in a variable, if it consists of digits.
    pub(crate) fn digits<T: FromStr>(&self, name: &str) -> Option<T> {
        self.text(name).and_then(digits)
    }

    /// Returns a variable with its value: `OMPI_COMM_WORLD_RANK="3"`.
    pub(crate) fn shown(&self, name: &str) -> String {
        let value = self.get(name).map(OsStr::to_string_lossy).unwrap_or_default();
        format!("{name}={}", quote(value.trim()))
    }

    /// Returns a copy with these changes. Variables with a value are set, and those without one are
    /// unset.
    pub(crate) fn with<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Environment {
        let mut changed = self.clone();
        for (name, value) in changes {
            let at = changed.position(name);
            let vars = Arc::make_mut(&mut changed.vars);
            match (at, value.map(OsString::from)) {
                (Ok(at), Some(value)) => vars[at].1 = value,
                (Ok(at), None) => drop(vars.remove(at)),
                (Err(at), Some(value)) => vars.insert(at, (name.into(), value)),
                (Err(_), None) => {}
            }
        }
        changed.names = Names::of(&changed.vars);
        changed
    }

    /// Returns whether these are the variables of this process, so that its parent processes can be
    /// inspected.
    #[doc(hidden)]
    pub fn is_current(&self) -> bool {
        self.is_current
    }

    /// Returns the names that are UTF-8 without control characters, in alphabetical order: they may
    /// become a part of an error, which is one line.
    #[doc(hidden)]
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.vars.iter().filter_map(|(name, _)| one_line(name))
    }

    /// Returns the variables whose names are in [`names`](Environment::names) and whose values are
    /// UTF-8. ASCII whitespace around a value is removed.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        let vars = self.vars.iter();
        vars.filter_map(|(name, value)| Some((one_line(name)?, value.to_str()?.trim_ascii())))
    }

    /// Returns whether a variable is set and not blank.
    #[must_use]
    pub fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !value.as_encoded_bytes().trim_ascii().is_empty())
    }

    /// Returns the first of these variables that is set.
    pub(crate) fn first_set(&self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().find(|name| self.is_set(name)).copied()
    }

    /// Returns the fields of those variables that are set, and their values, as envy takes them.
    fn fields(&self, variables: &[Variable]) -> Result<Vec<(String, String)>, ReadError> {
        let mut fields = Vec::with_capacity(variables.len());
        for &Variable { name, field, is_number, .. } in variables {
            let Some(value) = self.get_str(name)? else { continue };
            // envy takes a plus sign too, which no launcher writes, and its error does not name the
            // variable.
            if is_number && digits::<u32>(value).is_none() {
                let (name, value) = (name.to_owned(), value.to_owned());
                return Err(ReadError::Invalid { name, value, reason: "not a number".to_owned() });
            }
            fields.push((field.to_owned(), value.to_owned()));
        }
        Ok(fields)
    }
}

fn one_line(name: &OsStr) -> Option<&str> {
    name.to_str().filter(|name| !name.contains(char::is_control))
}

/// Parses a number that consists of digits only. The standard library's parsers take a plus sign
/// too.
pub fn digits<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Returns the error that names the variable. Not generic, so that it is compiled once for all
/// structs.
fn explain(error: envy::Error, variables: &[Variable]) -> ReadError {
    match error {
        envy::Error::MissingValue(field) => {
            let name =
                variables.iter().find(|variable| variable.field == field).map_or(field, |v| v.name);
            ReadError::Missing { name: name.to_owned() }
        }
        envy::Error::Custom(text) => ReadError::Other(text),
    }
}

/// An environment variable, its meaning, and the page that documents it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The variable's name.
    pub name: &'static str,
    /// The struct field that holds its value.
    pub field: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// The page that defines it, as a Markdown link, or the program version from which it was
    /// recorded.
    pub page: &'static str,
    /// Whether its value is a number.
    pub(crate) is_number: bool,
}

/// A type that a field has.
pub(crate) trait Field {
    const IS_NUMBER: bool;
}

impl Field for u32 {
    const IS_NUMBER: bool = true;
}

impl Field for String {
    const IS_NUMBER: bool = false;
}

impl<T: Field> Field for Option<T> {
    const IS_NUMBER: bool = T::IS_NUMBER;
}

/// A struct of variables.
pub(crate) trait Variables: DeserializeOwned {
    /// The variable of each field.
    const VARIABLES: &'static [Variable];

    /// Reads these variables, and no others.
    ///
    /// ASCII whitespace around a value is removed. A value that contains only whitespace counts as
    /// unset. Numbers consist of decimal digits only.
    fn read(environment: &Environment) -> Result<Self, ReadError> {
        let fields = environment.fields(Self::VARIABLES)?;
        envy::from_iter(fields).map_err(|error| explain(error, Self::VARIABLES))
    }
}

/// Defines a struct of variables.
///
/// Each page that defines variables is followed by their constants, names, fields, types and
/// meanings.
macro_rules! variables {
    ($(#[$attribute:meta])* pub struct $vars:ident {
        $($page:literal { $($constant:ident = $name:literal => $field:ident: $type:ty, $meaning:literal;)+ })+
    }) => {
        $($(pub(crate) const $constant: &str = $name;)+)+

        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
        #[non_exhaustive]
        pub struct $vars {
            $($(
                #[doc = concat!("`", $name, "`: ", $meaning, "; ", $page, ".")]
                pub $field: $type,
            )+)+
        }

        impl $crate::environment::Variables for $vars {
            const VARIABLES: &'static [$crate::environment::Variable] = &[$($(
                $crate::environment::Variable {
                    name: $constant,
                    field: stringify!($field),
                    meaning: $meaning,
                    page: $page,
                    is_number: <$type as $crate::environment::Field>::IS_NUMBER,
                },
            )+)+];
        }
    };
}
pub(crate) use variables;

/// Why a variable cannot be read: the error of [`Environment::get_str`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A variable that belongs to another one is not set.
    #[error("{name} is not set")]
    #[non_exhaustive]
    Missing {
        /// The variable.
        name: String,
    },
    /// A variable's value is not UTF-8.
    #[error("{name}={value:?} is not UTF-8")]
    #[non_exhaustive]
    NotUnicode {
        /// The variable.
        name: String,
        /// Its value, with invalid bytes replaced.
        value: String,
    },
    /// A variable's value is not what the launcher sets.
    #[error("{name}={value:?}: {reason}")]
    #[non_exhaustive]
    Invalid {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The variables do not fit together, and the error names none of them.
    #[error("{0}")]
    Other(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    variables! {
        /// For these tests.
        pub struct Vars {
            "nowhere" {
                A_RANK = "A_RANK" => a_rank: u32, "a rank";
                NAME = "SOME_NAME" => name: Option<String>, "a name";
                MIXED = "Mixed_case" => mixed_case: Option<u32>, "a number";
            }
        }
    }

    fn read(pairs: &[(&str, &str)]) -> Result<Vars, ReadError> {
        Vars::read(&Environment::from_vars(pairs.iter().copied()))
    }

    #[test]
    fn blanks_are_trimmed_and_a_blank_value_is_unset() {
        assert_eq!(
            read(&[("A_RANK", " 4\n"), ("SOME_NAME", "  ")]),
            Ok(Vars { a_rank: 4, name: None, mixed_case: None })
        );
        assert_eq!(read(&[("A_RANK", " ")]), Err(ReadError::Missing { name: "A_RANK".into() }));
    }

    #[test]
    fn of_a_name_given_twice_the_last_value_counts() {
        let environment =
            Environment::from_vars([("B", "1"), ("A", "2"), ("B", "3"), ("C", "4"), ("B", "5")]);
        assert_eq!(
            ["A", "B", "C", "D"].map(|name| environment.get_str(name).unwrap()),
            [Some("2"), Some("5"), Some("4"), None]
        );
        assert_eq!(environment.names().collect::<Vec<_>>(), ["A", "B", "C"]);
        assert_eq!(environment, Environment::from_vars([("C", "4"), ("B", "5"), ("A", "2")]));
    }

    #[test]
    fn a_variable_that_is_added_is_found_and_one_that_is_removed_is_not() {
        let none = Environment::default();
        let added = none.with([("ADDED", Some("1")), ("OTHER", Some("2"))]);
        assert_eq!(added.get_str("ADDED"), Ok(Some("1")));
        let removed = added.with([("ADDED", None)]);
        assert_eq!((removed.get("ADDED"), removed.text("OTHER")), (None, Some("2")));
        assert_eq!(removed.with([("OTHER", None)]), none);
    }

    #[test]
    fn a_name_of_several_lines_is_not_listed() {
        let environment = Environment::from_vars([("A\nB", "1"), ("C", " 2")]);
        assert_eq!(environment.names().collect::<Vec<_>>(), ["C"]);
        assert_eq!(environment.texts().collect::<Vec<_>>(), [("C", "2")]);
        assert_eq!(environment.text("A\nB"), Some("1"));
    }

    #[test]
    fn names_that_only_resemble_one_that_is_set_are_not_found() {
        let environment = Environment::from_vars([("A_RANK", "1")]);
        // The same length and the same last letter.
        assert_eq!(environment.get("B_RANK"), None);
        assert_eq!((environment.get("A_RANK").is_some(), environment.get("")), (true, None));
    }

    #[test]
    fn only_the_variables_own_spelling_counts() {
        let pairs =
            [("A_RANK", "1"), ("Mixed_case", "2"), ("MIXED_CASE", "3"), ("mixed_case", "4")];
        assert_eq!(read(&pairs).unwrap().mixed_case, Some(2));
        assert_eq!(read(&[("a_rank", "1")]), Err(ReadError::Missing { name: "A_RANK".into() }));
        let error = read(&[("A_RANK", "1"), ("Mixed_case", "x")]).unwrap_err();
        assert!(matches!(error, ReadError::Invalid { name, .. } if name == "Mixed_case"));
    }

    #[test]
    fn what_is_not_a_plain_decimal_number_is_refused_with_its_variable() {
        for bad in ["+1", "-1", "0x1", "1_0", "1.0", "four", "4294967296", "１"] {
            let error = read(&[("A_RANK", bad)]).unwrap_err();
            let ReadError::Invalid { name, value, .. } = error else { panic!("{bad}: {error:?}") };
            assert_eq!((&*name, &*value), ("A_RANK", bad));
        }
        assert_eq!(read(&[("A_RANK", "007")]).unwrap().a_rank, 7);
    }

    #[test]
    fn text_may_begin_with_a_plus_sign() {
        for name in ["+", "+1", "+0829", "+host"] {
            let vars = read(&[("A_RANK", "1"), ("SOME_NAME", name)]).unwrap();
            assert_eq!(vars.name.as_deref(), Some(name));
        }
    }

    #[test]
    fn what_is_not_utf8_matters_only_where_it_is_asked_for() {
        use std::os::unix::ffi::OsStringExt;
        let junk = || OsString::from_vec(vec![b'x', 0xff]);
        let mut vars =
            vec![(junk(), junk()), ("OTHER".into(), junk()), ("A_RANK".into(), "3".into())];
        assert_eq!(Vars::read(&Environment::from_vars(vars.clone())).unwrap().a_rank, 3);
        vars.push(("SOME_NAME".into(), junk()));
        let error = Vars::read(&Environment::from_vars(vars)).unwrap_err();
        assert_eq!(
            error,
            ReadError::NotUnicode { name: "SOME_NAME".into(), value: "x\u{fffd}".into() }
        );
    }
}
