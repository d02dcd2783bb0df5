//! Waits until the master's name resolves.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::Host;
use crate::command::doctor;

/// The pause between two attempts, because many ranks share one name server.
const PAUSE: Duration = Duration::from_millis(500);

/// The master's name did not resolve in time.
#[derive(Debug, thiserror::Error)]
#[error(
    "the master {host} did not resolve within {} s: {reason}; check MASTER_ADDR and the name service, or wait longer",
    .waited.as_secs_f64()
)]
pub(crate) struct Unresolved {
    host: String,
    waited: Duration,
    reason: String,
}

/// Tries until the host has an address, for at most `patience`. Addresses need no time.
pub(crate) fn wait(host: &Host, patience: Duration) -> Result<(), Unresolved> {
    retry(host, patience, |left| doctor::addresses(host, left))
}

fn retry(
    host: &Host,
    patience: Duration,
    mut resolve: impl FnMut(Duration) -> Result<Vec<IpAddr>, String>,
) -> Result<(), Unresolved> {
    let deadline = Instant::now() + patience;
    let left = || deadline.saturating_duration_since(Instant::now());
    let mut earlier = None;
    loop {
        let reason = match resolve(left()) {
            Ok(found) if !found.is_empty() => return Ok(()),
            Ok(_) => "it has no address".to_owned(),
            Err(reason) => reason,
        };
        if left().is_zero() {
            // An attempt that the deadline cuts short provides a worse reason than an earlier one.
            let reason = earlier.unwrap_or(reason);
            return Err(Unresolved { host: host.to_string(), waited: patience, reason });
        }
        earlier = Some(reason);
        thread::sleep(PAUSE.min(left()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_resolves_late_is_waited_for() {
        let host: Host = "pod-0".parse().unwrap();
        let mut tries = 0;
        let late = |_| {
            tries += 1;
            if tries < 3 {
                Err("Name or service not known".to_owned())
            } else {
                Ok(vec![IpAddr::from([10, 0, 0, 1])])
            }
        };
        assert!(retry(&host, Duration::from_secs(60), late).is_ok());
        assert_eq!(tries, 3);
    }
}
