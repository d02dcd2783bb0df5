//! The first node's side: receives all nodes' events, decides, and sends orders to all nodes.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use super::{bytes, said};
use crate::launch::attempts::coordinator::Coordinator;
use crate::launch::attempts::mailbox::Mailbox;
use crate::launch::attempts::message::{Event, Order};
use crate::launch::attempts::own_host;
use mpienv_rendezvous::seam::star::{Heard, Star};

/// How long the other nodes may take to close their connections once the job is over.
const CLOSING: Duration = Duration::from_secs(5);

/// All nodes, as the meeting identified them.
pub(super) struct Hub {
    pub star: Star,
    /// The hosts of all nodes, by number.
    pub hosts: Vec<String>,
    pub coordinator: Coordinator,
    /// For the orders for this node.
    pub mailbox: Arc<Mailbox>,
    pub node_timeout: Duration,
}

impl Hub {
    /// Decides for all nodes until the job is over.
    pub(super) fn serve(mut self, own: &Receiver<Event>) {
        loop {
            let mut events = match self.star.turn(&[]) {
                Ok(heard) => {
                    heard.into_iter().filter_map(|(node, heard)| self.event(node, heard)).collect()
                }
                Err(error) => vec![(0, lost(own_host(), error.to_string()))],
            };
            let end = loop {
                match own.try_recv() {
                    Ok(event) => events.push((0, event)),
                    Err(end) => break end,
                }
            };
            if end == TryRecvError::Disconnected {
                // If the job is not over, the other nodes must not wait.
                let reason = "mpienv failed on that node";
                events.push((0, lost(own_host(), reason.to_owned())));
            }
            for (node, event) in events {
                let Some(order) = self.coordinator.on(node, event) else { continue };
                self.star.send_to_all(&bytes(&order));
                let is_last = matches!(order, Order::Finish(_));
                self.mailbox.put(order);
                if is_last {
                    return self.star.close(CLOSING);
                }
            }
        }
    }

    fn event(&self, node: u32, heard: Heard) -> Option<(u32, Event)> {
        let event = said(heard, self.node_timeout)?.map_or_else(
            |reason| {
                let host = self.hosts.get(node as usize).map_or("an unknown host", String::as_str);
                lost(host.to_owned(), reason)
            },
            |event| of_node(node, event),
        );
        Some((node, event))
    }
}

fn lost(host: String, reason: String) -> Event {
    Event::Lost { host, reason }
}

/// A node speaks for itself only.
pub(super) fn of_node(node: u32, mut event: Event) -> Event {
    if let Event::Failed { failure, .. } = &mut event {
        failure.node = node;
    }
    event
}
