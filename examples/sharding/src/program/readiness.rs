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

/// Shares whether each rank can start, and returns what this rank has prepared if all can. Every
/// rank of `group` must call this.
///
/// # Errors
/// If this rank cannot start, as `not_ready`, because the others know why; if another rank cannot
/// start or is lost.
pub fn of_all<T, E: Display + From<OtherRank> + From<CollectiveError>>(
    own: Result<T, E>,
    group: &mut Group,
    not_ready: impl FnOnce(Box<E>) -> E,
) -> Result<T, E> {
    let said = match &own {
        Ok(_) => Vec::new(),
        Err(error) => format!("{}\n{error}", mpienv::host_name().unwrap_or_default()).into_bytes(),
    };
    let all = group.all_gather(&said)?;
    let own = own.map_err(|error| not_ready(Box::new(error)))?;
    match (0..).zip(all).find(|(_, said)| !said.is_empty()) {
        None => Ok(own),
        Some((rank, said)) => {
            let text = String::from_utf8_lossy(&said);
            let (host, reason) = text.split_once('\n').unwrap_or_default();
            Err(OtherRank { rank, host: shown(host), reason: shown(reason) }.into())
        }
    }
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

    #[derive(Debug, thiserror::Error)]
    enum Failure {
        #[error("{0}")]
        Own(String),
        #[error("not ready: {0}")]
        NotReady(Box<Failure>),
        #[error("{}: {}", .0.rank, .0.reason)]
        OtherRank(#[from] OtherRank),
        #[error(transparent)]
        Collective(#[from] CollectiveError),
    }

    #[test]
    fn the_first_rank_that_cannot_begin_is_named_by_those_that_can() {
        let of_all = |failing: &[u32]| {
            threads::run(4, Duration::from_secs(1200), |rank| {
                let index = rank.rank().index();
                let fails = failing.contains(&index);
                let own = if fails {
                    Err(Failure::Own(format!("no {index}\u{1b}[2J")))
                } else {
                    Ok(index)
                };
                match of_all(own, rank, Failure::NotReady) {
                    Ok(own) => format!("all, {own}"),
                    Err(error) => error.to_string(),
                }
            })
            .unwrap()
        };
        assert_eq!(of_all(&[]), ["all, 0", "all, 1", "all, 2", "all, 3"]);
        let (own_1, own_3) = ("not ready: no 1\u{1b}[2J", "not ready: no 3\u{1b}[2J");
        assert_eq!(of_all(&[1, 3]), ["1: no 1 [2J", own_1, "1: no 1 [2J", own_3]);
    }
}
