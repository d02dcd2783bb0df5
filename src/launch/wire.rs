//! How launches write what they tell each other: as JSON, in which times are numbers.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use mpienv_core::printable;

/// Writes what another node reads.
pub(super) fn write(message: &impl Serialize) -> Vec<u8> {
    // A variant that is never sent becomes what no node accepts.
    serde_json::to_vec(message).unwrap_or_default()
}

/// Reads what another node has written. No text in it can control a terminal.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    let mut message = serde_json::from_slice(bytes)?;
    make_printable(&mut message);
    T::deserialize(message)
}

fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => *text = printable(text.as_bytes()),
        Value::Array(items) => items.iter_mut().for_each(make_printable),
        Value::Object(fields) => fields.values_mut().for_each(make_printable),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A time in milliseconds: at most 50 days, so that adding a received one to an instant cannot
/// overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u32", into = "u32")]
pub(super) struct Time(pub Duration);

impl From<u32> for Time {
    fn from(milliseconds: u32) -> Time {
        Time(Duration::from_millis(milliseconds.into()))
    }
}

impl From<Time> for u32 {
    fn from(Time(time): Time) -> u32 {
        u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
    }
}
