//! Rank 0's inspection of the master's address, while the other ranks look for rank 0 there.

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use crate::command::doctor;
use crate::{ClusterInfo, Finding};
use mpienv_core::seam::InfoSeam as _;

/// How long a name may take to resolve. The ranks meet in the meantime.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long rank 0 looks after the meeting has failed. Launchers kill it soon after the other ranks
/// exit.
const LOOK: Duration = Duration::from_millis(200);

/// Rank 0's inspection of the master's address, which continues while rank 0 waits.
pub(super) struct Look {
    found: Receiver<Option<(Finding, Vec<SocketAddr>)>>,
}

impl Look {
    /// Starts the inspection. Returns `None` on other ranks, which learn the cause from rank 0.
    pub(super) fn begin(info: &ClusterInfo) -> Option<Look> {
        let info =
            Some(info.clone()).filter(|info| info.rank().is_first() && info.world_size() > 1)?;
        let (sender, found) = mpsc::channel();
        let look = move || {
            let elsewhere = doctor::master_elsewhere(&info, PATIENCE);
            let port = info.meeting_port().get();
            let found = elsewhere.map(|(finding, found)| {
                (finding, found.into_iter().map(|address| SocketAddr::new(address, port)).collect())
            });
            // The receiver may be gone.
            let _ = sender.send(found);
        };
        thread::Builder::new().name("look".to_owned()).spawn(look).ok()?;
        Some(Look { found })
    }

    /// Returns why the ranks did not meet, if the master's address shows the cause.
    pub(super) fn end(self, info: &ClusterInfo) -> Option<String> {
        let (Finding { what, why, remedy, .. }, addresses) =
            self.found.recv_timeout(LOOK).ok().flatten()?;
        let answers =
            addresses.iter().any(|address| TcpStream::connect_timeout(address, LOOK).is_ok());
        let answers = match answers {
            true => format!("; another program answers there, on port {}", info.meeting_port()),
            false => String::new(),
        };
        Some(format!("{what}{answers}\n  why: {why}\n  remedy: {remedy}"))
    }
}
