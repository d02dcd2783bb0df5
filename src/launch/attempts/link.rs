//! Connects this node with the other nodes of the job: events go out, orders come in.

use std::sync::{Arc, Mutex, PoisonError};

use super::coordinator::Coordinator;
use super::mailbox::Mailbox;
use super::message::Event;
use super::nodes::Nodes;

/// The connection to the coordinator, which decides for all nodes.
#[derive(Debug)]
pub(crate) struct Link {
    /// The number of this node.
    pub(super) node: u32,
    /// The orders that have come.
    pub(crate) mailbox: Arc<Mailbox>,
    route: Route,
}

#[derive(Debug)]
enum Route {
    /// This node is the only one.
    Alone(Box<Mutex<Coordinator>>),
    Several(Nodes),
}

impl Link {
    /// `coordinator`: that of a single node, which it knows as node 0.
    pub(super) fn alone(node: u32, coordinator: Coordinator) -> Link {
        Link {
            node,
            mailbox: Arc::default(),
            route: Route::Alone(Box::new(Mutex::new(coordinator))),
        }
    }

    pub(super) fn several(node: u32, nodes: Nodes, mailbox: Arc<Mailbox>) -> Link {
        Link { node, mailbox, route: Route::Several(nodes) }
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
            Route::Several(nodes) => nodes.send(event),
        }
    }
}
