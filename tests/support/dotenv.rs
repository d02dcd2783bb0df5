//! Readers of `.env` files, written from their documentation: they differ in escapes and in `$`.

/// The replacement for a backslash and the character after it; `None` if it is not an escape.
type Escape = fn(char) -> Option<&'static str>;

/// One program's rules.
pub struct Reader {
    /// In single quotes.
    single: Escape,
    /// In double quotes.
    double: Escape,
    /// What begins a substitution in single and in double quotes.
    replaces: (Option<&'static str>, Option<&'static str>),
    /// Whether a carriage return becomes a newline.
    carriage_return_is_newline: bool,
}

pub const READERS: &[Reader] = &[DOCKER_COMPOSE, PYTHON_DOTENV, NODE];

const DOCKER_COMPOSE: Reader = Reader {
    single: |c| (c == '\'').then_some("'"),
    double: |c| match c {
        '"' => Some("\""),
        '\\' => Some("\\"),
        'n' => Some("\n"),
        'r' => Some("\r"),
        't' => Some("\t"),
        _ => None,
    },
    replaces: (None, Some("$")),
    carriage_return_is_newline: false,
};

const PYTHON_DOTENV: Reader = Reader {
    single: |c| match c {
        '\'' => Some("'"),
        '\\' => Some("\\"),
        _ => None,
    },
    double: |c| match c {
        '\'' => Some("'"),
        _ => (DOCKER_COMPOSE.double)(c),
    },
    replaces: (Some("${"), Some("${")),
    carriage_return_is_newline: true,
};

const NODE: Reader = Reader {
    single: |c| (c == '\'').then_some("\\'"),
    double: |c| match c {
        'n' => Some("\n"),
        'r' => Some("\r"),
        '"' => Some("\\\""),
        _ => None,
    },
    replaces: (None, None),
    carriage_return_is_newline: true,
};

impl Reader {
    /// The value of a variable; `None` if it is not set, or if the file does not have the expected
    /// form.
    pub fn value(&self, text: &str, wanted: &str) -> Option<String> {
        let text = if self.carriage_return_is_newline {
            text.replace('\r', "\n")
        } else {
            text.to_owned()
        };
        let mut rest = text.as_str();
        loop {
            let (name, after) = rest.split_once('=')?;
            let (value, after) = self.quoted(after)?;
            if name == wanted {
                return Some(value);
            }
            rest = after.strip_prefix('\n')?;
        }
    }

    /// A quoted text, and what follows it.
    fn quoted<'a>(&self, text: &'a str) -> Option<(String, &'a str)> {
        let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let (escape, replaces) = if quote == '\'' {
            (self.single, self.replaces.0)
        } else {
            (self.double, self.replaces.1)
        };
        let mut value = String::new();
        let mut rest = &text[1..];
        loop {
            if replaces.is_some_and(|start| rest.starts_with(start)) {
                return None;
            }
            let mut chars = rest.chars();
            match chars.next()? {
                c if c == quote => return Some((value, chars.as_str())),
                '\\' => match chars.clone().next().and_then(escape) {
                    Some(meaning) => {
                        value += meaning;
                        chars.next();
                    }
                    None => value.push('\\'),
                },
                c => value.push(c),
            }
            rest = chars.as_str();
        }
    }
}
