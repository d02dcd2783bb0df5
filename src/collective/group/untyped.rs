//! The calls of a group for numbers whose type is known only at run time, and messages with tags,
//! which the receiver looks at before it decides where they go.

use std::time::Duration;

use super::Group;
use crate::call::{Call, Message, Operation, Reduce, Results, SEND_RECEIVE, check_type};
use crate::element::ElementKind;
use crate::error::{CollectiveError, Result};
use crate::numbers::Numbers;
use crate::reduction::Reduction;
use crate::transport::Begun;

/// Calls for bytes and the type of their numbers, for the backend for PyTorch. Each is, on other
/// ranks, the same call as the one with a generic type.
#[doc(hidden)]
impl Group {
    /// Says which type the caller means in the next calls for bytes, by its number, if its values
    /// travel as another; 0 if not. Ranks must mean the same type.
    pub fn mean(&mut self, type_number: u8) -> Result<()> {
        let reason = || format!("no type has the number {type_number}");
        let argument = || CollectiveError::Argument { call: "mean", reason: reason() };
        self.meant = check_type(type_number).ok_or_else(argument)?;
        Ok(())
    }

    /// Compares a call that the caller builds of others, by its number. Nothing is exchanged.
    pub fn agree(&mut self, built: u8, kind: ElementKind, count: u64, root: u32) -> Result<()> {
        let reason = || format!("no call has the number {built}");
        let argument = || CollectiveError::Argument { call: "agree", reason: reason() };
        let call = Call::built(built, kind, count).ok_or_else(argument)?;
        let call = call.with(root).meaning(self.meant);
        self.next().meet(call)
    }

    /// As [`Group::all_reduce`] or, with a `root`, [`Group::reduce`].
    pub fn reduce_untyped(
        &mut self,
        numbers: Numbers<'_>,
        by: Reduction,
        root: Option<u32>,
    ) -> Result<()> {
        let results = root.map_or(Results::ToAll, Results::To);
        let reduce = self.reduction(by, results, &numbers);
        self.check_root(reduce.call.operation, root)?;
        self.check_mean(reduce)?;
        self.next().reduce(reduce, numbers)
    }

    /// Begins [`Group::all_reduce`], and waits for the other ranks for at most `longest`, or twice
    /// as long if each adds a part of the sum. If they have not come, the next call is
    /// [`Group::end_reduce`].
    pub fn begin_reduce(
        &mut self,
        numbers: Numbers<'_>,
        by: Reduction,
        longest: Duration,
    ) -> Result<Begun> {
        let (reduce, made) = (self.reduction(by, Results::ToAll, &numbers), self.made);
        self.check_mean(reduce)?;
        let begun = self.next().begin_reduce(reduce, numbers, longest)?;
        if begun == Begun::Refused {
            self.made = made;
        }
        Ok(begun)
    }

    /// Ends what was begun with the same arguments.
    pub fn end_reduce(&mut self, numbers: Numbers<'_>, by: Reduction) -> Result<()> {
        self.transport.end_reduce(self.reduction(by, Results::ToAll, &numbers), numbers)
    }

    /// As [`Group::reduce_scatter_into`].
    pub fn reduce_scatter_untyped(
        &mut self,
        values: &[u8],
        part: Numbers<'_>,
        by: Reduction,
    ) -> Result<()> {
        let all = values.len() / part.kind().size();
        let reduce = Reduce::new(by, Results::InParts, part.kind(), all).meaning(self.meant);
        self.check_mean(reduce)?;
        let (count, share) = (part.count(), self.rank().share_of(all).len());
        if count != share {
            let reason = format!("room for {count} numbers, and this rank's part has {share}");
            return Err(self.refuse_as("reduce_scatter_into", reduce.call.operation, reason));
        }
        self.next().reduce_scatter(reduce, values, part)
    }

    /// As [`Group::broadcast`].
    pub fn broadcast_untyped(
        &mut self,
        kind: ElementKind,
        bytes: &mut [u8],
        root: u32,
    ) -> Result<()> {
        self.check_root(Operation::Broadcast, Some(root))?;
        let call = self.moving(Operation::Broadcast, kind, bytes.len(), Some(root));
        self.next().broadcast(call, bytes, root)
    }

    /// As [`Group::all_gather_into`] or, with a `root`, [`Group::gather`]. The values of each rank
    /// may go to another place; `all` is empty on a rank that gets none.
    pub fn gather_untyped(
        &mut self,
        kind: ElementKind,
        bytes: &[u8],
        all: &mut [&mut [u8]],
        root: Option<u32>,
    ) -> Result<()> {
        let own = self.rank().index();
        let operation = if root.is_some() { Operation::Gather } else { Operation::AllGather };
        self.check_root(operation, root)?;
        let call = self.moving(operation, kind, bytes.len(), root);
        if root.is_some_and(|root| root != own) {
            // The transport takes a part of each rank, of no length where nothing is received.
            let mut none: Vec<_> = (0..self.size()).map(|_| Default::default()).collect();
            return self.next().gather(call, bytes, &mut none);
        }
        self.check_lengths(operation, bytes.len(), all.iter().map(|part| part.len()))?;
        all[own as usize].copy_from_slice(bytes);
        self.next().gather(call, bytes, all)
    }

    /// As [`Group::all_to_all_into`] or, with a `root`, [`Group::scatter`]. The values for each
    /// rank may come from another place; `parts` is empty on a rank that sends none. With a `root`,
    /// `into` has one entry.
    pub fn scatter_untyped(
        &mut self,
        kind: ElementKind,
        parts: &[&[u8]],
        into: &mut [&mut [u8]],
        root: Option<u32>,
    ) -> Result<()> {
        let operation = if root.is_some() { Operation::Scatter } else { Operation::AllToAll };
        self.check_root(operation, root)?;
        let (own, length) = (self.rank().index(), into.first().map_or(0, |part| part.len()));
        if root.is_none_or(|root| root == own) {
            self.check_lengths(operation, length, parts.iter().map(|part| part.len()))?;
        }
        let call = self.moving(operation, kind, length, root);
        let Some(root) = root else {
            self.check_lengths(operation, length, into.iter().map(|part| part.len()))?;
            into[own as usize].copy_from_slice(parts[own as usize]);
            return self.next().scatter(call, parts, into);
        };
        let mut all: Vec<&mut [u8]> = (0..self.size()).map(|_| Default::default()).collect();
        if let Some(part) = into.first_mut() {
            all[root as usize] = part;
        }
        if root == own {
            all[own as usize].copy_from_slice(parts[own as usize]);
            return self.next().scatter(call, parts, &mut all);
        }
        // A rank that sends none may have passed some.
        self.next().scatter(call, &[], &mut all)
    }

    /// As [`Group::send`], [`Group::receive`] or [`Group::send_receive`] with other ranks.
    pub fn pass_untyped(
        &mut self,
        kind: ElementKind,
        send: Option<(&[u8], u32)>,
        receive: Option<(&mut [u8], u32)>,
    ) -> Result<()> {
        let is_half = send.is_some() && receive.is_some();
        self.pass_as(is_half, kind, send, receive)
    }

    /// Passes messages, each half of a `send_receive` or alone. At the ends of a chain of ranks, the
    /// other half is missing.
    pub(super) fn pass_as(
        &mut self,
        is_half: bool,
        kind: ElementKind,
        send: Option<(&[u8], u32)>,
        receive: Option<(&mut [u8], u32)>,
    ) -> Result<()> {
        let own = self.rank().index();
        let count = |bytes: &[u8]| bytes.len() / kind.size();
        let call = |alone: Operation| if is_half { SEND_RECEIVE } else { alone.name() };
        if let Some((_, to)) = send {
            self.check_other(call(Operation::Send), to)?;
        }
        if let Some((_, from)) = receive {
            self.check_other(call(Operation::Receive), from)?;
        }
        let (meant, is_exchange) =
            (self.meant, send.map(|(_, to)| to) == receive.as_ref().map(|it| it.1));
        let as_called = |message: Message| {
            let message = message.meaning(meant);
            if is_half { message.as_half(is_exchange) } else { message }
        };
        let send =
            send.map(|(bytes, to)| (as_called(Message::to(to, own, kind, count(bytes))), bytes));
        let receive = receive
            .map(|(bytes, from)| (as_called(Message::from(from, own, kind, count(bytes))), bytes));
        self.transport.pass(send, receive)
    }
}

/// A message that a rank sends, before it is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// What the sender calls the message.
    pub tag: u32,
    /// The type of its numbers.
    pub kind: ElementKind,
    /// How many numbers it has.
    pub count: u64,
}

/// Messages with tags between two ranks, over shared memory and TCP. They are received in the order
/// in which they are sent, whatever their tags are.
#[doc(hidden)]
impl Group {
    /// Sends a message to rank `to`. Returns once that rank has begun to receive it.
    pub fn send_tagged(
        &mut self,
        kind: ElementKind,
        bytes: &[u8],
        to: u32,
        tag: u32,
    ) -> Result<()> {
        self.check_other("send", to)?;
        let message = Message::tagged(to, kind, bytes.len() / kind.size(), tag);
        self.transport.pass(Some((message, bytes)), None)
    }

    /// Whether the next message of rank `from` has come. Does not wait.
    pub fn has_tagged(&mut self, from: u32) -> Result<bool> {
        self.check_other("receive", from)?;
        self.transport.has_message(from)
    }

    /// Waits for the next message of rank `from`, which it does not receive, for at most `longest`.
    pub fn next_tagged(&mut self, from: u32, longest: Duration) -> Result<Announced> {
        self.check_other("receive", from)?;
        match self.transport.next_message(from, longest)? {
            Call { kind: Some(kind), count, root: tag, .. } => Ok(Announced { tag, kind, count }),
            other => {
                let reason = format!("it called {other}, which has no type");
                Err(self.transport.give_up_on(from, reason))
            }
        }
    }

    /// Receives the next message of rank `from`. If it is another one than this, both ranks get an
    /// error.
    pub fn receive_tagged(
        &mut self,
        kind: ElementKind,
        bytes: &mut [u8],
        from: u32,
        tag: u32,
    ) -> Result<()> {
        self.check_other("receive", from)?;
        let message = Message::tagged(from, kind, bytes.len() / kind.size(), tag).answered();
        self.transport.pass(None, Some((message, bytes)))
    }
}

impl Group {
    fn reduction(&self, by: Reduction, results: Results, numbers: &Numbers<'_>) -> Reduce {
        Reduce::new(by, results, numbers.kind(), numbers.count()).meaning(self.meant)
    }

    /// A call that moves so many bytes of each rank.
    fn moving(
        &self,
        operation: Operation,
        kind: ElementKind,
        bytes: usize,
        root: Option<u32>,
    ) -> Call {
        let call = Call::moving(operation, kind, bytes / kind.size());
        call.with(root.unwrap_or(0)).meaning(self.meant)
    }

    /// Fails unless there is a part of the same length for each rank.
    fn check_lengths(
        &mut self,
        operation: Operation,
        length: usize,
        mut parts: impl ExactSizeIterator<Item = usize>,
    ) -> Result<()> {
        self.check_one_each(operation, parts.len())?;
        let Some(other) = parts.find(|&other| other != length) else { return Ok(()) };
        let reason = format!("parts of {length} and {other} bytes: all must have the same length");
        Err(self.refuse(operation, reason))
    }

    /// Fails unless there are as many parts as ranks.
    pub(super) fn check_one_each(&mut self, operation: Operation, count: usize) -> Result<()> {
        let size = self.size();
        if count == size as usize {
            return Ok(());
        }
        let reason = format!("{count} parts where {size} are needed: one for each rank");
        Err(self.refuse(operation, reason))
    }
}
