//! Connects the launches of all nodes: they meet once, and each then stays connected to that of the
//! first node.
//!
//! They meet through the rendezvous, with keys that ranks do not have. Their connections stay open
//! until the job is over. They carry events to the first node, orders from it, and heartbeats. No
//! process can join later. `mpienv::guide::wire_format` specifies the messages.

mod first;
mod other;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::coordinator::Coordinator;
use super::mailbox::Mailbox;
use super::message::{Event, Introduction};
use crate::launch::error::LaunchError;
use crate::launch::thread::small_thread;
use mpienv_core::seam::InfoSeam as _;
use mpienv_core::{ClusterInfo, printable};
use mpienv_rendezvous::seam::star::{Heard, Star, Times, Waker};
use mpienv_rendezvous::seam::{Role, stay_connected};
use mpienv_rendezvous::{Gathered, Meeting, Member, Rendezvous};

/// How long the launches of all nodes may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(600);

/// The launches of all nodes, connected.
pub(super) struct Met {
    pub nodes: Nodes,
    /// Gets the orders for this node.
    pub mailbox: Arc<Mailbox>,
    /// How often the platform had restarted the job.
    pub base: u32,
}

/// Waits for the launches of all nodes, of which `info` is this one, and connects them.
pub(super) fn meet(info: &ClusterInfo, own: &Introduction) -> Result<Met, LaunchError> {
    let (rank, port) = (info.rank(), info.launchers_port());
    let master = info.master_addr()?.clone();
    let rendezvous = Rendezvous::of(info, master.clone(), port).timeout(ARRIVAL);
    let answer = |all: &Meeting| bytes(&agree(all.members()).map(|(base, _)| base));
    let met = stay_connected(&rendezvous, Role::Launches, bytes(own), answer);
    let (gathered, channels) = met.map_err(|error| LaunchError::NotMet { port, error })?;
    let agreed = match gathered {
        Gathered::All(all) => agree(all.members()),
        Gathered::Reply(reply) => serde_json::from_slice::<Result<u32, String>>(&reply)
            .map_err(|_| io::Error::other("the first node's answer cannot be read"))
            .map_err(LaunchError::Nodes)?
            .map(|base| (base, Vec::new())),
    };
    let mismatch = |reason: String| LaunchError::Mismatch { reason: printable(reason.as_bytes()) };
    let (base, hosts) = agreed.map_err(mismatch)?;
    let Introduction { max_restarts, node_timeout, stall_timeout, .. } = *own;
    let mailbox = Arc::<Mailbox>::default();
    let connect = || {
        let mut star = Star::new(Times::of(node_timeout))?;
        channels.into_iter().try_for_each(|channel| star.add(channel))?;
        let post = Arc::clone(&mailbox);
        if rank.is_first() {
            let coordinator = Coordinator::new(rank.size(), max_restarts, stall_timeout);
            let hub = first::Hub { star, hosts, coordinator, mailbox: post, node_timeout };
            Nodes::start(hub.star.waker(), move |events| hub.serve(&events))
        } else {
            let member =
                other::Member { star, host: master.to_string(), mailbox: post, node_timeout };
            Nodes::start(member.star.waker(), move |events| member.serve(&events))
        }
    };
    let nodes = connect().map_err(LaunchError::Nodes)?;
    Ok(Met { nodes, mailbox, base })
}

/// Returns the highest restart count and the hosts of all nodes, or which two nodes differ.
fn agree(members: &[Member]) -> Result<(u32, Vec<String>), String> {
    let read = |(node, member): (usize, &Member)| {
        let other = "runs another version of mpienv; use the same on every node";
        serde_json::from_slice::<Introduction>(member.blob())
            .map_err(|_| format!("node {node} ({}) {other}", member.address()))
    };
    let all: Vec<Introduction> = members.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    for (node, (one, next)) in all.iter().zip(all.iter().skip(1)).enumerate() {
        let mut options = one.options().into_iter().zip(next.options());
        if let Some((option, other)) = options.find(|(option, other)| option != other) {
            let (host, next_host, next_node) = (&one.host, &next.host, node + 1);
            return Err(format!(
                "node {node} ({host}) has {option}, and node {next_node} ({next_host}) has \
                 {other}; pass the same on every node"
            ));
        }
    }
    let base = all.iter().fold(0, |base, one| base.max(one.base));
    Ok((base, all.into_iter().map(|one| one.host).collect()))
}

impl Introduction {
    /// The options that must be the same on all nodes.
    fn options(&self) -> [String; 3] {
        let (max_restarts, node_timeout) = (self.max_restarts, self.node_timeout.as_secs_f64());
        let stall_timeout = self.stall_timeout.map_or_else(
            || "no --stall-timeout".to_owned(),
            |timeout| format!("--stall-timeout {}", timeout.as_secs_f64()),
        );
        [
            format!("--max-restarts {max_restarts}"),
            format!("--node-timeout {node_timeout}"),
            stall_timeout,
        ]
    }
}

/// Writes what another node reads.
fn bytes(message: &impl Serialize) -> Vec<u8> {
    // A variant that is never sent becomes what no node accepts.
    serde_json::to_vec(message).unwrap_or_default()
}

/// The thread that serves the connections to the other nodes. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Nodes {
    events: Option<Sender<Event>>,
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
        Ok(Nodes { events: Some(events), waker, thread: Some(thread) })
    }

    /// Reports an event of this node.
    pub(super) fn send(&self, event: Event) {
        // If the receiver is gone, the job is over.
        let _ = self.events.as_ref().map(|events| events.send(event));
        // If the thread cannot be woken, it notices at its next heartbeat.
        let _ = self.waker.wake();
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.events = None;
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns what another node said, or why it is lost.
fn said<T: DeserializeOwned>(heard: Heard, node_timeout: Duration) -> Option<Result<T, String>> {
    let error = match heard {
        Heard::Came => return None,
        Heard::Said(body) => match serde_json::from_slice(&body) {
            Ok(message) => return Some(Ok(message)),
            Err(_) => io::ErrorKind::InvalidData.into(),
        },
        Heard::Lost(error) => error,
    };
    Some(Err(match error.kind() {
        io::ErrorKind::TimedOut => {
            format!("nothing was heard from it for {} s", node_timeout.as_secs_f64())
        }
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => "its mpienv closed the connection".to_owned(),
        _ => error.to_string(),
    }))
}
