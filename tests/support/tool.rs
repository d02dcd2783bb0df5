//! Programs that tests need and that a machine may lack.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

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

/// A folder for the temporary files of one command, where the next `cargo clean` finds it.
///
/// Open MPI 4 keeps all jobs of a user in one folder, and fails when one makes it as another does.
pub fn own_tmp() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tmp").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A program with no variables around it but HOME, TMPDIR, and PATH, where the command under test comes first, if there is
/// one.
pub fn clean(program: &str) -> Command {
    let command = option_env!("CARGO_BIN_EXE_mpienv");
    let folder = command.map(|binary| Path::new(binary).parent().unwrap().to_owned());
    let old = inherited("PATH").unwrap_or_default();
    let path = std::env::join_paths(folder.into_iter().chain(std::env::split_paths(&old)));
    let mut command = Command::new(program);
    command.env_clear().env("PATH", path.unwrap()).envs(inherited("HOME").map(|home| ("HOME", home)));
    command.env("TMPDIR", own_tmp());
    command
}
