//! `mpienv --version`: which mpienv this is, as text or as JSON.

use std::env::consts::{ARCH, OS};
use std::io;

use clap::{Arg, ArgAction};
use serde_json::json;

use super::stream;

/// The version, with the commit if a checkout was built.
pub(super) const TEXT: &str = match option_env!("VERSION_AND_COMMIT") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// The features with which the command is compiled.
const FEATURES: [(&str, bool); 9] = [
    ("ask", cfg!(feature = "ask")),
    ("cli", cfg!(feature = "cli")),
    ("collective", cfg!(feature = "collective")),
    ("gpu", cfg!(feature = "gpu")),
    ("half", cfg!(feature = "half")),
    ("launch", cfg!(feature = "launch")),
    ("mpi", cfg!(feature = "mpi")),
    ("rendezvous", cfg!(feature = "rendezvous")),
    ("testing", cfg!(feature = "testing")),
];

/// The option `--json`, which only makes sense with `--version`.
pub(super) fn json() -> Arg {
    let help = "With --version: print the version, commit, target and features as JSON";
    Arg::new("json").long("json").action(ArgAction::SetTrue).requires("version").help(help)
}

pub(super) fn print_json() -> io::Result<()> {
    // No build script tells published packages their target. For x86-64 and aarch64, this is
    // what Rust calls it.
    let c_library = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
    let features = FEATURES.into_iter().filter_map(|(name, is_on)| is_on.then_some(name));
    stream::print_json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        // This and the next two are null unless a checkout was built.
        "commit": option_env!("COMMIT"),
        "date": option_env!("COMMIT_DATE"),
        // Whether the sources were not the commit's.
        "changed": option_env!("COMMIT_IS_CHANGED").map(|changed| changed == "true"),
        "target": format!("{ARCH}-unknown-{OS}-{c_library}"),
        "features": features.collect::<Vec<_>>(),
    }))
}
