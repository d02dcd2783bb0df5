//! The first node's side: receives all nodes' events, decides, and sends orders to all nodes.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{codec, reason};
use crate::launch::attempts::coordinator::{Coordinator, Event, Order};
use crate::launch::attempts::mailbox::Mailbox;
use crate::rendezvous::{Channel, Sender as Line};
use crate::value::host_name::host_name;

/// How long the other nodes may take to close their connections once the job is over.
const CLOSING: Duration = Duration::from_secs(5);
/// The stack size of a thread that reads frames.
const STACK: usize = 128 << 10;
/// How many heartbeats are sent in the time that a node may be silent.
pub(super) const SIGNS: u32 = 4;

/// Another node, as the meeting identified it.
pub(super) struct Node {
    pub number: u32,
    pub host: String,
    pub channel: Channel,
}

/// Receives the first node's own events.
#[derive(Debug)]
pub(in crate::attempts) struct Hub {
    events: Sender<(u32, Event)>,
    thread: Option<JoinHandle<()>>,
}

impl Hub {
    /// Serves these nodes. Orders for this node go to the mailbox.
    pub(super) fn start(
        nodes: Vec<Node>,
        most: u32,
        silence: Duration,
        mailbox: Arc<Mailbox>,
    ) -> io::Result<Hub> {
        let (events, from) = mpsc::channel();
        let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX).saturating_add(1);
        let mut lines = Vec::with_capacity(nodes.len());
        for Node { number: node, host, channel } in nodes {
            let (mut line, mut receiver) = channel.open(silence)?;
            // The others wait for the first message. A node that is gone is noticed below.
            let _ = line.send(&[]);
            lines.push(line);
            let to = events.clone();
            let hear = move || {
                let error = loop {
                    match receiver.receive() {
                        // A heartbeat.
                        Ok(body) if body.is_empty() => {}
                        Ok(body) => match codec::read_event(node, &body) {
                            // If the receiver is gone, the job is over.
                            Some(event) => drop(to.send((node, event))),
                            None => break io::Error::from(io::ErrorKind::InvalidData),
                        },
                        Err(error) => break error,
                    }
                };
                let lost = Event::Lost { host, reason: reason(&error, silence) };
                // If the receiver is gone, the job is over.
                let _ = to.send((node, lost));
            };
            thread::Builder::new().name(format!("node {node}")).stack_size(STACK).spawn(hear)?;
        }
        let coordinator = Coordinator::new(count, most);
        let decide = move || decide(&mut lines, coordinator, silence / SIGNS, &mailbox, &from);
        let thread = thread::Builder::new().name("nodes".to_owned()).spawn(decide)?;
        Ok(Hub { events, thread: Some(thread) })
    }

    pub(in crate::attempts) fn send(&self, event: Event) {
        // If the receiver is gone, the job is over.
        let _ = self.events.send((0, event));
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // If the job is not over, the other nodes must not wait.
        let host = host_name().unwrap_or_default();
        self.send(Event::Lost {
            host,
            reason: "mpienv failed on that node; see its output".to_owned(),
        });
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn decide(
    nodes: &mut [Line],
    mut coordinator: Coordinator,
    sign_every: Duration,
    mailbox: &Mailbox,
    from: &Receiver<(u32, Event)>,
) {
    let mut sign_at = Instant::now() + sign_every;
    let mut closed = 0;
    loop {
        let now = Instant::now();
        if now >= sign_at {
            sign_at = now + sign_every;
            // A node that accepts nothing is noticed once it is silent.
            nodes.iter_mut().for_each(|node| drop(node.send(&[])));
        }
        let (node, event) = match from.recv_timeout(sign_at.saturating_duration_since(now)) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        closed += usize::from(node > 0 && matches!(event, Event::Lost { .. }));
        let Some(order) = coordinator.on(node, event) else { continue };
        let body = codec::order(&order);
        nodes.iter_mut().for_each(|node| drop(node.send(&body)));
        let is_last = matches!(order, Order::Finish(_));
        mailbox.put(order);
        if is_last {
            return close(nodes, closed, from);
        }
    }
}

/// Waits until the other nodes have read the last order, because closing a connection earlier may
/// lose it.
fn close(nodes: &[Line], mut closed: usize, from: &Receiver<(u32, Event)>) {
    nodes.iter().for_each(|node| node.shutdown(Shutdown::Write));
    let deadline = Instant::now() + CLOSING;
    while closed < nodes.len() {
        match from.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((node, Event::Lost { .. })) if node > 0 => closed += 1,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    nodes.iter().for_each(|node| node.shutdown(Shutdown::Both));
}
