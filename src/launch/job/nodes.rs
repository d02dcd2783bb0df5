//! Connects the launches of all nodes: they meet once, and each then stays connected to that of the
//! first node.
//!
//! They meet through the rendezvous, with keys that ranks do not have. Their connections stay open
//! until the job is over. They carry events to the first node, orders from it, and heartbeats. No
//! process can join later. `mpienv::guide::wire_format` specifies the messages.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::coordinator::Coordinator;
use super::link::{Link, Mailbox, Route};
use super::message::{self, Event, Introduction, NodeOptions, Order, Time, Verdict};
use super::own_host;
use crate::error::LaunchError;
use crate::process::small_thread;
use crate::tell;
use mpienv_core::seam::SIMULATED;
use mpienv_core::{ClusterInfo, Environment};
use mpienv_rendezvous::seam::star::{Heard, Star, Waker};
use mpienv_rendezvous::seam::{Role, stay_connected, why_no_munge};
use mpienv_rendezvous::{Gathered, Meeting, Member, Rendezvous};

/// How long the other nodes may take to close their connections once the job is over.
const CLOSING: Duration = Duration::from_secs(5);
/// How long the launches of all nodes may take to arrive if they have not met before.
pub const ARRIVAL: Duration = Duration::from_secs(600);
/// How long the first node waits for the others before it says so, and how long another node does,
/// which speaks only if the first one has not: it may be the one that is missing.
const SAID_AFTER: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];

/// Waits for the launches of all nodes, of which `info` is this one, and connects them. Also
/// returns how often the platform had restarted the job. If they have met before, they must arrive
/// within `arrival`.
pub(super) fn meet(
    info: &ClusterInfo,
    own: &Introduction,
    arrival: Option<Duration>,
) -> Result<(Link, u32), LaunchError> {
    let (rank, port) = (info.rank(), info.launchers_port());
    let NodeOptions { max_restarts, node_timeout: Time(node_timeout), .. } = own.options;
    let master = info.master_addr()?.clone();
    let patience = arrival.unwrap_or(ARRIVAL);
    let rendezvous = Rendezvous::of(info, master.clone(), port).timeout(patience);
    let waiting = say_if_late(info, &master.with_port(port), patience);
    let answer = |all: &Meeting| message::write(&agree(all.members()).map(|(base, _)| base));
    let met =
        stay_connected(&rendezvous, Role::Launches, node_timeout, message::write(own), answer);
    drop(waiting);
    if let Some(reason) = why_no_munge(&rendezvous)
        && rank.is_first()
        && arrival.is_none()
        && info.secret_source().is_none()
    {
        tell(&format!(
            "processes of other users can meet the nodes' `mpienv launch`, because MPIENV_AUTH=auto \
             is set, and {reason}; start munged on every node, or set MPIENV_TOKEN_FILE"
        ));
    }
    let (gathered, star) = met.map_err(|error| LaunchError::NotMet { port, error })?;
    let agreed = match gathered {
        Gathered::All(all) => agree(all.members()),
        Gathered::Reply(reply) => message::read::<Result<u32, String>>(&reply)
            .map_err(|_| io::Error::other("the first node's answer cannot be read"))
            .map_err(LaunchError::Nodes)?
            .map(|base| (base, Vec::new())),
    };
    let (base, hosts) = agreed.map_err(|reason| LaunchError::Mismatch { reason })?;
    let mailbox = Arc::<Mailbox>::default();
    let star = star.map_err(LaunchError::Nodes)?;
    let waker = star.waker();
    let connections = Connections { star, mailbox: Arc::clone(&mailbox), node_timeout };
    let nodes = if rank.is_first() {
        tell_if_on_one_host(hosts.iter().map(String::as_str));
        let coordinator = Coordinator::new(rank.size(), max_restarts, own.options.stall_timeout);
        Nodes::start(waker, move |own| connections.serve_first(&own, coordinator, &hosts))
    } else {
        Nodes::start(waker, move |own| connections.serve_other(&own, &master.to_string()))
    };
    let route = Route::Several(nodes.map_err(LaunchError::Nodes)?);
    Ok((Link { node: rank.index(), mailbox, route }, base))
}

/// Says on stderr that the other nodes are late, unless the result is dropped before.
fn say_if_late(info: &ClusterInfo, meeting_point: &str, patience: Duration) -> Option<Sender<()>> {
    let (node, nodes) = (info.rank().index(), info.world_size());
    let after = SAID_AFTER[usize::from(node > 0)];
    let line = format!(
        "node {node} has waited {} s for `mpienv launch` of the other nodes at {meeting_point}, and \
         waits for at most {} s: start it on all {nodes} nodes with the same --max-restarts and \
         --stall-timeout; if it runs there, a firewall may block this port, which need not be in \
         MPIENV_PORT_RANGE",
        after.as_secs(),
        patience.as_secs_f64()
    );
    let (waiting, over) = mpsc::channel();
    let say = move || {
        if over.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
            tell(&line);
        }
    };
    small_thread("late").and_then(|thread| thread.spawn(say)).ok()?;
    Some(waiting)
}

/// Returns the highest restart count and the hosts of all nodes, or which two nodes differ.
fn agree(members: &[Member]) -> Result<(u32, Vec<String>), String> {
    let read = |(node, member): (usize, &Member)| {
        let other = "runs another version of mpienv; use the same on every node";
        message::read::<Introduction>(member.blob())
            .map_err(|_| format!("node {node} ({}) {other}", member.address()))
    };
    let all: Vec<Introduction> = members.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    if let Some(differing) = nodes_differ(all.iter().map(|one| (&*one.host, &one.options))) {
        return Err(format!("{differing}; {SAME_OPTIONS}"));
    }
    let base = all.iter().fold(0, |base, one| base.max(one.base));
    Ok((base, all.into_iter().map(|one| one.host).collect()))
}

/// The remedy for nodes that differ.
pub const SAME_OPTIONS: &str = "pass one of the two on every node";

/// Returns the first option that a node has and the next one has not. Each node comes with its host
/// and its options.
pub fn nodes_differ<'a>(
    nodes: impl Iterator<Item = (&'a str, &'a NodeOptions)> + Clone,
) -> Option<String> {
    let next = nodes.clone().skip(1);
    (0..).zip(nodes.zip(next)).find_map(|(node, ((host, own), (next_host, next)))| {
        let mut both = own.texts().into_iter().zip(next.texts());
        let (option, other) = both.find(|(option, other)| option != other)?;
        let next_node: u32 = node + 1;
        Some(format!(
            "node {node} ({host}) has {option}, and node {next_node} ({next_host}) has {other}"
        ))
    })
}

/// Says on stderr that two nodes are on one of these hosts. The job goes on: their workers may
/// see different devices, as in containers.
pub fn tell_if_on_one_host<'a>(hosts: impl IntoIterator<Item = &'a str>) {
    if Environment::current().get(SIMULATED).is_some() {
        return;
    }
    let mut first: BTreeMap<&str, u32> = BTreeMap::new();
    for (node, host) in (0..).zip(hosts) {
        if let Some(earlier) = first.insert(host, node) {
            return tell(&format!(
                "nodes {earlier} and {node} are both on {host}: their workers have the same local \
                 ranks, so they may use the same devices and cores; start `mpienv launch` once on \
                 each host"
            ));
        }
    }
}

impl NodeOptions {
    /// Returns whether the launches of all nodes stay connected.
    pub fn is_joint(&self) -> bool {
        self.max_restarts > 0 || self.stall_timeout.is_some()
    }

    /// Returns the options as a user passes them. The last one counts only where the nodes stay
    /// connected.
    fn texts(&self) -> [String; 4] {
        let NodeOptions { workers, max_restarts, node_timeout, stall_timeout } = self;
        let or_none = |option: &str, value: Option<String>| match value {
            Some(value) => format!("{option} {value}"),
            None => format!("no {option}"),
        };
        let seconds = |time: Time| time.0.as_secs_f64().to_string();
        let restarts = (*max_restarts > 0).then(|| max_restarts.to_string());
        let node_timeout = self.is_joint().then(|| seconds(*node_timeout));
        [
            format!("--nproc-per-node {workers}"),
            or_none("--max-restarts", restarts),
            or_none("--stall-timeout", stall_timeout.map(seconds)),
            or_none("--node-timeout", node_timeout),
        ]
    }
}

/// The thread that serves the connections to the other nodes. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Nodes {
    events: Sender<Event>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Nodes {
    fn start(
        waker: Arc<Waker>,
        serve: impl FnOnce(Receiver<Event>) + Send + 'static,
    ) -> io::Result<Nodes> {
        let (events, from) = mpsc::channel();
        let thread = small_thread("nodes")?.spawn(move || serve(from))?;
        Ok(Nodes { events, waker, thread: Some(thread) })
    }

    /// Reports an event of this node.
    pub(super) fn send(&self, event: Event) {
        // If the receiver is gone, the job is over.
        let _ = self.events.send(event);
        // If the thread cannot be woken, it notices at its next heartbeat.
        let _ = self.waker.wake();
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // If the job is not over, the other nodes must not wait.
        let reason = "mpienv failed on that node".to_owned();
        self.send(Event::Lost { host: own_host(), reason });
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// This node's connections to the other nodes: of the first node to all others, and of every other
/// node to the first.
struct Connections {
    star: Star,
    /// For the orders for this node.
    mailbox: Arc<Mailbox>,
    node_timeout: Duration,
}

impl Connections {
    /// Decides for all nodes, whose hosts these are, until the job is over.
    fn serve_first(
        mut self,
        own: &Receiver<Event>,
        mut coordinator: Coordinator,
        hosts: &[String],
    ) {
        loop {
            let event = |(node, received): (u32, Result<Event, String>)| match received {
                Ok(event) => (node, from_node(node, event)),
                Err(reason) => {
                    let host = hosts.get(node as usize).map_or("an unknown host", String::as_str);
                    (node, Event::Lost { host: host.to_owned(), reason })
                }
            };
            let mut events: Vec<_> = self.turn().into_iter().map(event).collect();
            events.extend(own.try_iter().map(|event| (0, event)));
            for (node, event) in events {
                let Some(order) = coordinator.on(node, event) else { continue };
                self.star.send_to_all(&message::write(&order));
                let is_last = matches!(order, Order::Finish(_));
                self.mailbox.put(order);
                if is_last {
                    return self.star.close(CLOSING);
                }
            }
        }
    }

    /// Passes on events to the first node, on this host, and its orders, until the job is over or
    /// this node leaves it.
    fn serve_other(mut self, own: &Receiver<Event>, host: &str) {
        let lost = |reason| Order::Finish(Verdict::Lost { node: 0, host: host.to_owned(), reason });
        loop {
            for (_, received) in self.turn() {
                let order = received.unwrap_or_else(lost);
                let is_last = matches!(order, Order::Finish(_));
                self.mailbox.put(order);
                if is_last {
                    return;
                }
            }
            for event in own.try_iter() {
                // Closing the connection says so.
                if matches!(event, Event::Lost { .. }) {
                    return;
                }
                self.star.send_to_all(&message::write(&event));
            }
        }
    }

    /// Waits, and returns what nodes have sent, or why they are lost.
    fn turn<T: DeserializeOwned>(&mut self) -> Vec<(u32, Result<T, String>)> {
        let heard = self.star.turn(&[]).unwrap_or_else(|error| vec![(0, Heard::Lost(error))]);
        let received = |heard: Heard| match heard {
            Heard::Came => None,
            Heard::Said(body) => {
                let unreadable = |_| self.why_lost(&io::ErrorKind::InvalidData.into());
                Some(message::read(&body).map_err(unreadable))
            }
            Heard::Lost(error) => Some(Err(self.why_lost(&error))),
        };
        heard.into_iter().filter_map(|(node, heard)| Some((node, received(heard)?))).collect()
    }

    fn why_lost(&self, error: &io::Error) -> String {
        match error.kind() {
            io::ErrorKind::TimedOut => {
                format!("nothing was heard from it for {} s", self.node_timeout.as_secs_f64())
            }
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => "its mpienv closed the connection".to_owned(),
            _ => error.to_string(),
        }
    }
}

/// A node speaks for itself only.
fn from_node(node: u32, mut event: Event) -> Event {
    if let Event::Failed { failure, .. } = &mut event {
        failure.node = node;
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::message::{FinalFailure, Urgency};
    use crate::report::{Ending, How};
    use crate::restart::{Cause, Failure, NoRestart};
    use crate::stall::RankState;

    fn failure() -> Failure {
        let stderr = Some(vec!["a".to_owned(), String::new()]);
        let cause = Cause::Worker { rank: 3, status: 9, stderr };
        let (host, after) = ("nodeB".to_owned(), Time(Duration::from_millis(1234)));
        Failure { node: 1, host, after, no_restart: Some(NoRestart::Code(126)), cause }
    }

    fn all_events() -> Vec<Event> {
        let all = [How::Asked, How::Killed, How::Exited(-3), How::Signal(11)];
        let endings: Vec<_> = all.into_iter().map(|how| Ending { rank: 7, how }).collect();
        let cause = Cause::Other { text: "cannot".to_owned() };
        let other = Failure { cause, no_restart: None, ..failure() };
        let summary = "rank 2 on node1: stopped by a signal".to_owned();
        let cause = Cause::Stalled { timeout: Time(Duration::from_secs(5)), summary };
        let stalled = Failure { cause, no_restart: None, ..failure() };
        vec![
            Event::Failing { urgency: Urgency::Signal },
            Event::Failing { urgency: Urgency::Now },
            Event::Failed { failure: Box::new(failure()), endings: endings.clone() },
            Event::Failed { failure: Box::new(other), endings: vec![] },
            Event::Failed { failure: Box::new(stalled), endings: vec![] },
            Event::Stopped { endings: endings.clone(), has_signal: true },
            Event::Done { endings },
            Event::Signal,
            Event::Silent,
            Event::Active,
            Event::Inspected {
                round: 3,
                after: Time(Duration::from_secs(9)),
                ranks: vec![RankState::waiting(2)],
            },
        ]
    }

    fn all_orders() -> Vec<Order> {
        let failed = FinalFailure {
            failure: failure(),
            endings: vec![],
            earlier: vec![],
            not_restarted: None,
        };
        let (host, reason) = ("nodeC".to_owned(), "gone".to_owned());
        vec![
            Order::Stop { again: 4, urgency: Urgency::Failure, stall: None },
            Order::Inspect { round: 3 },
            Order::Start {
                again: 5,
                pause: Time(Duration::from_secs(2)),
                failure: Box::new(failure()),
            },
            Order::Finish(Verdict::Done),
            Order::Finish(Verdict::Failed(Box::new(failed))),
            Order::Finish(Verdict::Lost { node: 2, host, reason }),
        ]
    }

    fn read<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
        message::read(body).ok()
    }

    fn event(node: u32, body: &[u8]) -> Option<Event> {
        read(body).map(|event| from_node(node, event))
    }

    fn order(body: &[u8]) -> Option<Order> {
        read(body)
    }

    #[test]
    fn events_and_orders_are_read_as_they_were_written() {
        for sent in all_events() {
            assert_eq!(event(1, &message::write(&sent)), Some(sent));
        }
        for sent in all_orders() {
            assert_eq!(order(&message::write(&sent)), Some(sent));
        }
    }

    #[test]
    fn bytes_that_are_cut_short_or_changed_are_refused_or_harmless() {
        let events = all_events().into_iter().map(|sent| message::write(&sent));
        for whole in events.chain(all_orders().iter().map(message::write)) {
            for at in 0..whole.len() {
                assert_eq!((event(1, &whole[..at]), order(&whole[..at])), (None, None));
                let mut changed = whole.clone();
                changed[at] = 0xff;
                let _ = (event(1, &changed), order(&changed));
            }
        }
        // A node does not speak of its own loss, and a pause is not longer than a clock can count.
        assert_eq!(event(1, br#"{"lost":{"host":"a","reason":"b"}}"#), None);
        let start = String::from_utf8(message::write(&all_orders()[2])).unwrap();
        assert!(order(start.replace("2000", "4294967295").as_bytes()).is_some());
        assert_eq!(order(start.replace("2000", "4294967296").as_bytes()), None);
    }

    #[test]
    fn a_node_speaks_for_itself_and_cannot_command_a_terminal() {
        let evil = || "\x1b]0;x".to_owned();
        let cause = Cause::Worker { rank: 0, status: 9, stderr: Some(vec![evil()]) };
        let failure = Box::new(Failure { host: evil(), cause, ..failure() });
        let sent = message::write(&Event::Failed { failure, endings: vec![] });
        let Some(Event::Failed { failure, .. }) = event(5, &sent) else { panic!() };
        assert_eq!((failure.node, failure.host.as_str()), (5, "\u{fffd}]0;x"));
        assert!(!failure.summary().contains('\x1b'));
    }

    #[test]
    fn why_the_nodes_did_not_meet_is_not_returned_as_a_cause_once_more() {
        use std::error::Error as _;
        let error = mpienv_rendezvous::RendezvousError::System(io::Error::other("the reason"));
        let error = LaunchError::NotMet { port: mpienv_core::Port::ONE_NODE, error };
        assert!(error.to_string().contains("the reason") && error.source().is_none(), "{error}");
    }
}
