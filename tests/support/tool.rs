//! Programs that tests need and that a machine may lack.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// A variable of the test's own process.
#[expect(clippy::disallowed_methods, reason = "tests find programs and settings where the shell does")]
pub fn inherited(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Says that a test is skipped for want of something; with `MPIENV_REQUIRE_ALL=1`, as in CI, fails.
pub fn missing(what: &str) {
    assert!(inherited("MPIENV_REQUIRE_ALL").is_none_or(|all| all != "1"), "{what} is required");
    eprintln!("skipped: no {what}");
}

/// Whether a program is on PATH; where not, the test says so and is to return.
#[must_use]
pub fn is_there(name: &str) -> bool {
    let path = inherited("PATH").unwrap_or_default();
    // Daemons are there, and not on everybody's PATH.
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = folders.into_iter().any(|folder| folder.join(name).is_file());
    if !found {
        missing(name);
    }
    found
}

/// A program with no variables around it but HOME and PATH, where the command under test comes first, if there is one.
pub fn clean(program: &str) -> Command {
    let command = option_env!("CARGO_BIN_EXE_mpienv");
    let folder = command.map(|binary| Path::new(binary).parent().unwrap().to_owned());
    let old = inherited("PATH").unwrap_or_default();
    let path = std::env::join_paths(folder.into_iter().chain(std::env::split_paths(&old)));
    let mut command = Command::new(program);
    command.env_clear().env("PATH", path.unwrap()).envs(inherited("HOME").map(|home| ("HOME", home)));
    command
}
