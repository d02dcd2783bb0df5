//! Resolves names to addresses.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::error::ConnectFailure;

/// Resolves a name in a separate thread, because the system's resolver has no timeout. Returns
/// `None` after `patience`.
pub(super) fn resolve(
    name: String,
    port: u16,
    patience: Duration,
) -> Option<Result<Vec<SocketAddr>, ConnectFailure>> {
    let (sender, receiver) = mpsc::channel();
    let ask = move || {
        let answer = (name.as_str(), port).to_socket_addrs().map(Vec::from_iter);
        // After the timeout, there is no receiver.
        let _ = sender.send(answer);
    };
    if let Err(error) = thread::Builder::new().name("resolve".to_owned()).spawn(ask) {
        return Some(Err(ConnectFailure::Other(error.to_string())));
    }
    Some(match receiver.recv_timeout(patience).ok()? {
        Ok(addresses) if addresses.is_empty() => {
            Err(ConnectFailure::Unresolved("no address".to_owned()))
        }
        answer => answer.map_err(|error| ConnectFailure::Unresolved(error.to_string())),
    })
}
