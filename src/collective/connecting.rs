//! One connect of a rank at a time in a process.
//!
//! Ranks pair the connects of several threads in the order in which they happen to arrive, which may
//! be another one on each rank: two groups would then be mixed in silence.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::error::CollectiveError;
use crate::cluster::info::ClusterInfo;
use crate::value::host::Host;
use crate::value::port::Port;
use crate::value::rank::Rank;

/// A rank, its job's run, and where its ranks meet. `None` if only MPI may know.
type Connects = (Rank, (String, u32), Option<(Host, Port)>);

/// What the threads of this process connect at this moment, and whether two of them connect the
/// same.
static CONNECTING: Mutex<Vec<(Connects, bool)>> = Mutex::new(Vec::new());

/// A connect that is under way.
pub(super) struct Connecting(Connects);

impl Connecting {
    fn all() -> MutexGuard<'static, Vec<(Connects, bool)>> {
        CONNECTING.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if another thread connects the same. The connect of that thread then fails too.
    pub(super) fn begin(
        info: &ClusterInfo,
        meets_at: Option<(Host, Port)>,
    ) -> Result<Connecting, CollectiveError> {
        let connects = (info.rank(), info.run(), meets_at);
        let mut all = Connecting::all();
        if let Some((other, is_twice)) = all.iter_mut().find(|(other, _)| *other == connects) {
            *is_twice = true;
            return Err(CollectiveError::ConnectsTwice { rank: other.0.index() });
        }
        all.push((connects.clone(), false));
        Ok(Connecting(connects))
    }

    /// Fails if another thread has connected the same meanwhile.
    pub(super) fn end(self) -> Result<(), CollectiveError> {
        let is_twice = Connecting::all().contains(&(self.0.clone(), true));
        let rank = self.0.0.index();
        if is_twice { Err(CollectiveError::ConnectsTwice { rank }) } else { Ok(()) }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        Connecting::all().retain(|(other, _)| *other != self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::Group;
    use crate::tests::PLENTY;

    #[test]
    fn two_threads_that_connect_the_same_rank_at_once_get_an_error_and_later_ones_connect() {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = Port::new(listener.local_addr().unwrap().port()).unwrap();
        let info = |rank| ClusterInfo::from_vars([("RANK", rank), ("WORLD_SIZE", "2")]).unwrap();
        let (rank_0, rank_1) = (info("0"), info("1"));
        let first = || {
            let listener = listener.try_clone().unwrap();
            Group::builder(&rank_0).quiet(true).listener(listener).timeout(PLENTY).connect()
        };
        let second = || {
            let builder = Group::builder(&rank_1).quiet(true).timeout(PLENTY);
            builder.meet_at(Host::LOOPBACK, port).connect()
        };
        let check = |result: Result<Group, CollectiveError>| {
            let error = result.unwrap_err().to_string();
            assert!(error.starts_with("two threads of rank 1 connect a group"), "{error}");
        };
        thread::scope(|scope| {
            let (ended, end) = mpsc::channel();
            for _ in 0..2 {
                let ended = ended.clone();
                scope.spawn(move || ended.send(second()).unwrap());
            }
            // Rank 0 comes once one of them is refused, and the other one waits for it.
            check(end.recv_timeout(PLENTY / 2).unwrap());
            assert!(first().and_then(|mut group| group.barrier()).is_err());
            check(end.recv_timeout(PLENTY / 2).unwrap());
            for _ in 0..2 {
                let other = scope.spawn(|| second()?.barrier());
                first().unwrap().barrier().unwrap();
                other.join().unwrap().unwrap();
            }
        });
    }
}
