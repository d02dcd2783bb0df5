//! A small, strict reader of JSON, for the variables and files of launchers that hold it.

use std::collections::BTreeMap;

use crate::environment;

/// A value of JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Json {
    /// `null`, `true` or `false`.
    Word(&'static str),
    /// A number as it is written.
    Number(String),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

/// Why a text is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JsonError {
    #[error("not JSON: {what} at byte {at}")]
    At { what: &'static str, at: usize },
    #[error("not JSON: the text ends too early")]
    End,
    #[error("JSON with lists or objects in more than {MOST_NESTED} others")]
    TooDeep,
    #[error("more than {MOST_BYTES} bytes of JSON")]
    TooLong,
}

/// How deep lists and objects may be nested. Reading a level takes stack.
const MOST_NESTED: usize = 32;
/// The longest text: more than the place of every device of the largest clusters takes.
pub(crate) const MOST_BYTES: usize = 1 << 24;

impl Json {
    /// Parses a text that consists of one value.
    pub(crate) fn parse(text: &str) -> Result<Json, JsonError> {
        if text.len() > MOST_BYTES {
            return Err(JsonError::TooLong);
        }
        let mut reader = Reader { text, rest: text };
        let value = reader.value(0)?;
        reader.skip_blanks();
        match reader.rest {
            "" => Ok(value),
            _ => Err(reader.unexpected("more after the value")),
        }
    }

    /// Returns the value of a name in an object.
    pub(crate) fn get(&self, name: &str) -> Option<&Json> {
        match self {
            Json::Object(values) => values.get(name),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn list(&self) -> Option<&[Json]> {
        match self {
            Json::List(values) => Some(values),
            _ => None,
        }
    }

    /// Returns the strings of a list of strings.
    pub(crate) fn texts(&self) -> Option<Vec<&str>> {
        self.list()?.iter().map(Json::text).collect()
    }

    /// Returns a whole number, which may be written as a string of digits.
    pub(crate) fn number(&self) -> Option<u32> {
        let (Json::Number(digits) | Json::Text(digits)) = self else { return None };
        environment::digits(digits)
    }
}

/// Reads a text from its start on.
struct Reader<'a> {
    text: &'a str,
    rest: &'a str,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.skip_blanks();
        match self.rest.chars().next().ok_or(JsonError::End)? {
            '"' => self.string().map(Json::Text),
            '[' | '{' if depth == MOST_NESTED => Err(JsonError::TooDeep),
            '[' => self.list(depth + 1),
            '{' => self.object(depth + 1),
            '-' | '0'..='9' => self.number(),
            _ => {
                let mut words = ["null", "true", "false"].into_iter();
                let word = words.find(|word| self.takes(word));
                word.map(Json::Word).ok_or_else(|| self.unexpected("no value"))
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Json, JsonError> {
        let mut values = Vec::new();
        self.members("]", |reader| {
            values.push(reader.value(depth)?);
            Ok(())
        })?;
        Ok(Json::List(values))
    }

    fn object(&mut self, depth: usize) -> Result<Json, JsonError> {
        let mut values = BTreeMap::new();
        self.members("}", |reader| {
            reader.skip_blanks();
            if !reader.rest.starts_with('"') {
                return Err(reader.unexpected("no name"));
            }
            let at = reader.at();
            let name = reader.string()?;
            reader.skip_blanks();
            if !reader.takes(":") {
                return Err(reader.unexpected("no colon after a name"));
            }
            // Readers differ in which of two values counts.
            match values.insert(name, reader.value(depth)?) {
                Some(_) => Err(JsonError::At { what: "a second value of a name", at }),
                None => Ok(()),
            }
        })?;
        Ok(Json::Object(values))
    }

    /// Reads the members of a list or an object, with commas between them, and its end.
    fn members(
        &mut self,
        end: &str,
        mut read: impl FnMut(&mut Self) -> Result<(), JsonError>,
    ) -> Result<(), JsonError> {
        self.next()?;
        let mut is_first = true;
        loop {
            self.skip_blanks();
            if self.takes(end) {
                return Ok(());
            }
            if !is_first && !self.takes(",") {
                return Err(self.unexpected("no comma after a value"));
            }
            read(self)?;
            is_first = false;
        }
    }

    fn string(&mut self) -> Result<String, JsonError> {
        let mut text = String::new();
        self.next()?;
        loop {
            let at = self.at();
            match self.next()? {
                '"' => return Ok(text),
                '\\' => text.push(self.escaped(at)?),
                '\0'..='\x1f' => {
                    return Err(JsonError::At { what: "a control character in a string", at });
                }
                character => text.push(character),
            }
        }
    }

    /// Reads what follows a backslash.
    fn escaped(&mut self, at: usize) -> Result<char, JsonError> {
        let wrong = JsonError::At { what: "an unknown escape", at };
        Ok(match self.next()? {
            same @ ('"' | '\\' | '/') => same,
            'b' => '\x08',
            'f' => '\x0c',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let first = self.unit().ok_or(wrong)?;
                let is_pair = (0xd800..0xdc00).contains(&first) && self.takes("\\u");
                let second = if is_pair { self.unit() } else { None };
                let mut decoded = char::decode_utf16([first].into_iter().chain(second));
                decoded.next().and_then(Result::ok).ok_or(wrong)?
            }
            _ => return Err(wrong),
        })
    }

    /// Reads the four digits of a UTF-16 unit.
    fn unit(&mut self) -> Option<u16> {
        (0..4).try_fold(0, |unit, _| {
            let digit = self.next().ok()?.to_digit(16)?;
            Some(unit << 4 | digit as u16)
        })
    }

    fn number(&mut self) -> Result<Json, JsonError> {
        let is_end = |c: char| !c.is_ascii_alphanumeric() && !['-', '+', '.'].contains(&c);
        let (number, rest) = self.rest.split_at(self.rest.find(is_end).unwrap_or(self.rest.len()));
        if !is_number(number) {
            return Err(self.unexpected("not a number"));
        }
        self.rest = rest;
        Ok(Json::Number(number.to_owned()))
    }

    fn next(&mut self) -> Result<char, JsonError> {
        let next = self.rest.chars().next().ok_or(JsonError::End)?;
        self.rest = &self.rest[next.len_utf8()..];
        Ok(next)
    }

    fn takes(&mut self, expected: &str) -> bool {
        let after = self.rest.strip_prefix(expected);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn at(&self) -> usize {
        self.text.len() - self.rest.len()
    }

    fn unexpected(&self, what: &'static str) -> JsonError {
        match self.rest {
            "" => JsonError::End,
            _ => JsonError::At { what, at: self.at() },
        }
    }
}

/// Returns whether a text is a number of JSON: without a plus sign or leading zeros.
fn is_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let text = text.strip_prefix('-').unwrap_or(text);
    let (text, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let has_zero = whole.len() > 1 && whole.starts_with('0');
    !has_zero && [whole, fraction, exponent].into_iter().all(digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_tf_config_holds_is_read() {
        let text = r#" {"cluster": {"worker": ["a:1", "b\u00e9\ud83d\ude00\n:2"]}, "task": {"index": "1", "n": -1.5e+3}} "#;
        let json = Json::parse(text).unwrap();
        let workers = json.get("cluster").and_then(|cluster| cluster.get("worker")).unwrap();
        assert_eq!(workers.texts(), Some(vec!["a:1", "b\u{e9}\u{1f600}\n:2"]));
        let task = json.get("task").unwrap();
        assert_eq!(task.get("index").and_then(Json::number), Some(1));
        assert_eq!((task.get("n").and_then(Json::number), task.text()), (None, None));
        assert_eq!(Json::parse("[]"), Ok(Json::List(vec![])));
        assert_eq!(Json::parse("[null]"), Ok(Json::List(vec![Json::Word("null")])));
    }

    #[test]
    fn what_is_not_json_is_refused_with_the_place() {
        for (bad, expected) in [
            ("", "not JSON: the text ends too early"),
            ("{", "not JSON: the text ends too early"),
            ("[1", "not JSON: the text ends too early"),
            ("\"a", "not JSON: the text ends too early"),
            ("{}x", "not JSON: more after the value at byte 2"),
            ("{'a': 1}", "not JSON: no name at byte 1"),
            ("[1,]", "not JSON: no value at byte 3"),
            ("[1 2]", "not JSON: no comma after a value at byte 3"),
            ("{\"a\" 1}", "not JSON: no colon after a name at byte 5"),
            ("{\"a\": 1, \"a\": 2}", "not JSON: a second value of a name at byte 9"),
            ("[01]", "not JSON: not a number at byte 1"),
            ("-", "not JSON: not a number at byte 0"),
            ("\"\\x\"", "not JSON: an unknown escape at byte 1"),
            ("\"\\ud800\"", "not JSON: an unknown escape at byte 1"),
            ("\"\n\"", "not JSON: a control character in a string at byte 1"),
            ("nul", "not JSON: no value at byte 0"),
        ] {
            assert_eq!(Json::parse(bad).unwrap_err().to_string(), expected, "{bad}");
        }
    }

    #[test]
    fn depth_and_length_have_limits() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(Json::parse(&nested(MOST_NESTED)).is_ok());
        assert_eq!(Json::parse(&nested(MOST_NESTED + 1)), Err(JsonError::TooDeep));
        assert_eq!(Json::parse(&nested(1 << 20)), Err(JsonError::TooDeep));
        assert_eq!(Json::parse(&" ".repeat(MOST_BYTES + 1)), Err(JsonError::TooLong));
    }

    /// Texts that are JSON or nearly so.
    fn text() -> impl Strategy<Value = String> {
        let parts = [
            "{", "}", "[", "]", ",", ":", "\"", "\"a\"", "1", "-0.5e1", "0", "null", "true", " ",
            "\\u00e9", "\\",
        ];
        let near = prop::collection::vec(prop::sample::select(parts.to_vec()), 0..12);
        prop_oneof![near.prop_map(|parts| parts.concat()), any::<String>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn no_text_makes_reading_panic_and_another_reader_agrees(text in text()) {
            let other = serde_json::from_str::<serde_json::Value>(&text);
            match Json::parse(&text) {
                Ok(_) => prop_assert!(other.is_ok(), "{text:?}"),
                Err(JsonError::At { what: "a second value of a name", .. }) => {}
                Err(error) => prop_assert!(other.is_err(), "{text:?}: {error}"),
            }
        }
    }
}
