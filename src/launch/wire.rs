//! How launches write what they tell each other, where serde's own form does not fit or would
//! trust the sender too much.

use serde::{Deserialize, Deserializer};

use mpienv_core::printable;

/// Reads a text that cannot control a terminal.
pub(super) fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    String::deserialize(from).map(|text| printable(text.as_bytes()))
}

/// Reads a text that cannot control a terminal, if there is one.
pub(super) fn optional_text<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.map(|text| printable(text.as_bytes())))
}

/// Reads texts that cannot control a terminal.
pub(super) fn list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let mut list = Vec::<String>::deserialize(from)?;
    list.iter_mut().for_each(|text| *text = printable(text.as_bytes()));
    Ok(list)
}

/// Reads lines that cannot control a terminal.
pub(super) fn lines<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    let mut lines = Option::<Vec<String>>::deserialize(from)?;
    lines.iter_mut().flatten().for_each(|line| *line = printable(line.as_bytes()));
    Ok(lines)
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
