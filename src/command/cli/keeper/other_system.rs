//! Systems on which no launcher is asked over a connection that must stay.

use std::io;
use std::process;

use mpienv_core::seam::Connection;

pub(super) fn start(connection: Connection) -> io::Result<()> {
    match connection {}
}

pub(super) fn serve() -> Option<process::ExitCode> {
    None
}
