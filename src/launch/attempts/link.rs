//! Connects this node with the other nodes of the job: events go out, orders come in.

use std::sync::{Arc, Mutex, PoisonError};

use super::coordinator::Coordinator;
use super::mailbox::Mailbox;
use super::message::{Event, Haste, Order};
use super::nodes::Nodes;
use crate::launch::stall::Stall;
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
            Route::Several(nodes) => nodes.send(event),
        }
    }

    /// Returns how soon the workers of this attempt must be stopped, if they must.
    pub(crate) fn stop(&self, again: u32) -> Option<Haste> {
        self.mailbox.stop(again)
    }

    /// Takes the round of looks at the workers that was asked for.
    pub(crate) fn take_look(&self) -> Option<u32> {
        self.mailbox.take_look()
    }

    /// Takes the stall that this node is to report.
    pub(crate) fn take_stall(&self) -> Option<Box<Stall>> {
        self.mailbox.take_stall()
    }

    pub(super) fn take(&self) -> Option<Order> {
        self.mailbox.take()
    }

    pub(super) fn wake(&self, waker: Waker) {
        self.mailbox.wake(waker);
    }
}
