//! A group whose calls a test counts or changes on their way.

use std::sync::Arc;

use mpienv::Rank;
use mpienv::collective::seam::{Call, Cancel, Message, Numbers, Reduce, Transport};
use mpienv::collective::{CollectiveError, Group};

type Result<T = ()> = std::result::Result<T, CollectiveError>;

/// What is done at the calls that move numbers. Each does nothing else by default.
pub trait Watch: Send + Sized + 'static {
    fn reduce(
        &mut self,
        transport: &mut dyn Transport,
        reduce: Reduce,
        numbers: Numbers<'_>,
    ) -> Result {
        transport.reduce(reduce, numbers)
    }

    /// Called before a reduce-scatter of so many bytes.
    fn reduce_scatters(&mut self, ranks: u32, bytes: usize) {
        let _ = (ranks, bytes);
    }

    /// Called before every rank gets so many bytes of this one.
    fn gathers(&mut self, ranks: u32, bytes: usize) {
        let _ = (ranks, bytes);
    }

    /// Called before a scatter of so many bytes.
    fn scatters(&mut self, ranks: u32, bytes: usize) {
        let _ = (ranks, bytes);
    }

    /// Returns what is done at the calls of a group that is split from this one.
    fn of_part(&self) -> Self;
}

/// Returns the group, watched.
pub fn watched(group: Group, watch: impl Watch) -> Group {
    Group::new(Box::new(Watched { transport: group.into_transport(), watch }))
}

struct Watched<W> {
    transport: Box<dyn Transport>,
    watch: W,
}

impl<W: Watch> Transport for Watched<W> {
    fn rank(&self) -> Rank {
        self.transport.rank()
    }

    fn describe(&self) -> String {
        self.transport.describe()
    }

    fn note(&mut self, made: u32) {
        self.transport.note(made);
    }

    fn reduce(&mut self, reduce: Reduce, numbers: Numbers<'_>) -> Result {
        self.watch.reduce(&mut *self.transport, reduce, numbers)
    }

    fn reduce_scatter(&mut self, reduce: Reduce, values: &[u8], part: Numbers<'_>) -> Result {
        self.watch.reduce_scatters(self.rank().size(), values.len());
        self.transport.reduce_scatter(reduce, values, part)
    }

    fn gather(&mut self, call: Call, bytes: &[u8], into: &mut [&mut [u8]]) -> Result {
        self.watch.gathers(self.rank().size(), bytes.len());
        self.transport.gather(call, bytes, into)
    }

    fn scatter(&mut self, call: Call, parts: &[&[u8]], into: &mut [&mut [u8]]) -> Result {
        self.watch.scatters(self.rank().size(), parts.iter().map(|part| part.len()).sum());
        self.transport.scatter(call, parts, into)
    }

    fn broadcast(&mut self, call: Call, bytes: &mut [u8], root: u32) -> Result {
        self.transport.broadcast(call, bytes, root)
    }

    fn pass(
        &mut self,
        send: Option<(Message, &[u8])>,
        receive: Option<(Message, &mut [u8])>,
    ) -> Result {
        self.transport.pass(send, receive)
    }

    fn give_up_on(&mut self, rank: u32, reason: String) -> CollectiveError {
        self.transport.give_up_on(rank, reason)
    }

    fn meet(&mut self, call: Call) -> Result {
        self.transport.meet(call)
    }

    fn cancel(&self) -> Arc<Cancel> {
        self.transport.cancel()
    }

    fn abort(&mut self, code: u8, reason: &str) {
        self.transport.abort(code, reason);
    }

    fn leave_panicking(&mut self) {
        self.transport.leave_panicking();
    }

    fn split(&mut self, color: u32, key: u32) -> Result<Box<dyn Transport>> {
        let transport = self.transport.split(color, key)?;
        Ok(Box::new(Watched { transport, watch: self.watch.of_part() }))
    }
}
