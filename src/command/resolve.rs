//! Waits until the master's name resolves.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::command::doctor;
use crate::value::host::Host;

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
    // An attempt that the deadline cuts short provides a worse reason than an earlier one.
    let mut said = None;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let reason = match resolve(left) {
            Ok(found) if !found.is_empty() => return Ok(()),
            Ok(_) => "it has no address".to_owned(),
            Err(reason) => reason,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if !left.is_zero() || said.is_none() {
            said = Some(reason);
        }
        if left.is_zero() {
            let reason = said.unwrap_or_default();
            return Err(Unresolved { host: host.to_string(), waited: patience, reason });
        }
        thread::sleep(PAUSE.min(left));
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

    #[test]
    fn a_name_that_never_resolves_is_named_with_the_reason() {
        let host: Host = "pod-0".parse().unwrap();
        let error =
            retry(
                &host,
                Duration::from_millis(10),
                |_| Err("Name or service not known".to_owned()),
            )
            .unwrap_err();
        let text = "the master pod-0 did not resolve within 0.01 s: Name or service not known; ";
        assert!(error.to_string().starts_with(text), "{error}");
        assert!(retry(&host, Duration::from_millis(10), |_| Ok(Vec::new())).is_err());
    }
}
