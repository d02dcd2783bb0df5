//! What mpienv's other crates need of this one and programs do not. Any version may change it.

use std::time::Duration;

use self::star::Channel;
use crate::{Gathered, Meeting, Rendezvous, RendezvousError};

/// Ten years, so that adding a timeout to an instant never overflows.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Like [`Rendezvous::gather_with_reply`], for the processes that start the ranks: connections stay
/// open, and ranks have other keys.
///
/// # Errors
/// Those of [`Rendezvous::all_gather`].
pub fn stay_connected(
    rendezvous: &Rendezvous,
    blob: Vec<u8>,
    answer: impl FnMut(&Meeting) -> Vec<u8>,
) -> Result<(Gathered, Vec<Channel>), RendezvousError> {
    rendezvous.stay_connected(blob, answer)
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
