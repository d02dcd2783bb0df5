//! Connects this node with the other nodes of the job: events go out, orders come in.

use std::sync::{Arc, Mutex, PoisonError};

use super::coordinator::Coordinator;
use super::mailbox::Mailbox;
use super::message::{Event, Haste, Order};
#[cfg(feature = "rendezvous")]
use super::nodes::Nodes;
use crate::launch::supervisor::Waker;

/// The connection to the coordinator, which decides for all nodes.
#[derive(Debug)]
pub(crate) struct Link {
    node: u32,
    mailbox: Arc<Mailbox>,
    route: Route,
}

#[derive(Debug)]
enum Route {
    /// This node is the only one.
    Alone(Mutex<Coordinator>),
    #[cfg(feature = "rendezvous")]
    Several(Nodes),
}

impl Link {
    pub(crate) fn alone(node: u32, max_restarts: u32) -> Link {
        // The coordinator of a single node knows it as node 0.
        Link {
            node,
            mailbox: Arc::default(),
            route: Route::Alone(Mutex::new(Coordinator::new(1, max_restarts))),
        }
    }

    #[cfg(feature = "rendezvous")]
    pub(super) fn several(node: u32, nodes: Nodes, mailbox: Arc<Mailbox>) -> Link {
        Link { node, mailbox, route: Route::Several(nodes) }
    }

    /// Returns the number of this node.
    pub(crate) fn node(&self) -> u32 {
        self.node
    }

    /// Returns whether this process reports for the whole job.
    pub(super) fn speaks(&self) -> bool {
        self.node == 0 || matches!(self.route, Route::Alone(_))
    }

    /// Reports what happened on this node.
    pub(crate) fn send(&self, event: Event) {
        match &self.route {
            Route::Alone(coordinator) => {
                let order = coordinator.lock().unwrap_or_else(PoisonError::into_inner).on(0, event);
                order.into_iter().for_each(|order| self.mailbox.put(order));
            }
            #[cfg(feature = "rendezvous")]
            Route::Several(nodes) => nodes.send(event),
        }
    }

    /// Returns how soon the workers of this attempt must be stopped, if they must.
    pub(crate) fn stop(&self, again: u32) -> Option<Haste> {
        self.mailbox.stop(again)
    }

    pub(super) fn take(&self) -> Option<Order> {
        self.mailbox.take()
    }

    pub(super) fn wake(&self, waker: Waker) {
        self.mailbox.wake(waker);
    }
}
