//! The side of every other node: sends events and heartbeats, and receives orders.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use super::{bytes, said};
use crate::launch::attempts::mailbox::Mailbox;
use crate::launch::attempts::message::{Event, Order, Verdict};
use mpienv_rendezvous::seam::star::{Heard, Star};

/// This node's connection to the first.
pub(super) struct Member {
    pub star: Star,
    pub host: String,
    /// For the orders.
    pub mailbox: Arc<Mailbox>,
    pub node_timeout: Duration,
}

impl Member {
    /// Passes on events and orders until the job is over, or this node leaves it.
    pub(super) fn serve(mut self, own: &Receiver<Event>) {
        loop {
            let heard = match self.star.turn(&[]) {
                Ok(heard) => heard,
                Err(error) => vec![(0, Heard::Lost(error))],
            };
            for order in heard.into_iter().filter_map(|(_, heard)| self.order(heard)) {
                let is_last = matches!(order, Order::Finish(_));
                self.mailbox.put(order);
                if is_last {
                    return;
                }
            }
            loop {
                match own.try_recv() {
                    Ok(event) => self.star.send_to_all(&bytes(&event)),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        }
    }

    fn order(&self, heard: Heard) -> Option<Order> {
        let lost = |reason| Verdict::Lost { node: 0, host: self.host.clone(), reason };
        Some(said(heard, self.node_timeout)?.unwrap_or_else(|reason| Order::Finish(lost(reason))))
    }
}
