//! Checks that every rank can start. Otherwise, all ranks learn immediately which rank cannot, and
//! why.

use std::fmt::Display;

use mpienv::collective::{CollectiveError, Group};

/// Another rank cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} on {host} cannot start: {reason}")]
pub struct OtherRank {
    /// The lowest rank that cannot start.
    pub rank: u32,
    pub host: String,
    pub reason: String,
}

/// The result of the readiness check.
#[derive(Debug)]
pub enum Readiness<T, E> {
    /// Every rank can start.
    All(T),
    /// This rank cannot start. The other ranks know why.
    NotThis(E),
    /// Another rank cannot start.
    NotAnother(OtherRank),
}

/// Shares whether each rank can start. Every rank of `group` must call this.
///
/// # Errors
/// If a rank is lost.
pub fn of_all<T, E: Display>(
    own: Result<T, E>,
    group: &mut Group,
) -> Result<Readiness<T, E>, CollectiveError> {
    let said = match &own {
        Ok(_) => Vec::new(),
        Err(error) => format!("{}\n{error}", mpienv::host_name().unwrap_or_default()).into_bytes(),
    };
    let all = group.all_gather(&said)?;
    Ok(match (own, (0..).zip(all).find(|(_, said)| !said.is_empty())) {
        (Err(error), _) => Readiness::NotThis(error),
        (Ok(own), None) => Readiness::All(own),
        (Ok(_), Some((rank, said))) => {
            let text = String::from_utf8_lossy(&said);
            let (host, reason) = text.split_once('\n').unwrap_or_default();
            Readiness::NotAnother(OtherRank { rank, host: shown(host), reason: shown(reason) })
        }
    })
}

/// Makes another process's text safe to print on a terminal.
fn shown(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpienv::collective::threads;
    use std::time::Duration;

    #[test]
    fn the_first_rank_that_cannot_begin_is_named_by_those_that_can() {
        let of_all = |failing: &[u32]| {
            threads::run(4, Duration::from_secs(1200), |rank| {
                let index = rank.rank().index();
                let own = if failing.contains(&index) {
                    Err(format!("no {index}\u{1b}[2J"))
                } else {
                    Ok(index)
                };
                match of_all(own, rank).unwrap() {
                    Readiness::All(own) => format!("all, {own}"),
                    Readiness::NotThis(error) => format!("own: {error}"),
                    Readiness::NotAnother(other) => format!("{}: {}", other.rank, other.reason),
                }
            })
            .unwrap()
        };
        assert_eq!(of_all(&[]), ["all, 0", "all, 1", "all, 2", "all, 3"]);
        let (own_1, own_3) = ("own: no 1\u{1b}[2J", "own: no 3\u{1b}[2J");
        assert_eq!(of_all(&[1, 3]), ["1: no 1 [2J", own_1, "1: no 1 [2J", own_3]);
    }
}
