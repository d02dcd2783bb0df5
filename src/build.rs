//! Links the command `mpienv` so that it starts faster, and tells it which commit it is built from,
//! in a checkout. Published packages do not have this script.
//!
//! It runs again only when the sources have changed, and so are compiled anyway. A commit alone
//! compiles nothing: a command that was built from changed sources says so, which stays true.
#![expect(clippy::disallowed_methods, reason = "Cargo passes its settings in variables")]

use std::env::{self, VarError};
use std::fs;
use std::path::Path;
use std::process::Command;

/// What the command is compiled from. Packages of the workspace that do not belong to it, such as
/// `src/torch`, are left out.
const SOURCES: [&str; 14] = [
    "Cargo.toml",
    "Cargo.lock",
    "src/ask",
    "src/command",
    "src/command.rs",
    "src/core",
    "src/gpu",
    "src/guide.rs",
    "src/launch",
    "src/lib.rs",
    "src/main.rs",
    "src/rendezvous",
    "src/collective",
    "src/mpi",
];

fn main() -> Result<(), VarError> {
    println!("cargo::rerun-if-changed=src/build.rs");
    // At a fixed address, the loader has no addresses to correct in the command's tables: 28,000
    // of them, on 65 pages, which takes a tenth of the time of an `export`.
    if env::var("CARGO_CFG_TARGET_OS")? == "linux" && env::var("CARGO_CFG_TARGET_ENV")? == "gnu" {
        println!("cargo::rustc-link-arg-bin=mpienv=-no-pie");
    }
    SOURCES.iter().for_each(|source| println!("cargo::rerun-if-changed={source}"));
    let is_command = env::var("CARGO_FEATURE_CLI").is_ok();
    // A checkout of another project may contain this one.
    let is_checkout = fs::exists(Path::new(&env::var("CARGO_MANIFEST_DIR")?).join(".git"));
    if is_command
        && is_checkout.is_ok_and(|is_checkout| is_checkout)
        && let Some(log) = git(&["log", "-1", "--format=%H %h %cs", "--abbrev=8"])
        && let [commit, short, date] = log.split(' ').collect::<Vec<_>>()[..]
    {
        let status = ["status", "--porcelain", "--untracked-files=no", "--"];
        let changes = git(&[&status[..], &SOURCES].concat());
        let is_changed = changes.is_some_and(|changes| !changes.is_empty());
        let changed = if is_changed { ", changed" } else { "" };
        let version = env::var("CARGO_PKG_VERSION")?;
        println!("cargo::rustc-env=VERSION_AND_COMMIT={version} ({short} {date}{changed})");
        println!("cargo::rustc-env=COMMIT={commit}");
        println!("cargo::rustc-env=COMMIT_DATE={date}");
        println!("cargo::rustc-env=COMMIT_IS_CHANGED={is_changed}");
    }
    Ok(())
}

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
