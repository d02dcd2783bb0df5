//! Programs that tests need and that a machine may lack.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A variable of the test's own process.
#[expect(
    clippy::disallowed_methods,
    reason = "tests find programs and settings where the shell does"
)]
pub fn inherited(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Prints that a test is skipped because something is missing; with `MPIENV_REQUIRE_ALL=1`, as in
/// CI, fails instead.
pub fn missing(what: &str) {
    assert!(inherited("MPIENV_REQUIRE_ALL").is_none_or(|all| all != "1"), "{what} is required");
    eprintln!("skipped: no {what}");
}

/// Whether a program is on PATH; if not, the test prints that and must return.
#[must_use]
pub fn is_there(name: &str) -> bool {
    let path = inherited("PATH").unwrap_or_default();
    // Daemons are in these folders, which are not on every user's PATH.
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = folders.into_iter().any(|folder| folder.join(name).is_file());
    if !found {
        missing(name);
    }
    found
}

/// A folder for the temporary files of one command, which the next `cargo clean` removes.
///
/// Open MPI 4 keeps all jobs of a user in one folder, and fails if two jobs create it at the same
/// time.
pub fn own_tmp() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tmp").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A program with no variables except HOME, TMPDIR and PATH. If there is a command under test, it
/// comes first on PATH.
pub fn clean(program: &str) -> Command {
    let command = option_env!("CARGO_BIN_EXE_mpienv");
    let folder = command.map(|binary| Path::new(binary).parent().unwrap().to_owned());
    let old = inherited("PATH").unwrap_or_default();
    let path = std::env::join_paths(folder.into_iter().chain(std::env::split_paths(&old)));
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", path.unwrap())
        .envs(inherited("HOME").map(|home| ("HOME", home)));
    command.env("TMPDIR", own_tmp());
    command
}
