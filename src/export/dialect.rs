//! The languages in which variables can be written down.

use crate::error::quote;
use crate::export::{Exports, cmd, csh, docker, dotenv, fish, github, posix, powershell};

/// A way to write variables down.
///
/// | dialect | `--shell` | for | used as | cannot say |
/// | --- | --- | --- | --- | --- |
/// | [`Posix`](Dialect::Posix) | `sh`, `bash`, `zsh` | sh, dash, bash, ksh, zsh | `eval "$(mpienv export)"` | - |
/// | [`Fish`](Dialect::Fish) | `fish` | fish | `mpienv export --shell fish \| source` | - |
/// | [`Csh`](Dialect::Csh) | `csh` | csh, tcsh | ``eval "`mpienv export --shell csh`"`` | a newline |
/// | [`PowerShell`](Dialect::PowerShell) | `powershell` | PowerShell 5.1 and later | `mpienv export --shell powershell \| Out-String \| Invoke-Expression` | an empty value |
/// | [`Cmd`](Dialect::Cmd) | `cmd` | cmd.exe | `for /f "delims=" %i in ('mpienv export --shell cmd') do @%i`, or a file for `call` | an empty value, `"`, `%`, `!`, control characters, what is not ASCII |
/// | [`Dotenv`](Dialect::Dotenv) | `dotenv` | Docker Compose, python-dotenv, Node's dotenv and `node --env-file` | a file `.env` | `'` beside one of `"`, `$`, `\`; `\\`, a `\` at the end, `${`, a carriage return; unsetting |
/// | [`Docker`](Dialect::Docker) | `docker` | `docker run --env-file` | a file | a newline, a carriage return at the end, a value in quotes; what is to be unset is left out |
/// | [`GitHub`](Dialect::GitHub) | `github` | the next steps of a GitHub Actions job | `mpienv export --shell github >> "$GITHUB_ENV"` | a carriage return at the end; what is to be unset is set to an empty text |
/// | [`Json`](Dialect::Json) | `json` | programs | any JSON parser | - |
///
/// If a dialect cannot express a variable, the result is [`Unrepresentable`], and nothing is written. Only JSON can
/// contain a NUL, which no environment can contain either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// `export NAME=value;` and `unset NAME;`.
    Posix,
    /// `set -gx NAME 'value';` and `set -e NAME;`.
    Fish,
    /// `setenv NAME 'value';` and `unsetenv NAME;`.
    ///
    /// The quotes around the backticks keep blanks as they are; a newline survives no backticks.
    Csh,
    /// `$env:NAME = 'value';` and `Remove-Item Env:NAME -ErrorAction SilentlyContinue;`, in ASCII
    /// whatever the value, because Windows reads a program's output in the console's code page.
    PowerShell,
    /// `set "NAME=value"` and `set "NAME="`.
    ///
    /// The same text must work in `for /f` and as a batch file. `%` is doubled in the one and not
    /// in the other, `!` means something under delayed expansion, and both are read in the
    /// console's code page: they are refused. A variable without a value does not exist there.
    Cmd,
    /// `NAME='value'`, in what all four readers agree on.
    ///
    /// python-dotenv takes `\\` and `\'` for escapes in single quotes, and replaces `${NAME}` even
    /// there; the others do not. Such a file can only set: to unset a variable, unset it where
    /// mpienv is run, and then it need not be in the file.
    Dotenv,
    /// `NAME=value`: no quotes, no escapes, the rest of the line is the value, blanks and all.
    ///
    /// A container inherits nothing, so there is nothing to unset. Some readers strip quotes
    /// around a whole value and some do not: such a value is refused.
    Docker,
    /// `NAME<<EOF`, the value, and a delimiter that does not occur in it.
    ///
    /// A variable of the job cannot be unset from a step. It is set to an empty text, which
    /// mpienv, PyTorch and NCCL take for unset.
    GitHub,
    /// One JSON object; a variable to unset is null.
    #[cfg(feature = "cli")]
    Json,
}

impl Dialect {
    /// Returns the text to print if the export fails: it makes the script that evaluates it fail, too.
    ///
    /// It is needed because a shell ignores the exit code of a command whose output it evaluates. Under `set -e` the
    /// shell stops. Without it, `eval` returns a non-zero status. PowerShell always stops. The text is empty for
    /// dialects that are read as data.
    ///
    /// ```
    /// use mpienv::Dialect;
    ///
    /// assert_eq!(Dialect::Posix.stop(), "false;\n");
    /// assert_eq!(Dialect::Docker.stop(), "");
    /// ```
    #[must_use]
    pub const fn stop(self) -> &'static str {
        match self {
            Dialect::Posix | Dialect::Fish | Dialect::Csh => "false;\n",
            Dialect::PowerShell => "throw 'mpienv export failed';\n",
            // `exit` would end an interactive shell, too.
            Dialect::Cmd => "cmd /c exit 1\n",
            Dialect::Dotenv | Dialect::Docker | Dialect::GitHub => "",
            #[cfg(feature = "cli")]
            Dialect::Json => "",
        }
    }

    pub(crate) fn document(self, exports: &Exports) -> Result<String, Unrepresentable> {
        match self {
            Dialect::Posix => lines(&posix::Posix, "sh", exports),
            Dialect::Fish => lines(&fish::Fish, "fish", exports),
            Dialect::Csh => lines(&csh::Csh, "csh", exports),
            Dialect::PowerShell => lines(&powershell::PowerShell, "powershell", exports),
            Dialect::Cmd => lines(&cmd::Cmd, "cmd", exports),
            Dialect::Dotenv => lines(&dotenv::Dotenv, "dotenv", exports),
            Dialect::Docker => lines(&docker::Docker, "docker", exports),
            Dialect::GitHub => lines(&github::GitHub, "github", exports),
            #[cfg(feature = "cli")]
            Dialect::Json => Ok(crate::export::json::document(exports)),
        }
    }
}

/// Why a dialect has no way to write something.
pub(crate) type Reason = &'static str;

/// A dialect that has lines for each variable.
pub(crate) trait Lines {
    /// The lines that set a variable, with their ends. The value has no NUL.
    fn set(&self, name: &str, value: &str) -> Result<String, Reason>;
    /// The lines that unset a variable, with their ends; empty where there is nothing to do.
    fn unset(&self, name: &str) -> Result<String, Reason>;
}

fn lines(to: &impl Lines, dialect: &'static str, exports: &Exports) -> Result<String, Unrepresentable> {
    let line = |(name, value): (&str, Option<&str>)| {
        let line = match value {
            Some(value) if value.contains('\0') => Err("an environment variable cannot hold a NUL"),
            Some(value) => to.set(name, value),
            None => to.unset(name),
        };
        let value = value.map(str::to_owned);
        line.map_err(|reason| Unrepresentable { name: name.to_owned(), value, dialect, reason })
    };
    exports.iter().map(line).collect()
}

/// What a dialect has no way to write.
///
/// ```
/// use mpienv::{ClusterInfo, Dialect, Unrepresentable};
///
/// let info = ClusterInfo::from_vars([("NCCL_SOCKET_IFNAME", "ib0\nib1")])?;
/// let error: Unrepresentable = info.exports()?.to_text(Dialect::Docker).unwrap_err();
/// assert_eq!((error.name.as_str(), error.dialect), ("NCCL_SOCKET_IFNAME", "docker"));
/// # Ok::<(), mpienv::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
#[non_exhaustive]
pub struct Unrepresentable {
    /// The variable.
    pub name: String,
    /// Its value; `None` where it is to be unset.
    pub value: Option<String>,
    /// The dialect's name, as `--shell` takes it.
    pub dialect: &'static str,
    /// What the dialect cannot write.
    pub reason: &'static str,
}

debug_is_text!(Unrepresentable);

impl Unrepresentable {
    fn text(&self) -> String {
        let Unrepresentable { name, value, dialect, reason } = self;
        match value {
            Some(value) => format!(
                "{name}={} cannot be written as {dialect}: {reason}; correct {name} or choose another dialect",
                quote(value)
            ),
            None => {
                format!("{name} cannot be unset in {dialect}: {reason}; unset {name} before, or choose another dialect")
            }
        }
    }
}
