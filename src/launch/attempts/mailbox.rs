//! Orders that have arrived and have not been carried out.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::message::{Haste, Order};
use crate::launch::stall::Stall;
use crate::launch::supervisor::Waker;

/// Orders for this node.
#[derive(Debug, Default)]
pub(crate) struct Mailbox(Mutex<Content>);

#[derive(Debug, Default)]
struct Content {
    /// The attempt whose workers must be stopped.
    stop: Option<(u32, Haste)>,
    /// A stall that was not reported.
    stall: Option<Box<Stall>>,
    /// The round of looks at the workers that was asked for.
    look: Option<u32>,
    /// Other orders, in the order of their arrival.
    orders: VecDeque<Order>,
    waker: Option<Waker>,
}

impl Mailbox {
    pub(super) fn put(&self, order: Order) {
        let mut content = self.lock();
        match order {
            Order::Stop { again, haste, stall } => {
                content.stop = Some((again, haste));
                content.stall = stall.or(content.stall.take());
            }
            Order::Look { round } => content.look = Some(round),
            order => content.orders.push_back(order),
        }
        content.waker.iter().for_each(Waker::wake);
    }

    /// Takes the stall that is to be reported.
    pub(crate) fn take_stall(&self) -> Option<Box<Stall>> {
        self.lock().stall.take()
    }

    /// Takes the round of looks at the workers that was asked for.
    pub(crate) fn take_look(&self) -> Option<u32> {
        self.lock().look.take()
    }

    /// Takes the next order, other than those to stop or to look.
    pub(super) fn take(&self) -> Option<Order> {
        self.lock().orders.pop_front()
    }

    /// Returns how soon the workers of this attempt must be stopped, if they must.
    pub(crate) fn stop(&self, again: u32) -> Option<Haste> {
        let content = self.lock();
        let stop = content.stop.filter(|(of, _)| *of == again).map(|(_, haste)| haste);
        let is_over = || content.orders.iter().any(|order| matches!(order, Order::Finish(_)));
        stop.or_else(|| is_over().then_some(Haste::Failure))
    }

    /// Sets what an order wakes from now on.
    pub(super) fn wake(&self, waker: Waker) {
        self.lock().waker = Some(waker);
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
