//! Which network interfaces NCCL may use: `NCCL_SOCKET_IFNAME`.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::environment::Environment;
use crate::error::Error;
use crate::launcher::named_file::{self, MOST};
use crate::value::sourced::{Known, Sourced};

/// The variable that NCCL reads.
pub const VARIABLE: &str = "NCCL_SOCKET_IFNAME";
/// All interfaces except Docker's bridge and loopback, as in Azure's published helper.
pub const DEFAULT: &str = "^docker0,lo";

/// What to do with `NCCL_SOCKET_IFNAME`.
///
/// The text form, as for `--nccl-ifname`, is `keep`, `unset`, or the value itself. By default, the
/// value is `^docker0,lo` on Azure. Elsewhere, an inherited value is kept, and `^docker0,lo` is set
/// if there is none. A value in the file that `NCCL_CONF_FILE` names, in `~/.nccl.conf` or in
/// `/etc/nccl.conf` is kept too.
///
/// ```
/// use mpienv::{ClusterInfo, NcclIfname};
///
/// let builder = ClusterInfo::builder().nccl_ifname(NcclIfname::Keep);
/// let info = builder.vars([("NCCL_SOCKET_IFNAME", "ib0")]).read()?;
/// assert_eq!(info.nccl_socket_ifname(), Some("ib0"));
/// # Ok::<(), mpienv::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NcclIfname {
    /// Keeps an inherited value, and sets nothing if there is none.
    Keep,
    /// Unsets the variable, so that NCCL chooses the interfaces itself.
    Unset,
    /// Sets this value.
    Value(String),
}

impl From<&str> for NcclIfname {
    fn from(text: &str) -> NcclIfname {
        match text {
            "keep" => NcclIfname::Keep,
            "unset" => NcclIfname::Unset,
            value => NcclIfname::Value(value.to_owned()),
        }
    }
}

impl fmt::Display for NcclIfname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NcclIfname::Keep => "keep",
            NcclIfname::Unset => "unset",
            NcclIfname::Value(value) => value,
        })
    }
}

/// NCCL's interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    /// The value, if any, and its source.
    pub ifname: Sourced<Option<String>>,
    /// Whether no user has chosen it.
    pub is_default: bool,
}

/// Returns the value, if any, and its source.
pub(crate) fn ifname(
    environment: &Environment,
    on_azure: bool,
    explicit: Known<NcclIfname>,
) -> Result<Selected, Error> {
    let set = environment.setting_text(VARIABLE)?;
    // On Azure, an inherited value is the platform's.
    let is_default = explicit.is_none() && (set.is_none() || on_azure);
    let (value, source) = match (explicit.map(|own| (own.value, own.source)), set) {
        (Some((NcclIfname::Value(value), source)), _) => (Some(value), source),
        (Some((NcclIfname::Unset, source)), _) => (None, format!("unset: {source}").into()),
        (Some((NcclIfname::Keep, _)), None) => (None, "not set, kept as it is".into()),
        (None, Some(value)) if on_azure && value != DEFAULT => {
            (Some(DEFAULT.to_owned()), format!("default on Azure, in place of {value:?}").into())
        }
        (_, Some(value)) => (Some(value.to_owned()), VARIABLE.into()),
        (None, None) => match file_with_value(environment) {
            Some(file) => (None, format!("not set, because {} sets it", file.display()).into()),
            None => (Some(DEFAULT.to_owned()), "default".into()),
        },
    };
    Ok(Selected { ifname: Sourced { value, source }, is_default })
}

/// Returns the file in which an administrator or a user has chosen the interfaces. NCCL reads it,
/// but the environment takes precedence. `None` unless the environment is this process's.
fn file_with_value(environment: &Environment) -> Option<PathBuf> {
    if !environment.is_current() {
        return None;
    }
    let of_home = || Some(Path::new(environment.get("HOME")?).join(".nccl.conf"));
    let of_user = match environment.is_set("NCCL_CONF_FILE") {
        true => environment.get("NCCL_CONF_FILE").map(PathBuf::from),
        false => of_home(),
    };
    let files = of_user.into_iter().chain([PathBuf::from("/etc/nccl.conf")]);
    files.into_iter().find(|file| {
        let mut text = Vec::new();
        let read = named_file::open(file, MOST).and_then(|mut file| file.read_to_end(&mut text));
        read.is_ok() && names_interfaces(&text)
    })
}

/// Returns whether one of the lines `NAME=VALUE` of a file sets the variable.
fn names_interfaces(text: &[u8]) -> bool {
    let of_line = |line: &[u8]| line.strip_prefix(VARIABLE.as_bytes())?.first().copied();
    text.split(|&byte| byte == b'\n').any(|line| of_line(line) == Some(b'='))
}
