//! What mpienv's other crates need of this one and programs do not. Any version may change it.

use std::time::Duration;

use self::star::Channel;
use crate::auth::Role;
use crate::{Gathered, Meeting, Rendezvous, RendezvousError, client, server};

/// Ten years, so that adding a timeout to an instant never overflows.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Returns whether this process authenticates with MUNGE when it meets the others.
#[must_use]
pub fn uses_munge(rendezvous: &Rendezvous) -> bool {
    rendezvous.munge.is_ok()
}

/// Like [`Rendezvous::gather_with_reply`], for the processes that start the ranks, but connections
/// stay open. Rank 0 gets a connection to each other rank and speaks first. The others get their
/// connection to rank 0.
///
/// These processes and the ranks have different keys, so that neither can join the other's meeting.
///
/// # Errors
/// Those of [`Rendezvous::all_gather`].
pub fn stay_connected(
    rendezvous: &Rendezvous,
    blob: Vec<u8>,
    mut answer: impl FnMut(&Meeting) -> Vec<u8>,
) -> Result<(Gathered, Vec<Channel>), RendezvousError> {
    let launches = Rendezvous { role: Role::Launches, ..rendezvous.clone() };
    let blob = launches.checked(blob)?;
    if launches.rank.is_first() {
        let (meeting, channels) = server::serve(&launches, blob, &mut answer)?;
        return Ok((Gathered::All(meeting), channels));
    }
    let (gathered, channel) = client::join(&launches, blob, false)?;
    Ok((gathered, vec![channel]))
}

/// The meeting's handshake on other connections.
pub mod handshake {
    pub use crate::handshake::{ConnectionKey, Directions, Introduced, Purpose, Refusal};
}

/// What happens to sockets that listen.
pub mod listen {
    pub use crate::listen::is_in_use;
}

/// Connections that last as long as a job runs.
pub mod star {
    pub use crate::star::{Admitted, Channel, Guest, Heard, Star, Stranger, Times, Waker};
}
