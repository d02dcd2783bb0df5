//! Stdout and stderr, as every command writes them: in color only for people, and never to a closed
//! stdout.

use std::io::{self, IsTerminal, StdoutLock, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Environment, Launcher};
use anstream::adapter::strip_str;
use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use mpienv_core::seam::{Starts, detected};
use rustix::fs::OFlags;
use serde::Serialize;

static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Notes whether stdout is closed. It must run before Rust's runtime starts, which opens /dev/null
/// in its place.
pub extern "C" fn before_main() {
    let is_closed =
        rustix::io::fcntl_getfd(rustix::stdio::stdout()) == Err(rustix::io::Errno::BADF);
    IS_CLOSED.store(is_closed, Ordering::Relaxed);
}

/// Returns stdout, or an error if it is closed or only open for reading: the standard library
/// ignores both.
pub(super) fn stdout() -> io::Result<StdoutLock<'static>> {
    if IS_CLOSED.load(Ordering::Relaxed) {
        return Err(io::Error::other("it is closed"));
    }
    if rustix::fs::fcntl_getfl(rustix::stdio::stdout())
        .is_ok_and(|flags| flags.intersection(OFlags::ACCMODE) == OFlags::RDONLY)
    {
        return Err(io::Error::other("it is only open for reading"));
    }
    Ok(io::stdout().lock())
}

/// Closes a stdout again that was closed, so that the program that this process becomes or starts
/// finds it so.
pub(super) fn close_again() {
    if IS_CLOSED.load(Ordering::Relaxed) {
        // Without it, the program writes to /dev/null.
        let _ = rustix::io::fcntl_setfd(rustix::stdio::stdout(), rustix::io::FdFlags::CLOEXEC);
    }
}

/// Writes plain text at once.
pub(super) fn print(text: &[u8]) -> io::Result<()> {
    let mut stdout = stdout()?;
    stdout.write_all(text)?;
    stdout.flush()
}

/// Writes one JSON object.
pub(super) fn print_json(value: &impl Serialize) -> io::Result<()> {
    print(format!("{}\n", serde_json::to_string_pretty(value)?).as_bytes())
}

/// Writes text with styles at once, so that the reports of several ranks do not mix.
pub(super) fn print_styled(text: &str) -> io::Result<()> {
    print(styled_for(&io::stdout(), text).as_bytes())
}

/// Writes text with styles to stderr. If stderr is closed, the failure cannot be reported.
pub(super) fn report(text: &str) {
    if !text.is_empty() {
        // A single write keeps the lines of several ranks apart.
        let _ = io::stderr().write_all(styled_for(&io::stderr(), text).as_bytes());
    }
}

/// Returns whether a person reads stdout.
pub(super) fn is_read_by_a_person() -> bool {
    io::stdout().is_terminal() && !is_rank()
}

/// Returns the text with its styles if this stream shows them, and otherwise without.
fn styled_for(stream: &impl RawStream, text: &str) -> String {
    let environment = Environment::current();
    let is_asked = environment.get("CLICOLOR_FORCE").is_some_and(|value| value != "0");
    let is_plain = is_rank() && !is_asked || AutoStream::choice(stream) == ColorChoice::Never;
    if is_plain { strip_str(text).to_string() } else { text.to_owned() }
}

/// Returns whether a launcher started this process. Open MPI gives each rank a terminal and copies
/// what it writes, often into a file.
fn is_rank() -> bool {
    let environment = Environment::current();
    let starts_ranks = |launcher: Launcher| {
        launcher.spec().starts == Starts::Processes && launcher != Launcher::User
    };
    detected(&environment).any(starts_ranks)
}
