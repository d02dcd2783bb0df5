//! Rank 0: accepts every connection, distinguishes ranks from strangers, and decides when to
//! report.

mod admission;
mod blobs;
mod delivery;
mod hello;
mod liveness;
mod visitor;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::auth::{Bytes32, nonce};
use super::connections::Connections;
use super::error::{RendezvousError, seconds};
use super::frame::{Message, Secret};
use super::listen::{Addresses, listen, take_over};
use super::munge::NoMunge;
use super::report::Problems;
use super::table::Row;
use super::{Channel, Meeting, Rendezvous};
use admission::Guesses;
use blobs::Blobs;
use liveness::Liveness;
use mpienv_core::Port;
use visitor::{Connection, Stage, Visitor};

/// After the first problem, how long rank 0 waits for missing ranks, so that they get the report
/// too.
const SETTLE: Duration = Duration::from_secs(3);
/// How long a rank whose connection broke may take to reconnect.
const RETURN: Duration = Duration::from_secs(1);
/// How long rank 0 waits before it says which ranks are late.
const LATE: Duration = Duration::from_secs(10);
/// Size of the read buffer, which all connections share.
const SCRATCH: usize = 64 * 1024;

/// Makes rank 0's reply to the ranks that do not ask for the table.
pub(super) type Reply<'a> = &'a mut dyn FnMut(&Meeting) -> Vec<u8>;

/// What rank 0 gets once all ranks have met. The connections are included only if they stay open.
pub(super) type Served = (Meeting, Vec<Channel>);

/// Serves the meeting as rank 0.
pub(super) fn serve(
    settings: &Rendezvous,
    blob: Vec<u8>,
    answer: Reply<'_>,
) -> Result<Served, RendezvousError> {
    let own = Row { origin: None, blob: blob.into() };
    if settings.rank.size() == 1 {
        let number = nonce().map_err(RendezvousError::System)?;
        let key = settings.secret(&[]).key.of_meeting(&number);
        return Ok((Meeting::new(vec![own], own_address(settings, None), key), Vec::new()));
    }
    Server::new(settings)?.run(own, answer)
}

fn own_address(settings: &Rendezvous, seen: Option<SocketAddr>) -> SocketAddr {
    let named = settings.host.address().filter(|address| !address.is_unspecified());
    let named = named.map(|address| SocketAddr::new(address, settings.port.get()));
    named.or(seen).unwrap_or((Ipv4Addr::LOCALHOST, settings.port.get()).into())
}

/// A rank that arrived.
struct Joined {
    id: usize,
    row: Row,
    needs_table: bool,
}

struct Server<'a> {
    settings: &'a Rendezvous,
    started: Instant,
    deadline: Instant,
    connections: Connections<Visitor>,
    /// How many connections wait for their greeting.
    ungreeted: usize,
    addresses: Addresses,
    /// The default port, to listen on from this time.
    fallback_port: Option<(Port, Instant)>,
    /// When to say which ranks are late.
    late: Option<Instant>,
    /// Connections that wait for the report and belong to no rank of this meeting, oldest first.
    guests: BTreeMap<u64, usize>,
    blobs: Blobs,
    guesses: Guesses,
    joined: BTreeMap<u32, Joined>,
    /// The length of all blobs of ranks that joined.
    brought: usize,
    liveness: Liveness,
    problems: Problems,
    /// The connections of ranks with another world size, and when each gets its error, in order of
    /// arrival.
    outliers: VecDeque<(Instant, usize, u64)>,
    /// When the first and the last problem occurred.
    trouble: Option<(Instant, Instant)>,
    /// This host's address as a rank reached it, preferably not a loopback address.
    seen: Option<SocketAddr>,
    /// The failure that all ranks get, once there is one.
    failure: Option<Message>,
    /// A rank whose connection closed before all its bytes were sent.
    stuck: Option<(u32, IpAddr)>,
    /// Whether all have met, and what the others send is not for this meeting.
    stays_connected: bool,
    secret: Secret,
    /// This meeting's unique number.
    number: Bytes32,
    scratch: Box<[u8]>,
}

impl<'a> Server<'a> {
    fn new(settings: &'a Rendezvous) -> Result<Server<'a>, RendezvousError> {
        let started = Instant::now();
        let deadline = started + settings.timeout;
        let fallback_port =
            settings.fallback_port().map(|(port, before)| (port, deadline - before));
        let (taken, (addresses, elsewhere)) = match &settings.listener {
            Some(listener) => {
                let (listener, addresses, port) = take_over(listener)?;
                (Some((listener, port)), (addresses, None))
            }
            None => (None, Addresses::of(&settings.host, settings.bind)),
        };
        let mut server = Server {
            settings,
            started,
            deadline,
            connections: Connections::new().map_err(RendezvousError::System)?,
            ungreeted: 0,
            addresses,
            fallback_port,
            late: settings.names_the_late.map(|_| started + LATE),
            guests: BTreeMap::new(),
            blobs: Blobs::default(),
            guesses: Guesses::default(),
            joined: BTreeMap::new(),
            brought: 0,
            liveness: Liveness::default(),
            problems: Problems::default(),
            outliers: VecDeque::new(),
            trouble: None,
            seen: None,
            failure: None,
            stuck: None,
            stays_connected: false,
            secret: settings.new_secret(deadline)?,
            number: nonce().map_err(RendezvousError::System)?,
            scratch: vec![0; SCRATCH].into(),
        };
        server.problems.elsewhere = elsewhere;
        server.problems.hosts = Arc::clone(&settings.hosts);
        server.problems.has_munge = !server.secret.credential.is_empty();
        if let Err(NoMunge::Unanswered(reason)) = settings.own_munge() {
            server.problems.no_munge = Some(reason.clone());
        }
        match taken {
            Some((listener, port)) => {
                server.connections.listen(listener, port).map_err(RendezvousError::System)?;
            }
            None => server.listen(settings.port)?,
        }
        Ok(server)
    }

    fn listen(&mut self, port: Port) -> Result<(), RendezvousError> {
        for listener in listen(&self.addresses, port)? {
            self.connections.listen(listener, port).map_err(RendezvousError::System)?;
        }
        Ok(())
    }

    fn run(mut self, own: Row, answer: Reply<'_>) -> Result<Served, RendezvousError> {
        self.brought = own.blob.len();
        loop {
            // First, because the last rank may join by it.
            let until_blobs = self.serve_blobs();
            let now = Instant::now();
            if self.is_complete() {
                self.probe_liveness();
                // The probe may have found that a rank was gone.
                if self.is_complete() && self.liveness.is_done() {
                    return self.succeed(own, answer);
                }
            }
            let until = self.ends_at();
            if now >= until {
                let error = self.report(now);
                return Err(self.fail(error));
            }
            if let Some((port, _)) = self.fallback_port.take_if(|(_, from)| now >= *from) {
                // If another job uses that port, ranks that try it cannot be named.
                let _ = self.listen(port);
                continue;
            }
            if self.late.take_if(|from| now >= *from).is_some() {
                self.name_the_late(now);
            }
            let from = self.fallback_port.map(|(_, from)| from);
            let until = [from, self.late].into_iter().flatten().fold(until, Instant::min);
            let wait = (until - now).min(self.answer_outliers(Some(now))).min(until_blobs);
            if let Err(error) = self.turn(wait) {
                return Err(self.fail(error));
            }
        }
    }

    fn meeting(&self, rows: Vec<Row>) -> Meeting {
        let reached = own_address(self.settings, self.seen);
        let mut meeting = Meeting::new(rows, reached, self.secret.key.of_meeting(&self.number));
        meeting.rejected = self.problems.rejected + self.problems.outliers() as u64;
        meeting.listened = self.addresses.list();
        meeting
    }

    /// How many ranks arrived and are still there, rank 0 included.
    fn present(&self) -> usize {
        self.joined.len() + 1
    }

    /// The ranks that arrived and are still there, rank 0 included, in order.
    fn present_ranks(&self) -> Vec<u32> {
        std::iter::once(0).chain(self.joined.keys().copied()).collect()
    }

    fn size(&self) -> usize {
        usize::try_from(self.settings.rank.size()).unwrap_or(usize::MAX)
    }

    fn is_complete(&self) -> bool {
        self.present() == self.size() && self.problems.conflicts() == 0
    }

    /// When rank 0 stops waiting, as far as is known now.
    fn ends_at(&self) -> Instant {
        let deadline =
            if self.is_complete() { self.liveness.ends_at(self.deadline) } else { self.deadline };
        let Some((first, last)) = self.trouble else { return deadline };
        // Ranks with another world size stop the meeting only if they outnumber the others.
        let is_outvoted = self.problems.outliers() > self.present();
        if self.problems.conflicts() == 0 && self.problems.lost.is_empty() && !is_outvoted {
            return deadline;
        }
        let heard = self.present()
            + self.problems.conflicts()
            + self.problems.outliers()
            + self.problems.lost.len();
        let settled = match (heard >= self.size(), self.problems.lost.is_empty()) {
            (true, true) => last,
            (true, false) => last + RETURN,
            (false, _) => first + SETTLE,
        };
        settled.min(self.deadline)
    }

    fn trouble(&mut self) {
        let now = Instant::now();
        self.trouble = Some((self.trouble.map_or(now, |(first, _)| first), now));
    }

    fn report(&mut self, now: Instant) -> RendezvousError {
        let time_is_up = now >= self.deadline;
        if time_is_up {
            // Before the deadline, a connection without a complete hello may still be a rank's.
            let silent = |connection: &&Connection| {
                // One that claims a rank is named by it.
                matches!(&connection.state.stage, Stage::Unknown(hello) if hello.claimed_rank().is_none())
            };
            self.problems.silent = self.connections.iter().filter(silent).count() as u64;
            self.note_the_silent();
            self.note_the_unfinished();
        }
        // On a busy machine it is later than the limit, which is what the user knows.
        let waited = now.min(self.deadline) - self.started;
        let master = (&self.settings.host, self.settings.port);
        let size = self.settings.rank.size();
        self.problems.report(size, master, &self.present_ranks(), waited, time_is_up)
    }

    /// Says which ranks have not arrived yet, and how long rank 0 waits for them.
    fn name_the_late(&self, now: Instant) {
        let Rendezvous { host, port, rank, names_the_late, .. } = self.settings;
        let (size, joined) = (rank.size(), self.present_ranks());
        let so_far = self.problems.report(size, (host, *port), &joined, now - self.started, true);
        let so_far = so_far.to_string();
        if so_far.is_empty() {
            return;
        }
        let left = seconds(self.deadline - now);
        let end = names_the_late.unwrap_or_default();
        let line = format!("mpienv: {so_far}{end}; rank 0 waits for at most another {left}\n");
        // If stderr is closed, it cannot be said.
        let _ = io::stderr().write_all(line.as_bytes());
    }

    /// Waits for events, at most `wait`, and handles them.
    fn turn(&mut self, wait: Duration) -> Result<(), RendezvousError> {
        for id in self.connections.wait(wait).map_err(RendezvousError::System)? {
            let connection = self.connections.get(id);
            if connection.is_some_and(|it| matches!(it.state.stage, Stage::New)) {
                self.greet(id)?;
            } else {
                self.write(id, Connection::flush);
            }
            if !self.stays_connected {
                self.read(id);
            }
        }
        if self.connections.has_more { self.accept() } else { Ok(()) }
    }

    /// Waits for events and handles them as long as there is such a connection, but not beyond this
    /// time.
    fn turn_while(
        &mut self,
        until: Instant,
        is_such: impl Fn(&Connection) -> bool,
    ) -> Result<(), RendezvousError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.connections.iter().any(&is_such) {
                return Ok(());
            }
            self.turn(left)?;
        }
    }

    fn join(&mut self, id: usize, rank: u32, joined: bool) {
        self.connections.identify(id);
        let Some(connection) = self.connections.get_mut(id) else { return };
        connection.state.become_known(Stage::Member { rank, joined });
        let serial = connection.serial;
        self.blobs.forget(serial);
        if !joined {
            self.guests.insert(serial, id);
        }
        if joined && self.seen.is_none_or(|seen| seen.ip().is_loopback()) {
            self.seen = connection.stream.local_addr().ok().or(self.seen);
        }
        let left = self.deadline.saturating_duration_since(Instant::now()).as_millis();
        let (left, number) = (u32::try_from(left).unwrap_or(u32::MAX), self.number);
        self.write(id, |connection| connection.welcome(left, &number));
        if let Some(failure) = self.failure.clone() {
            self.say(id, &failure);
        }
        self.limit_guests();
    }

    /// Sends a message with a tag, which proves that the message comes from this job's rank 0.
    fn say(&mut self, id: usize, message: &Message) {
        self.write(id, |connection| connection.say(message));
    }

    /// Writes to a connection, which is closed if that fails.
    fn write(&mut self, id: usize, write: impl FnOnce(&mut Connection) -> io::Result<()>) {
        if self.connections.get_mut(id).is_some_and(|connection| write(connection).is_err()) {
            self.close(id);
        }
    }

    /// Removes a connection, and notes what its loss means for the meeting.
    fn close(&mut self, id: usize) {
        let Some(connection) = self.connections.remove(id) else { return };
        self.guests.remove(&connection.serial);
        self.blobs.forget(connection.serial);
        self.ungreeted -= usize::from(matches!(connection.state.stage, Stage::New));
        match connection.state.stage {
            Stage::New | Stage::Unknown(_) if connection.state.port == self.settings.port => {
                self.problems.rejected += 1
            }
            Stage::Member { rank, joined: true } => {
                if !connection.is_flushed() {
                    self.stuck = Some((rank, connection.peer));
                }
                if let Some(joined) = self.joined.remove(&rank) {
                    self.brought -= joined.row.blob.len();
                }
                self.liveness.forget(rank);
                self.problems.lost.insert(rank, connection.peer);
                self.trouble();
            }
            Stage::New | Stage::Unknown(_) | Stage::Member { .. } | Stage::Closing => {}
        }
    }
}
