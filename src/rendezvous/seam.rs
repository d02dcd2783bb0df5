//! What mpienv's other crates need of this one and programs do not. Any version may change it.

use std::time::Duration;

pub use crate::channel::{Channel, Receiver, Sender};

/// Ten years, so that adding a timeout to an instant never overflows.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The meeting's handshake on other connections.
pub mod handshake {
    pub use crate::auth::Direction;
    pub use crate::handshake::{
        Admitted, ConnectionKey, Directions, Guest, Introduced, Joining, Purpose, Refusal, Stranger,
    };
}

/// What happens to sockets that listen.
pub mod listen {
    pub use crate::listen::{is_in_use, is_out_of_files};
}
