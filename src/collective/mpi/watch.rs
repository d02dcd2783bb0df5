//! Monitors the ranks of an MPI job, because MPI does not report which rank is lost or hangs.
//!
//! Every rank has a watch thread, connected to rank 0's. It regularly reports that the rank is
//! alive and how many calls its main thread has begun and ended. Rank 0 detects which rank is gone,
//! silent or late and informs all others. Every rank then reports the error and exits. A main
//! thread that waits in MPI cannot be interrupted, so the watch thread exits.

mod coordinator;
mod worker;

use std::fmt;
use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::CollectiveError;
use crate::host_info::{HostInfo, Listener};
use crate::rendezvous::handshake::{ConnectionKey, Purpose};
use crate::rendezvous::nonce;
use crate::rendezvous::star::{Star, Times, Waker};
use crate::value::printable::printable;
use crate::value::rank::Rank;
use mpienv_ask::seam::Owner;
use serde::{Deserialize, Serialize};

/// Runs before the process exits because of a lost rank, and returns the exit code. By default it
/// prints the error.
pub(crate) type OnLost = fn(&CollectiveError) -> u8;

/// Exits the process from any thread. Nothing is dropped: the main thread may never return from
/// MPI.
pub(super) fn exit(error: &CollectiveError, on_lost: OnLost) -> ! {
    let code = on_lost(error);
    signal_hook::low_level::exit(code.into())
}

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
        Some(Socket { listener, key: nonce().ok()? })
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

    /// The connections of the other ranks of `size`, which come to this socket.
    fn star(self, times: Times, size: u32) -> io::Result<Star> {
        let mut star = Star::new(times)?;
        star.listen(self.listener, ConnectionKey::new(&self.key, Purpose::Watch, 0), 1..size)?;
        Ok(star)
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
    /// The call of two or three ranks that the main thread makes; `None` in a call of all ranks.
    passing: Mutex<Option<Passing>>,
}

/// A call that passes messages, for errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passing {
    pub(super) name: &'static str,
    /// The ranks to which and from which, by their numbers in the job.
    pub(super) others: [u32; 2],
}

impl fmt::Display for Passing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.others {
            [one, other] if one == other => write!(f, "{} with rank {one}", self.name),
            [one, other] => write!(f, "{} with ranks {one} and {other}", self.name),
        }
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
        let own =
            Own { rank, heartbeat: Arc::clone(&heartbeat), calls: 0, since: Instant::now(), times };
        let hosts: Vec<String> =
            infos.iter().map(|host_info| printable(host_info.host.as_bytes())).collect();
        let listens = infos.first().and_then(|host_info| host_info.listens.clone());
        let thread = thread::Builder::new().name("watch".to_owned()).spawn(move || {
            let lost = match is_coordinator {
                true => coordinator::watch(own, star, &hosts),
                false => worker::watch(own, listens, star, &hosts),
            };
            if let Some(error) = lost {
                exit(&error, on_lost);
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

    /// Notes which call of two or three ranks the next ones are part of.
    pub(super) fn notes(&self, passing: Option<Passing>) {
        *self.heartbeat.passing.lock().unwrap_or_else(PoisonError::into_inner) = passing;
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
    /// The sender exits normally.
    Bye,
}

impl Message {
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

/// This rank, as its watch sees it.
struct Own {
    rank: Rank,
    heartbeat: Arc<Heartbeat>,
    calls: u64,
    since: Instant,
    times: Times,
}

impl Own {
    /// Notes how many calls the main thread has begun and ended, and when that changed. Returns the
    /// beat that says so.
    fn beat(&mut self) -> Vec<u8> {
        let calls = self.heartbeat.calls.load(Ordering::Relaxed);
        if calls != self.calls {
            (self.calls, self.since) = (calls, Instant::now());
        }
        Message::Beat { calls }.bytes()
    }

    fn has_ended(&self) -> bool {
        self.heartbeat.ended.load(Ordering::Relaxed)
    }

    /// Returns whether the main thread has waited so long that rank 0 will no longer name a late
    /// rank.
    fn has_waited_in_vain(&self, now: Instant) -> bool {
        self.calls % 2 == 1 && now - self.since >= patience(self.times)
    }

    fn late(&self, rank: u32, hosts: &[String]) -> CollectiveError {
        CollectiveError::TimedOut {
            rank,
            host: host(rank, hosts),
            seconds: self.times.silence.as_secs_f64(),
        }
    }

    fn some_rank_is_late(&self) -> CollectiveError {
        let passing = *self.heartbeat.passing.lock().unwrap_or_else(PoisonError::into_inner);
        let call = passing.map_or("a call of all ranks".to_owned(), |passing| passing.to_string());
        CollectiveError::SomeTimedOut { seconds: self.times.silence.as_secs_f64(), call }
    }
}

fn host(rank: u32, hosts: &[String]) -> String {
    hosts.get(rank as usize).cloned().unwrap_or_default()
}

/// Describes why a rank is lost whose connection closed or failed.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => {
            "its connection was closed: the process exited or was killed".to_owned()
        }
        _ => format!("its connection broke: {error}"),
    }
}

#[cfg(test)]
mod tests {
    //! Watches of several ranks in one process, without MPI.

    use std::io::Write;
    use std::net::{Ipv4Addr, TcpStream};
    use std::sync::mpsc::{self, Receiver};

    use super::*;
    use crate::rendezvous::handshake::{ConnectionKey, Purpose};

    const TIMEOUT: Duration = Duration::from_secs(6);
    const LONG: Duration = Duration::from_secs(1200);

    /// The watches of several ranks, each in its own thread, and what each one finds.
    struct Ranks {
        heartbeats: Vec<Arc<Heartbeat>>,
        found: Vec<Receiver<Option<String>>>,
        port: u16,
    }

    impl Ranks {
        fn new(size: u32) -> Ranks {
            Ranks::after(size, |_| {})
        }

        /// Like `Ranks::new`, but calls `before` with rank 0's port before the other ranks start.
        fn after(size: u32, before: impl FnOnce(u16)) -> Ranks {
            Ranks::start(size, size, before)
        }

        /// Starts only the first `present` ranks of `size`.
        fn start(size: u32, present: u32, before: impl FnOnce(u16)) -> Ranks {
            let mut before = Some(before);
            let hosts: Vec<String> = (0..size).map(|rank| format!("node{rank}")).collect();
            let mut socket = Socket::open();
            let mut listens = socket.as_ref().and_then(Socket::listener_info).unwrap();
            listens.addresses = vec![Ipv4Addr::LOCALHOST.into()];
            let mut ranks = Ranks { heartbeats: Vec::new(), found: Vec::new(), port: listens.port };
            for rank in 0..present {
                if rank == 1
                    && let Some(before) = before.take()
                {
                    before(listens.port);
                }
                let heartbeat = Arc::new(Heartbeat::default());
                let (tell, found) = mpsc::channel();
                ranks.heartbeats.push(Arc::clone(&heartbeat));
                ranks.found.push(found);
                let rank = Rank::new(rank, size).unwrap();
                let own = Own {
                    rank,
                    heartbeat,
                    calls: 0,
                    since: Instant::now(),
                    times: Times::of(TIMEOUT),
                };
                let (socket, listens, hosts) = (socket.take(), listens.clone(), hosts.clone());
                thread::spawn(move || {
                    let times = own.times;
                    let lost = match socket.map(|socket| socket.star(times, size).unwrap()) {
                        Some(star) => coordinator::watch(own, star, &hosts),
                        None => {
                            worker::watch(own, Some(listens), Star::new(times).unwrap(), &hosts)
                        }
                    };
                    tell.send(lost.map(|error| error.to_string()))
                });
            }
            // Let all ranks connect.
            thread::sleep(TIMEOUT / 2);
            ranks
        }

        fn calls(&self, calls: &[u64]) {
            for (heartbeat, &calls) in self.heartbeats.iter().zip(calls) {
                heartbeat.calls.store(calls, Ordering::Relaxed);
            }
        }

        fn end(&self) {
            for heartbeat in &self.heartbeats {
                heartbeat.ended.store(true, Ordering::Relaxed);
            }
        }

        fn found(&self) -> Vec<Option<String>> {
            self.found.iter().map(|found| found.recv_timeout(LONG).unwrap()).collect()
        }
    }

    #[test]
    fn no_rank_is_missed_when_all_ranks_exit() {
        let ranks = Ranks::new(4);
        // No rank is inside a call (the counts are even), so none is late even after the timeout.
        ranks.calls(&[6, 6, 2, 8]);
        thread::sleep(2 * TIMEOUT);
        ranks.end();
        assert_eq!(ranks.found(), [const { None }; 4]);
    }

    #[test]
    fn the_rank_that_has_not_come_to_a_call_is_named_by_all() {
        for late in 0..3 {
            let ranks = Ranks::new(3);
            let mut calls = [7; 3];
            calls[late] = 6;
            ranks.calls(&calls);
            let text = format!("rank {late} on node{late} did not arrive within 6 s: it hangs");
            for found in ranks.found() {
                assert!(
                    found.as_ref().is_some_and(|found| found.starts_with(&text)),
                    "{found:?}, {text}"
                );
            }
        }
    }

    #[test]
    fn a_rank_that_hangs_between_messages_is_named_although_it_made_more_calls_than_those_who_wait()
    {
        let ranks = Ranks::new(3);
        ranks.calls(&[7, 100, 5]);
        for found in ranks.found() {
            let text = "rank 1 on node1 did not arrive within 6 s: it hangs";
            assert!(found.as_ref().is_some_and(|found| found.starts_with(text)), "{found:?}");
        }
    }

    #[test]
    fn if_all_ranks_wait_none_is_named_although_one_made_fewer_calls() {
        for calls in [[7, 7], [3, 7], [7, 3]] {
            check_that_none_is_named(&calls);
        }
    }

    fn check_that_none_is_named(calls: &[u64; 2]) {
        let ranks = Ranks::new(2);
        ranks.calls(calls);
        let passing = Passing { name: "send", others: [1, 1] };
        *ranks.heartbeats[0].passing.lock().unwrap() = Some(passing);
        let found = ranks.found();
        let waits = |found: &Option<String>, call| {
            let text = format!(
                "a rank did not arrive within 6 s; which one is unknown, because this rank \
                 waited in {call}: "
            );
            found.as_ref().is_some_and(|found| found.starts_with(&text))
        };
        let all = waits(&found[0], "send with rank 1") && waits(&found[1], "a call of all ranks");
        assert!(all, "{found:?}");
    }

    #[test]
    fn the_only_rank_that_never_connected_is_named_if_all_others_wait() {
        let ranks = Ranks::start(3, 2, |_| {});
        ranks.calls(&[7, 7]);
        for found in ranks.found() {
            let is_named = |found: &String| {
                found.starts_with("rank 2 on node2 did not arrive within 6 s: it hangs")
            };
            assert!(found.as_ref().is_some_and(is_named), "{found:?}");
        }
    }

    #[test]
    fn of_two_ranks_that_never_connected_none_is_named() {
        let ranks = Ranks::start(4, 2, |_| {});
        ranks.calls(&[7, 7]);
        for found in ranks.found() {
            assert!(
                found
                    .as_ref()
                    .is_some_and(|found| found.starts_with("a rank did not arrive within 6 s")),
                "{found:?}"
            );
        }
    }

    /// A thousand silent connections, and some that send what no rank sends.
    fn strangers(port: u16) -> Vec<TcpStream> {
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let mut strangers: Vec<_> = (0..1000).map(|_| connect()).collect();
        // The last one is longer than any hello.
        let greetings: [&[u8]; 5] = [
            b"GET / HTTP/1.1\r\n\r\n",
            b"mpienv\r\n",
            b"\0\0\0\x15{\"beat\":{\"calls\":1}}",
            b"",
            &[b'x'; 100_000],
        ];
        for greeting in greetings {
            let mut stranger = connect();
            // Rank 0 may have closed already.
            let _ = stranger.write_all(greeting);
            strangers.push(stranger);
        }
        strangers
    }

    #[test]
    fn strangers_give_way_and_change_nothing_and_the_port_closes_once_all_have_come() {
        let mut held = Vec::new();
        let ranks = Ranks::after(3, |port| held = strangers(port));
        let begun = Instant::now();
        let is_closed = || {
            let found = TcpStream::connect((Ipv4Addr::LOCALHOST, ranks.port));
            found.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        while !is_closed() {
            assert!(begun.elapsed() < LONG);
            thread::sleep(Duration::from_millis(10));
        }
        ranks.calls(&[6, 6, 6]);
        thread::sleep(2 * TIMEOUT);
        ranks.end();
        assert_eq!(ranks.found(), [const { None }; 3]);
    }

    /// What rank 0 finds if rank 1 completes the handshake and then calls `said`, which is a fault
    /// or not.
    fn found_after(is_fault: bool, said: impl FnOnce(&mut Star, TcpStream)) -> Option<String> {
        let socket = Socket::open().unwrap();
        let address = (Ipv4Addr::LOCALHOST, socket.listener_info().unwrap().port).into();
        let key = ConnectionKey::new(&socket.key, Purpose::Watch, 0);
        let heartbeat = Arc::new(Heartbeat::default());
        let own = Own {
            rank: Rank::new(0, 2).unwrap(),
            heartbeat: Arc::clone(&heartbeat),
            calls: 0,
            since: Instant::now(),
            times: Times::of(TIMEOUT),
        };
        let zero = thread::spawn(move || {
            let hosts = ["node0".to_owned(), "node1".to_owned()];
            let star = socket.star(own.times, 2).unwrap();
            coordinator::watch(own, star, &hosts).map(|error| error.to_string())
        });
        let channel = worker::shake_hands(address, &key, Rank::new(1, 2).unwrap()).unwrap();
        let bare = channel.stream.try_clone().unwrap();
        let mut one = Star::new(Times::of(TIMEOUT)).unwrap();
        one.add(channel).unwrap();
        one.send_to_all(&Message::Beat { calls: 0 }.bytes());
        said(&mut one, bare);
        let begun = Instant::now();
        while is_fault && !zero.is_finished() {
            assert!(begun.elapsed() < LONG, "no fault was found");
            thread::sleep(Duration::from_millis(1));
        }
        // Otherwise, give rank 0 time to find one all the same.
        thread::sleep(if is_fault { Duration::ZERO } else { TIMEOUT / 8 });
        heartbeat.ended.store(true, Ordering::Relaxed);
        zero.join().unwrap()
    }

    /// A message of the star without its tag.
    fn message(text: &[u8]) -> Vec<u8> {
        let release = [
            env!("CARGO_PKG_VERSION_MAJOR"),
            env!("CARGO_PKG_VERSION_MINOR"),
            env!("CARGO_PKG_VERSION_PATCH"),
        ];
        let version = release.map(|part| part.parse::<u16>().unwrap().to_be_bytes());
        let length = (text.len() as u32).to_be_bytes();
        [b"mpienv\r\n", &[0, 7][..], version.as_flattened(), &[10], &length, text].concat()
    }

    #[test]
    fn a_message_to_the_watch_that_was_changed_or_made_up_is_noticed_and_its_rank_is_named() {
        assert_eq!(
            found_after(false, |one, _| one.send_to_all(&Message::Beat { calls: 1 }.bytes())),
            None
        );
        let made_up = |text: &[u8]| [&message(text)[..], &[7; 32]].concat();
        for bytes in [
            made_up(b"{\"beat\":{\"calls\":1}}"),
            made_up(b"\"bye\""),
            made_up(b""),
            vec![0xff; 100],
        ] {
            let found = found_after(true, |_, mut bare| bare.write_all(&bytes).unwrap()).unwrap();
            let text = "rank 1 on node1 is lost: its connection broke: a message was changed, repeated or left out on the way";
            assert_eq!(found, text);
        }
    }

    #[test]
    fn another_jobs_key_opens_no_watch() {
        let socket = Socket::open().unwrap();
        let address = (Ipv4Addr::LOCALHOST, socket.listener_info().unwrap().port).into();
        let hosts = ["node0".to_owned(), "node1".to_owned()];
        let heartbeat = Arc::new(Heartbeat::default());
        let (rank, times) = (Rank::new(0, 2).unwrap(), Times::of(TIMEOUT));
        let own =
            Own { rank, heartbeat: Arc::clone(&heartbeat), calls: 0, since: Instant::now(), times };
        let zero = thread::spawn(move || {
            coordinator::watch(own, socket.star(times, 2).unwrap(), &hosts).is_none()
        });
        for (key, purpose) in [([8; 32], Purpose::Watch), ([8; 32], Purpose::Collective)] {
            let key = ConnectionKey::new(&key, purpose, 0);
            assert!(worker::shake_hands(address, &key, Rank::new(1, 2).unwrap()).is_err());
        }
        heartbeat.ended.store(true, Ordering::Relaxed);
        assert!(zero.join().unwrap());
    }
}
