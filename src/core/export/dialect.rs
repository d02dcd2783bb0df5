//! The languages in which variables can be written.

use crate::error::quote;

/// A text format for variables.
///
/// | dialect | `--shell` | for | used as | cannot express |
/// | --- | --- | --- | --- | --- |
/// | [`Posix`](Dialect::Posix) | `sh`, `bash`, `zsh` | sh, dash, bash, ksh, zsh | `eval "$(mpienv export)"` | - |
/// | [`Fish`](Dialect::Fish) | `fish` | fish | `mpienv export --shell fish \| source` | - |
/// | [`Csh`](Dialect::Csh) | `csh` | csh, tcsh | ``eval "`mpienv export --shell csh`"`` | a newline |
/// | [`PowerShell`](Dialect::PowerShell) | `powershell` | PowerShell 5.1 and later | `mpienv export --shell powershell \| Out-String \| Invoke-Expression` | an empty value |
/// | [`Cmd`](Dialect::Cmd) | `cmd` | cmd.exe | `for /f "delims=" %i in ('mpienv export --shell cmd') do @%i`, or a file for `call` | an empty value, `"`, `%`, `!`, control characters, non-ASCII characters |
/// | [`Dotenv`](Dialect::Dotenv) | `dotenv` | Docker Compose, python-dotenv, Node's dotenv and `node --env-file` | a file `.env` | `'` together with one of `"`, `$`, `\`; `\\`, a `\` at the end, `${`, a carriage return; unsetting |
/// | [`Docker`](Dialect::Docker) | `docker` | `docker run --env-file`, `podman run --env-file`, enroot's environment file | a file | a newline, a carriage return at the end, a value in quotes; variables to unset are left out |
/// | [`Apptainer`](Dialect::Apptainer) | `apptainer` | a container of Apptainer or Singularity, also with `--cleanenv` | `eval "$(mpienv export --shell apptainer)"` | `$`, `` ` ``, `\` |
/// | [`GitHub`](Dialect::GitHub) | `github` | the next steps of a GitHub Actions job | `mpienv export --shell github >> "$GITHUB_ENV"` | a carriage return at the end; variables to unset are set to an empty string |
/// | [`Json`](Dialect::Json) | `json` | programs | any JSON parser | - |
///
/// If a dialect cannot express a variable, the result is [`Unrepresentable`], and nothing is
/// written. Only JSON can contain a NUL, which no environment can contain either.
// The compiler finds most of what a new dialect needs, but neither the line that a user types
// (src/command/cli/export.rs and examples.rs), nor the tests (tests/it/dialects.rs), nor README.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// `export NAME=value;` and `unset NAME;`.
    Posix,
    /// `set -gx NAME 'value';` and `set -e NAME;`.
    Fish,
    /// `setenv NAME 'value';` and `unsetenv NAME;`.
    ///
    /// The quotes around the backticks preserve blanks. Backticks never preserve a newline.
    Csh,
    /// `$env:NAME = 'value';` and `Remove-Item Env:NAME -ErrorAction SilentlyContinue;`. The text
    /// is always ASCII, because Windows reads a program's output in the console's code page.
    PowerShell,
    /// `set "NAME=value"` and `set "NAME="`.
    ///
    /// The same text must work in `for /f` and as a batch file. `%` must be doubled in only one of
    /// them, `!` has a meaning under delayed expansion, and both are read in the console's code
    /// page. Values with `%`, `!` or non-ASCII characters are therefore rejected. In cmd, a
    /// variable without a value does not exist.
    Cmd,
    /// `NAME='value'`, limited to what all four readers agree on.
    ///
    /// python-dotenv treats `\\` and `\'` as escapes in single quotes and replaces `${NAME}` even
    /// there; the others do not. Such a file can only set variables. To leave one out of the file,
    /// unset it where mpienv runs.
    Dotenv,
    /// `NAME=value`: no quotes and no escapes; the rest of the line is the value, including blanks.
    ///
    /// A container inherits nothing, so there is nothing to unset. Some readers strip quotes around
    /// a whole value and some do not, so such a value is rejected.
    Docker,
    /// `export APPTAINERENV_NAME=value SINGULARITYENV_NAME=value;`, which sets `NAME` in the
    /// container.
    ///
    /// Apptainer reads either name, SingularityCE only its own. By default both evaluate the value
    /// as a shell does within double quotes; after `--no-eval` they do not.
    Apptainer,
    /// `NAME<<EOF`, the value, and a delimiter that does not occur in it.
    ///
    /// A step cannot unset a variable of the job. The variable is set to an empty string instead,
    /// which mpienv, PyTorch and NCCL treat as unset.
    GitHub,
    /// One JSON object; null means unset.
    Json,
}

impl Dialect {
    /// All dialects, in the order of the table above.
    pub const ALL: &[Dialect] = &[
        Dialect::Posix,
        Dialect::Fish,
        Dialect::Csh,
        Dialect::PowerShell,
        Dialect::Cmd,
        Dialect::Dotenv,
        Dialect::Docker,
        Dialect::Apptainer,
        Dialect::GitHub,
        Dialect::Json,
    ];

    /// Returns the text to print if the export fails. It makes the script that evaluates it fail,
    /// too.
    ///
    /// It is needed because a shell ignores the exit code of a command whose output it evaluates.
    /// Under `set -e` the shell stops. Without it, `eval` returns a non-zero status. PowerShell
    /// always stops. The text is empty for dialects that are read as data.
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
            Dialect::Posix | Dialect::Fish | Dialect::Csh | Dialect::Apptainer => "false;\n",
            Dialect::PowerShell => "throw 'mpienv export failed';\n",
            // `exit` would close an interactive shell, too.
            Dialect::Cmd => "cmd /c exit 1\n",
            Dialect::Dotenv | Dialect::Docker | Dialect::GitHub | Dialect::Json => "",
        }
    }

    /// Returns the name, as `--shell` takes it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Dialect::Posix => "sh",
            Dialect::Fish => "fish",
            Dialect::Csh => "csh",
            Dialect::PowerShell => "powershell",
            Dialect::Cmd => "cmd",
            Dialect::Dotenv => "dotenv",
            Dialect::Docker => "docker",
            Dialect::Apptainer => "apptainer",
            Dialect::GitHub => "github",
            Dialect::Json => "json",
        }
    }
}

/// The error for a variable that a dialect cannot express.
///
/// ```
/// use mpienv::{ClusterInfo, Dialect, Unrepresentable};
///
/// let info = ClusterInfo::from_vars([("NCCL_SOCKET_IFNAME", "ib0\nib1")])?;
/// let error: Unrepresentable = info.exports()?.to_text(Dialect::Docker).unwrap_err();
/// assert_eq!((error.name.as_str(), error.dialect), ("NCCL_SOCKET_IFNAME", "docker"));
/// # Ok::<(), mpienv::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
#[non_exhaustive]
pub struct Unrepresentable {
    /// The variable.
    pub name: String,
    /// Its value, or `None` if it is to be unset.
    pub value: Option<String>,
    /// The dialect's name, as `--shell` takes it.
    pub dialect: &'static str,
    /// Why the dialect cannot express it.
    pub reason: &'static str,
}

impl Unrepresentable {
    fn text(&self) -> String {
        let Unrepresentable { name, value, dialect, reason } = self;
        match value {
            Some(value) => format!(
                "{name}={} cannot be written as {dialect}: {reason}; correct {name} or choose another dialect",
                quote(value)
            ),
            None => format!(
                "{name} cannot be unset in {dialect}: {reason}; unset {name} before, or choose another dialect"
            ),
        }
    }
}
