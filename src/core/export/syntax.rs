//! How each dialect sets and unsets a variable.

use crate::export::dialect::Dialect;

/// Why a dialect cannot express something.
pub(crate) type Reason = &'static str;

/// Returns the lines that set a variable, including their line ends; in JSON, a member of an
/// object. Except in JSON, the value contains no NUL.
pub(super) fn set(dialect: Dialect, name: &str, value: &str) -> Result<String, Reason> {
    let refused = match dialect {
        Dialect::Csh => value
            .contains('\n')
            .then_some("backticks, through which csh reads it, split a value at a newline"),
        Dialect::PowerShell => value.is_empty().then_some(
            "before version 7.5 PowerShell removes a variable that is set to an empty text",
        ),
        Dialect::Cmd => cmd_refuses(value),
        Dialect::Dotenv => dotenv_refuses(value),
        Dialect::Docker => docker_refuses(value),
        // What is the same with and without the evaluation that `--no-eval` prevents.
        Dialect::Apptainer => value.contains(['$', '`', '\\']).then_some(
            r"without --no-eval, Apptainer and Singularity evaluate $, ` and \ in a value",
        ),
        Dialect::GitHub => value.ends_with('\r').then_some(
            "a runner on Windows takes a carriage return at the end for a part of the line's end",
        ),
        Dialect::Posix | Dialect::Fish | Dialect::Json => None,
    };
    if let Some(reason) = refused {
        return Err(reason);
    }
    // In shells, lines end in `;`, because `eval` and the like may join them with blanks.
    Ok(match dialect {
        Dialect::Posix => format!("export {name}={};\n", posix_quoted(value)),
        Dialect::Fish => format!("set -gx {name} {};\n", fish_quoted(value)),
        // csh expands history within quotes too.
        Dialect::Csh => {
            format!("setenv {name} '{}';\n", value.replace('\'', r"'\''").replace('!', r"\!"))
        }
        Dialect::PowerShell => format!("$env:{name} = {};\n", powershell_sum(value)),
        Dialect::Cmd => format!("set \"{name}={value}\"\n"),
        Dialect::Dotenv => {
            let quote = dotenv_quote(value);
            format!("{name}={quote}{value}{quote}\n")
        }
        // Blanks are part of the value, and a `#` starts a comment only at the start of a line.
        Dialect::Docker => format!("{name}={value}\n"),
        Dialect::Apptainer => {
            let value = posix_quoted(value);
            format!("export APPTAINERENV_{name}={value} SINGULARITYENV_{name}={value};\n")
        }
        Dialect::GitHub => {
            let delimiter = delimiter(value);
            format!("{name}<<{delimiter}\n{value}\n{delimiter}\n")
        }
        Dialect::Json => format!("\n  {}: {}", json_string(name), json_string(value)),
    })
}

/// Returns the lines that unset a variable, including their line ends. Empty if nothing needs to be
/// done.
pub(super) fn unset(dialect: Dialect, name: &str) -> Result<String, Reason> {
    Ok(match dialect {
        Dialect::Posix => format!("unset {name};\n"),
        Dialect::Fish => format!("set -e {name};\n"),
        Dialect::Csh => format!("unsetenv {name};\n"),
        Dialect::PowerShell => format!("Remove-Item Env:{name} -ErrorAction SilentlyContinue;\n"),
        Dialect::Cmd => format!("set \"{name}=\"\n"),
        Dialect::Dotenv => return Err("such a file can only set variables"),
        // A container inherits nothing. A name alone would pass on the host's value.
        Dialect::Docker => String::new(),
        // Without --cleanenv, the container inherits the variable itself.
        Dialect::Apptainer => {
            format!("unset {name} APPTAINERENV_{name} SINGULARITYENV_{name};\n")
        }
        // The runner cannot unset variables. Readers treat an empty string as unset.
        Dialect::GitHub => return set(dialect, name, ""),
        Dialect::Json => format!("\n  {}: null", json_string(name)),
    })
}

fn json_string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted += r"\n",
            '\r' => quoted += r"\r",
            '\t' => quoted += r"\t",
            '\0'..='\x1f' => quoted += &format!("\\u{:04x}", u32::from(c)),
            _ => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns the value as one word, quoted if a shell would interpret it.
pub fn posix_quoted(value: &str) -> String {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':' | ',' | '@');
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}

fn fish_quoted(value: &str) -> String {
    let value = value.replace('\\', r"\\").replace('\'', r"\'");
    // An escaped newline is outside the quotes, where `eval (...)` does not turn it into a blank.
    format!("'{}'", value.replace('\n', r"'\n'"))
}

/// Returns a sum that begins with a quoted string, so that everything after it is text too.
fn powershell_sum(value: &str) -> String {
    let mut text = String::from("'");
    let mut inside = true;
    for unit in value.encode_utf16() {
        // The pipe changes line ends, U+2018 to U+201B close a quoted string as ' does, and
        // non-ASCII characters depend on the code page. All of these are written as numbers outside
        // the quotes.
        let plain = u8::try_from(unit).ok().map(char::from).filter(|c| matches!(c, ' '..='~'));
        if inside != plain.is_some() {
            text += if inside { "'" } else { " + '" };
            inside = !inside;
        }
        match plain {
            Some('\'') => text += "''",
            Some(c) => text.push(c),
            None => text += &format!(" + [char]0x{unit:04x}"),
        }
    }
    if inside {
        text.push('\'');
    }
    text
}

/// The same text must work in `for /f` and as a batch file.
fn cmd_refuses(value: &str) -> Option<Reason> {
    let refused = |c: char| match c {
        '"' => Some("a double quote ends the text for cmd"),
        '%' => Some("% is doubled in a batch file and single elsewhere"),
        '!' => Some("! is lost under delayed expansion"),
        _ if c.is_ascii_control() => {
            Some("cmd reads lines, and control characters end or change them")
        }
        _ if !c.is_ascii() => Some("cmd reads only ASCII alike in every code page"),
        _ => None,
    };
    let is_empty = "cmd removes a variable that is set to an empty text";
    value.chars().find_map(refused).or(value.is_empty().then_some(is_empty))
}

/// Double quotes are used only for values in which no reader interprets anything.
fn dotenv_quote(value: &str) -> char {
    if value.contains('\'') { '"' } else { '\'' }
}

/// Limits a value to what Docker Compose, python-dotenv, Node's dotenv and Node itself agree on.
fn dotenv_refuses(value: &str) -> Option<Reason> {
    if value.contains('\r') {
        Some("some readers take a carriage return for a newline")
    } else if dotenv_quote(value) == '"' && value.contains(['"', '$', '\\']) {
        Some("readers disagree on ' next to one of \", $ and \\")
    } else if value.contains(r"\\") || value.ends_with('\\') {
        Some(r"readers disagree on \\ and on \ at the end")
    } else if value.contains("${") {
        Some("python-dotenv replaces ${...} even in single quotes")
    } else {
        None
    }
}

/// The file of `docker run --env-file` has no quotes and no escapes.
fn docker_refuses(value: &str) -> Option<Reason> {
    let within =
        |quote: char| value.len() > 1 && value.starts_with(quote) && value.ends_with(quote);
    if value.contains('\n') {
        Some("a value ends with its line, and this format has no escapes")
    } else if value.ends_with('\r') {
        Some("a carriage return at the end is taken for a part of the line's end")
    } else if within('\'') || within('"') {
        Some("some readers strip quotes around a value and some do not")
    } else {
        None
    }
}

/// Returns the shortest of EOF, EOF_, EOF__, ... that does not occur in the value.
fn delimiter(value: &str) -> String {
    let mut delimiter = String::from("EOF");
    while value.contains(&delimiter) {
        delimiter.push('_');
    }
    delimiter
}
