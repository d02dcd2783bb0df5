//! Values that know where they come from.

use std::borrow::Cow;

/// Where a value comes from: a variable's name, or a rule in words.
pub type Source = Cow<'static, str>;

/// The source of a value that the launcher does not provide.
pub(crate) const NOT_PROVIDED: &str = "not provided by the launcher";

/// A value and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    pub value: T,
    pub source: Source,
}

/// A value that may be missing.
pub(crate) type Known<T> = Option<Sourced<T>>;

impl<T> Sourced<T> {
    pub fn new(value: T, source: impl Into<Source>) -> Sourced<T> {
        Sourced { value, source: source.into() }
    }
}

/// A value that gets a source: `by(RANK, 3)`, or `by(RANK, None)` if it may be missing.
pub trait Given {
    type Sourced;

    fn by(self, source: Source) -> Self::Sourced;
}

impl Given for u32 {
    type Sourced = Sourced<u32>;

    fn by(self, source: Source) -> Sourced<u32> {
        Sourced::new(self, source)
    }
}

impl<T> Given for Option<T> {
    type Sourced = Known<T>;

    fn by(self, source: Source) -> Known<T> {
        self.map(|value| Sourced::new(value, source))
    }
}

/// Returns a value with the variable that gives it.
pub fn by<T: Given>(source: impl Into<Source>, value: T) -> T::Sourced {
    value.by(source.into())
}

/// Returns the value without its source.
pub(crate) fn value_of<T: Copy>(known: &Known<T>) -> Option<T> {
    known.as_ref().map(|known| known.value)
}

/// Returns where a value comes from.
pub(crate) fn source_of<T>(known: &Known<T>) -> Source {
    known.as_ref().map_or(Source::Borrowed(NOT_PROVIDED), |known| known.source.clone())
}
