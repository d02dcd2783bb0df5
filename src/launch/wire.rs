//! How launches write what they tell each other: as JSON, in which times and exit statuses are numbers.

use serde::Serialize;
use serde::de::DeserializeOwned;
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

/// Times of at most 50 days, so that adding a received one to an instant cannot overflow.
pub(super) mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u32::deserialize(from).map(|time| Duration::from_millis(time.into()))
    }
}

/// The same, or nothing.
pub(super) mod optional_milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize as _, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let milliseconds = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        time.map(milliseconds).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let time = Option::<u32>::deserialize(from)?;
        Ok(time.map(|time| Duration::from_millis(time.into())))
    }
}

/// Exit statuses as the system's own numbers.
pub(super) mod status {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(status: &ExitStatus, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i32(status.into_raw())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ExitStatus, D::Error> {
        i32::deserialize(from).map(ExitStatus::from_raw)
    }
}
