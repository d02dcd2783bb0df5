//! How clap parses the values of overrides, and names.

use std::convert::Infallible;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::ASKED;
use crate::cluster::nccl::NcclIfname;
use crate::value::launcher::Launcher;
use crate::value::name::UnknownName;
use crate::value::sourced::Sourced;

/// Returns a parser of one of these by name for clap, whose help and completions list the names.
pub fn named<T>(
    all: &'static [T],
    name_of: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + FromStr<Err = UnknownName>,
{
    PossibleValuesParser::new(all.iter().map(|&one| name_of(one))).try_map(|name| name.parse::<T>())
}

/// Parses the value of `--launcher`.
pub(super) fn launcher() -> impl TypedValueParser<Value = Sourced<Launcher>> {
    named(Launcher::ALL, Launcher::name).map(asked)
}

/// Parses the value of `--nccl-ifname`, which may be any text.
pub(super) fn ifname(text: &str) -> Result<Sourced<NcclIfname>, Infallible> {
    Ok(asked(text.into()))
}

/// Parses the value of an option.
pub(super) fn parse<T: FromStr>(text: &str) -> Result<Sourced<T>, T::Err> {
    text.parse().map(asked)
}

/// Returns the value of an option.
fn asked<T>(value: T) -> Sourced<T> {
    Sourced::new(value, ASKED)
}
