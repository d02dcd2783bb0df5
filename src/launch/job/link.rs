//! Connects this node with the other nodes of the job: events go out, orders come in.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::coordinator::Coordinator;
use super::message::{Event, Order, Urgency};
use super::nodes::Nodes;
use crate::stall::Stall;
use crate::supervisor::Waker;

/// The connection to the coordinator, which decides for all nodes.
#[derive(Debug)]
pub(crate) struct Link {
    /// The number of this node.
    pub(super) node: u32,
    /// The orders that have come.
    pub(crate) mailbox: Arc<Mailbox>,
    pub(super) route: Route,
}

#[derive(Debug)]
pub(super) enum Route {
    /// This node is the only one. Its coordinator knows it as node 0.
    Alone(Box<Mutex<Coordinator>>),
    Several(Nodes),
}

impl Link {
    /// Returns whether this process reports for the whole job.
    pub(super) fn reports_for_all(&self) -> bool {
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

/// Orders for this node.
#[derive(Debug, Default)]
pub(crate) struct Mailbox(Mutex<Content>);

#[derive(Debug, Default)]
struct Content {
    /// The attempt whose workers must be stopped.
    stop: Option<(u32, Urgency)>,
    /// A stall that was not reported.
    stall: Option<Box<Stall>>,
    /// The round of looks at the workers that was asked for.
    inspect: Option<u32>,
    /// Other orders, in the order of their arrival.
    orders: VecDeque<Order>,
    waker: Option<Waker>,
}

impl Mailbox {
    pub(super) fn put(&self, order: Order) {
        let mut content = self.lock();
        match order {
            Order::Stop { again, urgency, stall } => {
                content.stop = Some((again, urgency));
                content.stall = stall.or(content.stall.take());
            }
            Order::Inspect { round } => content.inspect = Some(round),
            order => content.orders.push_back(order),
        }
        content.waker.iter().for_each(Waker::wake);
    }

    /// Takes the stall that is to be reported.
    pub(crate) fn take_stall(&self) -> Option<Box<Stall>> {
        self.lock().stall.take()
    }

    /// Takes the round of looks at the workers that was asked for.
    pub(crate) fn take_inspection(&self) -> Option<u32> {
        self.lock().inspect.take()
    }

    /// Takes the next order, other than those to stop or to look.
    pub(super) fn take(&self) -> Option<Order> {
        self.lock().orders.pop_front()
    }

    /// Returns how soon the workers of this attempt must be stopped, if they must.
    pub(crate) fn stop(&self, again: u32) -> Option<Urgency> {
        let content = self.lock();
        let stop = content.stop.filter(|(of, _)| *of == again).map(|(_, urgency)| urgency);
        let is_over = || content.orders.iter().any(|order| matches!(order, Order::Finish(_)));
        stop.or_else(|| is_over().then_some(Urgency::Failure))
    }

    /// Sets what an order wakes from now on.
    pub(super) fn wake(&self, waker: Waker) {
        self.lock().waker = Some(waker);
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
