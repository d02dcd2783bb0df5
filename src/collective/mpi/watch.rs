//! Monitors the ranks of an MPI job, because MPI does not report which rank is lost or hangs.
//!
//! Every rank has a watch thread, connected to rank 0's. It regularly reports that the rank is
//! alive and how many calls its main thread has begun and ended. Rank 0 detects which rank is gone,
//! silent or late and informs all others. Every rank then reports the error and exits. A main
//! thread that waits in MPI cannot be interrupted, so the watch thread exits.

mod coordinator;
#[cfg(test)]
mod tests;
mod worker;

use std::fmt;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::builder::OnLost;
use crate::call::{Call, LEAVES_EARLY};
use crate::error::{CollectiveError, GONE, LEFT, OWN_HOST, in_group};
use crate::host_info::{HostInfo, Listener};
use crate::rendezvous::handshake::{ConnectionKey, Purpose};
use crate::rendezvous::star::{Star, Times, Waker};
use crate::rendezvous::{done_within, nonce};
use crate::value::printable::printable;
use crate::value::rank::Rank;
use mpienv_ask::seam::Owner;
use serde::{Deserialize, Serialize};

/// Exits the process from any thread. Nothing is dropped: the main thread may never return from
/// MPI.
pub(super) fn exit(error: &CollectiveError, on_lost: &OnLost) -> ! {
    // A handler that panics must not leave the other ranks waiting for this one.
    let code = panic::catch_unwind(AssertUnwindSafe(|| (on_lost.0)(error)));
    let code = code.unwrap_or_else(|_| error.kind().exit_code());
    signal_hook::low_level::exit(code.into())
}

/// How long a rank that has lost rank 0 without a word waits before it says so. A launcher that ends
/// all ranks because of one takes milliseconds; a busy machine takes longer.
pub(super) const LAUNCHER_FIRST: Duration = Duration::from_secs(2);
/// How long to wait for ranks to read the last message. Closing the connection earlier may lose it.
const LAST_WORD: Duration = Duration::from_secs(1);
/// How long a rank waits for its connection to rank 0's watch before it makes its first call. Where
/// the network forbids that connection, every rank waits this long, once.
pub(super) const FIRST_WORD: Duration = Duration::from_secs(5);

/// The call in which a rank waits that has noted none.
const ANY_CALL: &str = "a call of all ranks";

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
        Some(Socket { listener, key: nonce().ok()? })
    }

    /// What the other ranks need to connect.
    pub(super) fn listener_info(&self) -> Option<Listener> {
        let port = self.listener.local_addr().ok()?.port();
        let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
        let mut addresses: Vec<_> = interfaces.iter().map(if_addrs::Interface::ip).collect();
        // A link-local IPv6 address needs an interface name, which differs between hosts.
        addresses.retain(|address| match address {
            IpAddr::V4(address) => !address.is_loopback(),
            IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
        });
        Some(Listener { port, addresses, key: self.key })
    }

    /// The connections of the other ranks of `size`, which come to this socket.
    fn star(self, times: Times, size: u32) -> io::Result<Star> {
        let mut star = Star::new(times)?;
        star.listen(self.listener, ConnectionKey::new(&self.key, Purpose::Watch, 0), 1..size)?;
        Ok(star)
    }
}

/// What the main thread shares with the watch thread.
#[derive(Debug, Default)]
struct Heartbeat {
    /// Calls begun plus calls ended: odd during a call.
    calls: AtomicU64,
    ended: AtomicBool,
    /// The last call of the main thread.
    waits: Mutex<Option<Waits>>,
}

impl Heartbeat {
    /// Whether this process must exit because of what its watch has found. A lost rank is no reason
    /// while the main thread is between two calls, perhaps to write what it has computed, for at
    /// most this long: it must if the next call comes, and need not if the group ends before.
    fn must_exit(&self, error: &CollectiveError, longest: Duration) -> bool {
        let is_in_call = || !self.calls.load(Ordering::Relaxed).is_multiple_of(2);
        let is_lost = matches!(error, CollectiveError::Lost { .. });
        !is_lost || !self.ends_within(longest, is_in_call)
    }

    fn waits(&self) -> MutexGuard<'_, Option<Waits>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the group ends, but no longer than this or until it is `in_vain`.
    fn ends_within(&self, longest: Duration, in_vain: impl Fn() -> bool) -> bool {
        let has_ended = || self.ended.load(Ordering::Relaxed);
        done_within(longest, || has_ended() || in_vain());
        has_ended()
    }
}

/// The call in which a rank waits, for errors, and the numbers in the job of its group's ranks.
#[derive(Debug)]
struct Waits {
    /// Both halves of a `send_receive`, or the same call twice.
    calls: [Call; 2],
    group: Arc<[u32]>,
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, last] = self.calls.map(|call| call.in_job(&self.group));
        if first == last { write!(f, "{first}") } else { write!(f, "{first} and {last}") }
    }
}

/// A rank's watch. Dropping it announces that this rank exits normally.
#[derive(Debug)]
pub(super) struct Watch {
    heartbeat: Arc<Heartbeat>,
    waker: Arc<Waker>,
    /// Runs in the owner only.
    thread: Option<JoinHandle<()>>,
    owner: Owner,
}

impl Watch {
    /// Starts the watch. `infos` are those of all ranks, in rank order.
    ///
    /// Waits until rank 0 knows of this rank: if the process is killed before, rank 0 cannot tell
    /// it from a rank that is slow to connect, and notices only after the timeout.
    pub(super) fn begin(
        rank: Rank,
        socket: Option<Socket>,
        infos: &[HostInfo],
        timeout: Duration,
        on_lost: OnLost,
    ) -> io::Result<Watch> {
        let times = Times::of(timeout);
        let is_coordinator = socket.is_some();
        let star = match socket {
            Some(socket) => socket.star(times, rank.size())?,
            None => Star::new(times)?,
        };
        let waker = star.waker();
        let heartbeat = Arc::new(Heartbeat::default());
        let of_process = Arc::clone(&heartbeat);
        let hosts = infos.iter().map(|info| printable(info.host.as_bytes())).collect();
        let progress = Progress { calls: 0, since: Instant::now() };
        let own = Own { rank, hosts, heartbeat: Arc::clone(&heartbeat), progress, times };
        let listens = infos.first().and_then(|host_info| host_info.listens.clone());
        let (is_known, known) = mpsc::channel();
        let thread = thread::Builder::new().name("watch".to_owned()).spawn(move || {
            let lost = match is_coordinator {
                true => {
                    drop(is_known);
                    coordinator::watch(own, star)
                }
                false => worker::watch(own, listens, star, is_known),
            };
            if let Some(error) = lost.filter(|error| of_process.must_exit(error, times.silence)) {
                exit(&error, &on_lost);
            }
        })?;
        // The thread drops its end; nothing is ever sent.
        let _ = known.recv_timeout(FIRST_WORD);
        Ok(Watch { heartbeat, waker, thread: Some(thread), owner: Owner::current() })
    }

    /// Makes a call that waits for other ranks, and counts it. Returns `None` if another thread of
    /// this process is in a call.
    pub(super) fn over<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        let begin = |calls: u64| calls.is_multiple_of(2).then_some(calls + 1);
        let calls = &self.heartbeat.calls;
        calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, begin).ok()?;
        let result = call();
        calls.fetch_add(1, Ordering::Relaxed);
        Some(result)
    }

    /// Notes of which call the next ones are part, unless another thread is in a call.
    pub(super) fn notes(&self, calls: [Call; 2], group: &Arc<[u32]>) {
        if !self.heartbeat.calls.load(Ordering::Relaxed).is_multiple_of(2) {
            return;
        }
        // Short, because a call of 8 bytes takes less than a microsecond.
        match &mut *self.heartbeat.waits() {
            Some(waits) if Arc::ptr_eq(&waits.group, group) => waits.calls = calls,
            waits => *waits = Some(Waits { calls, group: Arc::clone(group) }),
        }
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
        done_within(LAST_WORD, || self.thread.as_ref().is_none_or(JoinHandle::is_finished));
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

/// What the watches send each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    /// The sender is alive. `calls` counts the calls that its main thread has begun plus those that
    /// it has ended.
    Beat { calls: u64 },
    /// Rank 0 reports that a rank's process or host is gone.
    Lost { rank: u32, reason: String },
    /// Rank 0 reports that the others have waited too long for a rank.
    Late { rank: u32 },
    /// Rank 0 reports that the others have waited too long, and that a rank has said `Bye`.
    Left { rank: u32 },
    /// The sender has ended its group.
    Bye,
    /// The sender exits, because it has waited too long for an unknown rank.
    GaveUp,
}

impl Message {
    /// What is said of a rank whose connection closed or failed.
    fn lost(rank: u32, error: &io::Error) -> Message {
        let reason = match error.kind() {
            io::ErrorKind::TimedOut => return Message::Late { rank },
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => GONE.to_owned(),
            _ => format!("its connection broke: {error}"),
        };
        Message::Lost { rank, reason }
    }

    fn bytes(&self) -> Vec<u8> {
        // Numbers and texts are always JSON; what is empty would be a heartbeat without a count.
        serde_json::to_vec(self).unwrap_or_default()
    }

    fn of(bytes: &[u8]) -> io::Result<Message> {
        Ok(serde_json::from_slice(bytes)?)
    }
}

/// How long a rank waits for rank 0 to name a late rank.
fn patience(times: Times) -> Duration {
    times.silence + 4 * times.beat
}

/// How long a main thread may wait in MPI: longer than the watch takes to exit the process.
pub(super) fn limit(timeout: Duration) -> Duration {
    patience(Times::of(timeout)) + Duration::from_secs(1)
}

/// What a watch knows of a rank's main thread.
#[derive(Clone, Copy)]
struct Progress {
    calls: u64,
    /// When the calls last changed.
    since: Instant,
}

/// This rank, as its watch sees it.
struct Own {
    rank: Rank,
    /// Those of all ranks.
    hosts: Vec<String>,
    heartbeat: Arc<Heartbeat>,
    progress: Progress,
    times: Times,
}

impl Own {
    /// Notes how many calls the main thread has begun and ended, and when that changed. Returns the
    /// beat that says so.
    fn beat(&mut self) -> Vec<u8> {
        let calls = self.heartbeat.calls.load(Ordering::Relaxed);
        if calls != self.progress.calls {
            self.progress = Progress { calls, since: Instant::now() };
        }
        Message::Beat { calls }.bytes()
    }

    fn has_ended(&self) -> bool {
        self.heartbeat.ended.load(Ordering::Relaxed)
    }

    /// Returns whether the main thread has waited so long that rank 0 will no longer name a late
    /// rank.
    fn has_waited_in_vain(&self, now: Instant) -> bool {
        let Progress { calls, since } = self.progress;
        calls % 2 == 1 && now - since >= patience(self.times)
    }

    fn host(&self, rank: u32) -> String {
        self.hosts.get(rank as usize).cloned().unwrap_or_default()
    }

    /// The error for what this rank or rank 0 has found; none if nothing is wrong.
    fn error(&self, found: &Message) -> Option<CollectiveError> {
        let (own, seconds) = (self.rank.index(), self.times.silence.as_secs_f64());
        let waits = self.heartbeat.waits();
        Some(match *found {
            Message::Beat { .. } | Message::Bye => return None,
            Message::Lost { rank, ref reason } => {
                CollectiveError::Lost { rank, host: self.host(rank), reason: reason.clone() }
            }
            Message::Late { rank } => {
                // Several ranks print the error, and only this one may be meant by it.
                let host = if rank == own { OWN_HOST.to_owned() } else { self.host(rank) };
                CollectiveError::TimedOut { rank, host, seconds }
            }
            Message::Left { rank } => {
                let (found, rule) = (LEFT.to_owned(), LEAVES_EARLY);
                let expected = waits.as_ref().map_or(ANY_CALL.to_owned(), ToString::to_string);
                CollectiveError::Differs { rank, found, own, expected, rule }
            }
            Message::GaveUp => {
                let in_group = |waits: &Waits| in_group(waits, &waits.group);
                let call = waits.as_ref().map_or(ANY_CALL.to_owned(), in_group);
                CollectiveError::SomeTimedOut { seconds, own: Some(own), call }
            }
        })
    }
}
