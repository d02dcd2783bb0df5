//! One JSON object of all variables; null means unset.

use serde_json::{Map, Value};

use crate::export::Exports;

pub(crate) fn document(exports: &Exports) -> String {
    let value = |value: Option<&str>| value.map_or(Value::Null, Value::from);
    let object: Map<String, Value> =
        exports.iter().map(|(name, text)| (name.to_owned(), value(text))).collect();
    format!("{:#}\n", Value::Object(object))
}
