//! The values of `--shell`.

use crate::Dialect;
use clap::ValueEnum;

/// What `mpienv export` can print; [`Dialect`] documents the limits of each.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
#[expect(clippy::enum_variant_names, reason = "PowerShell is a name")]
pub(crate) enum Shell {
    /// Any POSIX shell: sh, dash, ksh
    #[default]
    #[value(aliases = ["dash", "ksh"])]
    Sh,
    /// Same as sh
    Bash,
    /// Same as sh
    Zsh,
    /// The fish shell
    Fish,
    /// csh and tcsh
    #[value(alias = "tcsh")]
    Csh,
    /// PowerShell on any system
    #[value(name = "powershell", alias = "pwsh")]
    PowerShell,
    /// Windows' cmd.exe
    Cmd,
    /// A .env file, as Docker Compose, python-dotenv and Node read it
    Dotenv,
    /// A file for docker run --env-file or podman run --env-file
    Docker,
    /// Variables of sh for a container of Apptainer or Singularity, also with --cleanenv
    #[value(alias = "singularity")]
    Apptainer,
    /// Lines to append to $GITHUB_ENV in a GitHub Actions step
    #[value(name = "github")]
    GitHub,
    /// One JSON object for programs; null means unset
    Json,
}

impl From<Shell> for Dialect {
    fn from(shell: Shell) -> Dialect {
        match shell {
            Shell::Sh | Shell::Bash | Shell::Zsh => Dialect::Posix,
            Shell::Fish => Dialect::Fish,
            Shell::Csh => Dialect::Csh,
            Shell::PowerShell => Dialect::PowerShell,
            Shell::Cmd => Dialect::Cmd,
            Shell::Dotenv => Dialect::Dotenv,
            Shell::Docker => Dialect::Docker,
            Shell::Apptainer => Dialect::Apptainer,
            Shell::GitHub => Dialect::GitHub,
            Shell::Json => Dialect::Json,
        }
    }
}
