//! A snapshot of the process's environment, taken once.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use serde::de::value::Error as ProbeError;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

/// Environment variables as they were at one moment.
///
/// Names and values may be any bytes: what is not UTF-8 matters only to whoever asks for it.
///
/// ```
/// use mpienv::launcher::open_mpi::OpenMpiVars;
/// use mpienv::{Environment, ReadError};
///
/// let environment = Environment::from_vars([
///     ("OMPI_COMM_WORLD_RANK", "1"),
///     ("OMPI_COMM_WORLD_SIZE", "4"),
///     ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
///     ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
/// ]);
/// let vars: OpenMpiVars = environment.read()?;
/// assert_eq!((vars.rank, vars.size), (1, 4));
/// assert_eq!(environment.get_str("OMPI_COMM_WORLD_RANK")?, Some("1"));
/// assert_eq!(environment.get("PMI_RANK"), None);
/// assert!(!environment.is_set("PMI_RANK"));
///
/// let half = Environment::from_vars([("OMPI_COMM_WORLD_RANK", "1")]);
/// let missing = ReadError::Missing { name: "OMPI_COMM_WORLD_SIZE".into() };
/// assert_eq!(half.read::<OpenMpiVars>(), Err(missing));
/// # Ok::<(), mpienv::ReadError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    vars: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// The environment of this process, now.
    #[must_use]
    pub fn current() -> Environment {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        let vars = std::env::vars_os();
        Environment::from_vars(vars)
    }

    /// An environment of these variables; of a name given twice the last value counts.
    pub fn from_vars<N, V>(vars: impl IntoIterator<Item = (N, V)>) -> Environment
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        let vars = vars.into_iter();
        Environment { vars: vars.map(|(name, value)| (name.into(), value.into())).collect() }
    }

    /// The value of a variable, as it is.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.vars.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// The value of a variable as text, without surrounding blanks; set but blank is unset.
    ///
    /// # Errors
    /// When the value is not UTF-8.
    pub fn get_str(&self, name: &str) -> Result<Option<&str>, ReadError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let text = value.to_str().ok_or_else(|| ReadError::NotUnicode {
            name: name.to_owned(),
            value: value.to_string_lossy().into_owned(),
        })?;
        let text = text.trim_ascii();
        Ok((!text.is_empty()).then_some(text))
    }

    /// The same with some variables set, and those without a value unset.
    pub(crate) fn with<'a>(&self, changes: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> Environment {
        let mut vars = self.vars.clone();
        for (name, value) in changes {
            match value {
                Some(value) => drop(vars.insert(name.into(), value.into())),
                None => drop(vars.remove(OsStr::new(name))),
            }
        }
        Environment { vars }
    }

    /// The names that are text, in alphabetic order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.vars.keys().filter_map(|name| name.to_str())
    }

    /// Whether a variable is set and not blank.
    #[must_use]
    pub fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !value.as_encoded_bytes().trim_ascii().is_empty())
    }

    /// Reads the variables that `T`'s fields name, and no others.
    ///
    /// A field's serde name is the variable's in lower case; a variable that has lower-case letters
    /// is given in its own spelling as the field's alias. Blanks around a value are trimmed; a
    /// blank value is as if unset. Numbers are plain decimal digits.
    ///
    /// # Errors
    /// When a variable that is no `Option` is missing, or a value is not of its field's type.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ReadError> {
        let fields = field_names::<T>();
        let mut pairs = Vec::with_capacity(fields.len());
        for name in names(fields) {
            let Some(value) = self.get_str(&name)? else { continue };
            // envy takes `+1` for a number; no launcher writes one.
            let digits = value.strip_prefix('+').unwrap_or_default();
            if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
                let (name, value) = (name.into_owned(), value.to_owned());
                return Err(ReadError::Invalid { name, value, reason: "a plus sign".to_owned() });
            }
            pairs.push((name.into_owned(), value.to_owned()));
        }
        envy::from_iter(pairs).map_err(|error| match error {
            envy::Error::MissingValue(field) => {
                let name = names(fields).find(|name| name.eq_ignore_ascii_case(field));
                ReadError::Missing { name: name.map_or_else(|| field.to_owned(), Cow::into_owned) }
            }
            envy::Error::Custom(text) => self.locate(text, fields),
        })
    }

    /// Finds the variable that envy's text complains of.
    fn locate(&self, text: String, fields: Fields) -> ReadError {
        for name in names(fields) {
            let Ok(Some(value)) = self.get_str(&name) else { continue };
            let tail = format!(" while parsing value '{value}' provided by {name}");
            if let Some(reason) = text.strip_suffix(&tail) {
                let (value, reason) = (value.to_owned(), reason.to_owned());
                return ReadError::Invalid { name: name.into_owned(), value, reason };
            }
        }
        ReadError::Other(text)
    }
}

/// The names that a derived `Deserialize` asks for: fields, and their aliases.
type Fields = &'static [&'static str];

/// The variables that `T` asks for, in their own spelling.
pub(crate) fn variable_names<T: DeserializeOwned>() -> Vec<String> {
    names(field_names::<T>()).map(Cow::into_owned).collect()
}

/// One name for each field: its alias where that has capitals, else the field in capitals.
fn names(fields: Fields) -> impl Iterator<Item = Cow<'static, str>> {
    let has_capitals = |name: &str| name.bytes().any(|b| b.is_ascii_uppercase());
    let (aliases, fields): (Vec<&str>, Vec<&str>) = fields.iter().copied().partition(|name| has_capitals(name));
    let alias = move |field: &str| aliases.iter().copied().find(|name| name.eq_ignore_ascii_case(field));
    fields.into_iter().map(move |field| match alias(field) {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(field.to_ascii_uppercase()),
    })
}

/// The names that `T`'s derived `Deserialize` asks for.
fn field_names<T: DeserializeOwned>() -> Fields {
    let mut names: &[&str] = &[];
    // The probe always stops the derive with an error once it has the names.
    let _ = T::deserialize(FieldProbe(&mut names));
    names
}

/// A deserializer that learns a struct's field names and stops.
struct FieldProbe<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldProbe<'_> {
    type Error = ProbeError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, ProbeError> {
        *self.0 = fields;
        Err(ProbeError::custom("names taken"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, ProbeError> {
        Err(ProbeError::custom("not a struct"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Why [`Environment::read`] could not read.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A variable that must be there is not.
    #[error("{name} is not set")]
    Missing {
        /// The variable.
        name: String,
    },
    /// A variable's value is not UTF-8.
    #[error("{name}={value:?} is not UTF-8")]
    NotUnicode {
        /// The variable.
        name: String,
        /// Its value, as far as it can be shown.
        value: String,
    },
    /// A variable's value is not of the type that is read.
    #[error("{name}={value:?}: {reason}")]
    Invalid {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The type that was asked for refused, and does not say which variable.
    #[error("{0}")]
    Other(String),
}

debug_is_text!(ReadError);

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Vars {
        a_rank: u32,
        #[serde(rename = "some_name")]
        name: Option<String>,
        #[serde(alias = "Mixed_case")]
        mixed_case: Option<u32>,
    }

    fn read(pairs: &[(&str, &str)]) -> Result<Vars, ReadError> {
        Environment::from_vars(pairs.iter().copied()).read()
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
        let environment = Environment::from_vars([("B", "1"), ("A", "2"), ("B", "3"), ("C", "4"), ("B", "5")]);
        assert_eq!(
            ["A", "B", "C", "D"].map(|name| environment.get_str(name).unwrap()),
            [Some("2"), Some("5"), Some("4"), None]
        );
        assert_eq!(environment.names().collect::<Vec<_>>(), ["A", "B", "C"]);
        assert_eq!(environment, Environment::from_vars([("C", "4"), ("B", "5"), ("A", "2")]));
    }

    #[test]
    fn only_the_variables_own_spelling_counts() {
        assert_eq!(read(&[("a_rank", "1"), ("A_RANK", "2")]).unwrap().a_rank, 2);
        assert_eq!(read(&[("a_rank", "1")]), Err(ReadError::Missing { name: "A_RANK".into() }));
    }

    #[test]
    fn a_name_with_lower_case_letters_is_read_in_its_own_spelling() {
        let pairs = [("A_RANK", "1"), ("Mixed_case", "2"), ("MIXED_CASE", "3"), ("mixed_case", "4")];
        assert_eq!(read(&pairs).unwrap().mixed_case, Some(2));
        let error = read(&[("A_RANK", "1"), ("Mixed_case", "x")]).unwrap_err();
        assert!(matches!(error, ReadError::Invalid { name, .. } if name == "Mixed_case"));
    }

    #[test]
    fn what_is_no_plain_decimal_number_is_refused_with_its_variable() {
        for bad in ["+1", "-1", "0x1", "1_0", "1.0", "four", "4294967296", "１"] {
            match read(&[("A_RANK", bad)]) {
                Err(ReadError::Invalid { name, value, .. }) => {
                    assert_eq!((name.as_str(), value.as_str()), ("A_RANK", bad))
                }
                other => panic!("{bad}: {other:?}"),
            }
        }
        assert_eq!(read(&[("A_RANK", "007")]).unwrap().a_rank, 7);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_not_utf8_matters_only_where_it_is_asked_for() {
        use std::os::unix::ffi::OsStringExt;
        let junk = || OsString::from_vec(vec![b'x', 0xff]);
        let mut vars = vec![(junk(), junk()), ("OTHER".into(), junk()), ("A_RANK".into(), "3".into())];
        assert_eq!(Environment::from_vars(vars.clone()).read::<Vars>().unwrap().a_rank, 3);
        vars.push(("SOME_NAME".into(), junk()));
        let error = Environment::from_vars(vars).read::<Vars>().unwrap_err();
        assert_eq!(error, ReadError::NotUnicode { name: "SOME_NAME".into(), value: "x\u{fffd}".into() });
    }
}
