//! Programs that tests need and that a machine may lack.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// A variable of the test's own process.
#[expect(clippy::disallowed_methods, reason = "tests find programs and settings where the shell does")]
pub fn inherited(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Whether a program is on PATH; where not, the test says so and is to return.
///
/// With `MPIENV_REQUIRE_ALL=1`, as in CI, an absent program fails the test.
#[must_use]
pub fn is_there(name: &str) -> bool {
    let path = inherited("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    if !found {
        assert!(inherited("MPIENV_REQUIRE_ALL").is_none_or(|all| all != "1"), "{name} is required and not on PATH");
        eprintln!("skipped: no {name}");
    }
    found
}

/// A program with no variables around it but PATH, where the command under test comes first.
pub fn clean(program: &str) -> Command {
    let folder = Path::new(env!("CARGO_BIN_EXE_mpienv")).parent().unwrap().to_owned();
    let old = inherited("PATH").unwrap_or_default();
    let path = std::env::join_paths([folder].into_iter().chain(std::env::split_paths(&old)));
    let mut command = Command::new(program);
    command.env_clear().env("PATH", path.unwrap());
    command
}
