//! What mpienv's other crates need of this one and programs do not. Any version may change it.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

pub use crate::auth::{Role, nonce};
use crate::munge::NoMunge;
pub use crate::munge::REMEDY as MUNGE_REMEDY;
use crate::star::Star;
use crate::{Gathered, Meeting, Rendezvous, RendezvousError, munge};
use mpienv_core::seam::is_silenced;
use mpienv_core::{ClusterInfo, Munge};

/// Ten years, so that adding a timeout to an instant never overflows.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Asks every millisecond whether something is done, but no longer than this. Returns whether it is.
pub fn done_within(longest: Duration, mut is_done: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + longest;
    while !is_done() {
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Returns whether this process authenticates with MUNGE when it meets the others.
#[must_use]
pub fn uses_munge(rendezvous: &Rendezvous) -> bool {
    rendezvous.own_munge().is_ok()
}

/// Returns why this process does not authenticate with MUNGE although a program asked for it.
#[must_use]
pub fn why_no_munge(rendezvous: &Rendezvous) -> Option<String> {
    rendezvous.own_munge().err().filter(|why| **why != NoMunge::NotAsked).map(ToString::to_string)
}

/// Asks munged on this host, whether ranks must use MUNGE or use it only if it answers.
///
/// # Errors
/// Why it does not answer.
pub fn ask_munged(munge: &Munge, within: Duration) -> Result<(), String> {
    munge::answers(munge, within).map_err(|reason| NoMunge::Unanswered(reason).to_string())
}

/// Lets rank 0 name the missing ranks on stderr after ten seconds, once, because a long wait without
/// a word looks like a hang. `end` follows their names. `MPIENV_QUIET` silences it.
pub fn name_the_late(rendezvous: Rendezvous, info: &ClusterInfo, end: &'static str) -> Rendezvous {
    let names_the_late = Some(end).filter(|_| !is_silenced(info.environment()));
    Rendezvous { names_the_late, ..rendezvous }
}

/// Like [`Rendezvous::gather_with_reply`], for processes of this role, but connections stay open:
/// those of rank 0 to all others, which speaks first, and those of the others to rank 0. An end that
/// is silent for `silence` is lost. The connections are an error if the system cannot wait for them.
///
/// Each role has its own keys, so that no process can join the meeting of another role.
///
/// # Errors
/// Those of [`Rendezvous::all_gather`].
pub fn stay_connected(
    rendezvous: &Rendezvous,
    role: Role,
    silence: Duration,
    blob: Vec<u8>,
    mut answer: impl FnMut(&Meeting) -> Vec<u8>,
) -> Result<(Gathered, io::Result<Star>), RendezvousError> {
    let own = Rendezvous { role, ..rendezvous.clone() };
    let (gathered, channels) = own.meet(blob, false, &mut answer)?;
    Ok((gathered, Star::connected(channels, silence)))
}

/// The meeting's handshake on other connections.
pub mod handshake {
    pub use crate::handshake::{ConnectionKey, Directions, Introduced, Purpose, Refusal};
}

/// What happens to sockets that listen.
pub mod listen {
    pub use crate::listen::{PortState, at_free_port, on_free_port, state_of};
}

/// Connections that last as long as a job runs.
pub mod star {
    pub use crate::handshake::{Admitted, Guest};
    pub use crate::star::{Channel, Heard, Star, Times, Waker};
}
