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

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::coordinator::{Coordinator, Event};
use super::link::Link;
use super::mailbox::Mailbox;
use super::own_host;
use crate::cluster::info::ClusterInfo;
use crate::launch::error::LaunchError;
use crate::launch::wire;
use crate::rendezvous::star::{Heard, Star, Times, Waker};
use crate::rendezvous::{self, Gathered, Rendezvous};
use mpienv_core::seam::InfoSeam as _;

/// The stack size of the thread that serves the connections.
const STACK: usize = 256 << 10;

/// What a launch contributes to the meeting.
pub(crate) struct Meeting<'a> {
    /// The only process on this node.
    pub info: &'a ClusterInfo,
    /// How often the platform had restarted the job, as this node knows it.
    pub base: u32,
    pub most: u32,
    /// How long all launches may take to arrive.
    pub arrival: Duration,
    /// How long a node may be silent.
    pub silence: Duration,
}

/// What a launch sends to the meeting.
#[derive(Serialize, Deserialize)]
struct Introduction {
    /// How often the platform had restarted the job, as this node knows it.
    base: u32,
    #[serde(deserialize_with = "wire::text")]
    host: String,
}

/// The answer of the first launch.
#[derive(Serialize, Deserialize)]
struct Terms {
    /// The highest restart count of any node.
    base: u32,
    /// How long a node may be silent.
    #[serde(with = "wire::milliseconds")]
    silence: Duration,
}

/// Waits for the launches of all nodes, and connects them. Also returns how often the platform had
/// restarted the job.
pub(crate) fn meet(meeting: Meeting<'_>) -> Result<(Link, u32), LaunchError> {
    let Meeting { info, base, most, arrival, silence } = meeting;
    let (rank, port) = (info.rank(), info.launchers_port());
    let master = info.master_addr()?.clone();
    let rendezvous = Rendezvous::of(info, master.clone(), port).timeout(arrival);
    let agreed = Cell::new(base);
    let answer = |all: &rendezvous::Meeting| {
        let brought = all.members().iter().filter_map(introduction);
        agreed.set(brought.map(|other| other.base).max().unwrap_or(base));
        bytes(&Terms { base: agreed.get(), silence })
    };
    let own = bytes(&Introduction { base, host: own_host() });
    let met = rendezvous::stay_connected(&rendezvous, own, answer);
    let (gathered, channels) = met.map_err(|error| LaunchError::NotMet { port, error })?;
    let (terms, hosts) = match gathered {
        Gathered::All(all) => {
            let host = |member| introduction(member).map(|other| other.host).unwrap_or_default();
            (Terms { base: agreed.get(), silence }, all.members().iter().map(host).collect())
        }
        Gathered::Reply(reply) => {
            let terms = serde_json::from_slice(&reply).map_err(|_| {
                LaunchError::Nodes(io::Error::other("the first node's answer cannot be read"))
            })?;
            (terms, Vec::new())
        }
    };
    let mailbox = Arc::<Mailbox>::default();
    let connect = || {
        let mut star = Star::new(Times::of(terms.silence))?;
        channels.into_iter().try_for_each(|channel| star.add(channel))?;
        let post = Arc::clone(&mailbox);
        if rank.is_first() {
            let coordinator = Coordinator::new(rank.size(), most);
            let hub = first::Hub { star, hosts, coordinator, mailbox: post, silence };
            Nodes::start(hub.star.waker(), move |events| hub.serve(&events))
        } else {
            let (host, silence) = (master.to_string(), terms.silence);
            let member = other::Member { star, host, mailbox: post, silence };
            Nodes::start(member.star.waker(), move |events| member.serve(&events))
        }
    };
    let nodes = connect().map_err(LaunchError::Nodes)?;
    Ok((Link::several(rank.index(), nodes, mailbox), terms.base))
}

fn introduction(member: &rendezvous::Member) -> Option<Introduction> {
    serde_json::from_slice(member.blob()).ok()
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
        let thread = thread::Builder::new().name("nodes".to_owned()).stack_size(STACK);
        let thread = thread.spawn(move || serve(from))?;
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
fn said<T: DeserializeOwned>(heard: Heard, silence: Duration) -> Option<Result<T, String>> {
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
            format!("nothing was heard from it for {} s", silence.as_secs_f64())
        }
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => "its mpienv closed the connection".to_owned(),
        _ => error.to_string(),
    }))
}
