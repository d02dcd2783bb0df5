//! Looks names up.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Resolves a name in a thread that may be abandoned, because the system's resolver has no timeout.
/// Returns `None` after `patience`.
#[must_use]
pub fn look_up(name: String, port: u16, patience: Duration) -> Option<io::Result<Vec<SocketAddr>>> {
    let (sender, receiver) = mpsc::channel();
    let ask = move || {
        let answer = (name.as_str(), port).to_socket_addrs().map(Vec::from_iter);
        // After the timeout, there is no receiver.
        let _ = sender.send(answer);
    };
    match thread::Builder::new().name("resolve".to_owned()).spawn(ask) {
        Ok(_) => receiver.recv_timeout(patience).ok(),
        Err(error) => Some(Err(error)),
    }
}

/// Resolves a name, or tells why it does not resolve.
///
/// # Errors
/// Returns what the system says, or that there was no answer in time.
pub fn resolve(name: String, port: u16, patience: Duration) -> Result<Vec<SocketAddr>, String> {
    match look_up(name, port, patience) {
        Some(found) => found.map_err(|error| error.to_string()),
        None => Err(format!("no answer within {} s", patience.as_secs_f64())),
    }
}
