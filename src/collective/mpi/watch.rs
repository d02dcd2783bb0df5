//! Monitors the ranks of an MPI job, because MPI does not report which rank is lost or hangs.
//!
//! Every rank has a watch thread, connected to rank 0's. It regularly reports that the rank is
//! alive and how many calls its main thread has begun and ended. Rank 0 detects which rank is gone,
//! silent or late and informs all others. Every rank then reports the error and exits. A main
//! thread that waits in MPI cannot be interrupted, so the watch thread exits.

mod channel;
mod coordinator;
#[cfg(test)]
mod tests;
mod worker;

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::lost::{self, OnLost};
use crate::collective::error::CollectiveError;
use crate::collective::host_info::{HostInfo, Listener};
use crate::value::printable::printable;
use crate::value::rank::Rank;
use mio::{Poll, Token, Waker};
use mpienv_core::seam::Owner;

const WAKE: Token = Token(usize::MAX);
/// How long to wait for ranks to read the last message. Closing the connection earlier may lose it.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Rank 0's listening socket, not yet announced to the other ranks.
pub(super) struct Socket {
    listener: TcpListener,
    key: [u8; 32],
}

impl Socket {
    /// Opens a socket on a port that the system chooses. Without one, lost ranks cannot be named.
    pub(super) fn open() -> Option<Socket> {
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0));
        let listener = listener.or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))).ok()?;
        let mut key = [0; 32];
        getrandom::fill(&mut key).ok()?;
        Some(Socket { listener, key })
    }

    /// What the other ranks need to connect.
    pub(super) fn listener_info(&self) -> Option<Listener> {
        let port = self.listener.local_addr().ok()?.port();
        let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
        let mut addresses: Vec<_> = interfaces.iter().map(if_addrs::Interface::ip).collect();
        // A link-local IPv6 address needs an interface name, which differs between hosts.
        addresses.retain(|address| !address.is_loopback() && !is_of_one_link(address));
        Some(Listener { port, addresses, key: self.key })
    }
}

fn is_of_one_link(address: &std::net::IpAddr) -> bool {
    matches!(address, std::net::IpAddr::V6(address) if address.is_unicast_link_local())
}

/// What the main thread shares with the watch thread.
#[derive(Debug, Default)]
struct Heartbeat {
    /// Calls begun plus calls ended: odd during a call.
    calls: AtomicU64,
    ended: AtomicBool,
}

/// A rank's watch. Dropping it announces that this rank exits normally.
#[derive(Debug)]
pub(super) struct Watch {
    heartbeat: Arc<Heartbeat>,
    waker: Waker,
    /// Runs in the owner only.
    thread: Option<JoinHandle<()>>,
    owner: Owner,
}

impl Watch {
    /// Starts the watch. `infos` are those of all ranks, in rank order.
    pub(super) fn begin(
        rank: Rank,
        socket: Option<Socket>,
        infos: &[HostInfo],
        timeout: Duration,
        on_lost: OnLost,
    ) -> io::Result<Watch> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let heartbeat = Arc::new(Heartbeat::default());
        let times = Times::of(timeout);
        let own =
            Own { rank, heartbeat: Arc::clone(&heartbeat), calls: 0, since: Instant::now(), times };
        let hosts: Vec<String> =
            infos.iter().map(|host_info| printable(host_info.host.as_bytes())).collect();
        let listens = infos.first().and_then(|host_info| host_info.listens.clone());
        let thread = thread::Builder::new().name("watch".to_owned()).spawn(move || {
            let lost = match socket {
                Some(socket) => coordinator::watch(own, socket, poll, &hosts),
                None => worker::watch(own, listens, poll, &hosts),
            };
            if let Some(error) = lost {
                lost::exit(&error, on_lost);
            }
        })?;
        Ok(Watch { heartbeat, waker, thread: Some(thread), owner: Owner::current() })
    }

    /// Makes a call that waits for other ranks, and counts it.
    pub(super) fn over<T>(&self, call: impl FnOnce() -> T) -> T {
        self.heartbeat.calls.fetch_add(1, Ordering::Relaxed);
        let result = call();
        self.heartbeat.calls.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// Returns whether this process is the rank, and not a child that was forked from it.
    pub(super) fn is_here(&self) -> bool {
        self.owner.is_here()
    }

    /// Announces that this rank exits normally. Waits for the watch thread to send it, but at most
    /// `LAST_WORD`.
    pub(super) fn end(&self) {
        // In a forked child, this thread does not exist, and the waker would wake that of the
        // parent.
        if !self.is_here() {
            return;
        }
        self.heartbeat.ended.store(true, Ordering::Relaxed);
        // If the thread cannot be woken, it notices at its next beat.
        let _ = self.waker.wake();
        let begun = Instant::now();
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
            && begun.elapsed() < LAST_WORD
        {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
        if !self.is_here() {
            mem::forget(self.thread.take());
        }
    }
}

/// How often ranks send a beat, and how long to wait for them.
#[derive(Clone, Copy, Debug)]
struct Times {
    beat: Duration,
    timeout: Duration,
}

impl Times {
    fn of(timeout: Duration) -> Times {
        Times {
            beat: (timeout / 8).clamp(Duration::from_millis(20), Duration::from_secs(2)),
            timeout,
        }
    }

    /// How long a rank waits for rank 0 to name a late rank.
    fn patience(self) -> Duration {
        self.timeout + 4 * self.beat
    }
}

/// How long a main thread may wait in MPI: longer than the watch takes to exit the process.
pub(super) fn limit(timeout: Duration) -> Duration {
    Times::of(timeout).patience() + Duration::from_secs(1)
}

/// This rank, as its watch sees it.
struct Own {
    rank: Rank,
    heartbeat: Arc<Heartbeat>,
    calls: u64,
    since: Instant,
    times: Times,
}

impl Own {
    /// Returns how many calls the main thread has begun and ended, and notes when that changed.
    fn look(&mut self, now: Instant) -> u64 {
        let calls = self.heartbeat.calls.load(Ordering::Relaxed);
        if calls != self.calls {
            self.calls = calls;
            self.since = now;
        }
        calls
    }

    fn has_ended(&self) -> bool {
        self.heartbeat.ended.load(Ordering::Relaxed)
    }

    /// Returns whether the main thread has waited so long that rank 0 will no longer name a late
    /// rank.
    fn has_waited_in_vain(&self, now: Instant) -> bool {
        self.calls % 2 == 1 && now - self.since >= self.times.patience()
    }

    fn late(&self, rank: u32, hosts: &[String]) -> CollectiveError {
        CollectiveError::TimedOut {
            rank,
            host: host(rank, hosts),
            seconds: self.times.timeout.as_secs_f64(),
        }
    }

    fn some_rank_is_late(&self) -> CollectiveError {
        CollectiveError::SomeTimedOut { seconds: self.times.timeout.as_secs_f64() }
    }
}

fn host(rank: u32, hosts: &[String]) -> String {
    hosts.get(rank as usize).cloned().unwrap_or_default()
}

/// Describes why a rank is lost whose connection closed or failed.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "its connection was closed: the process exited or was killed".to_owned()
        }
        _ => format!("its connection broke: {error}"),
    }
}
