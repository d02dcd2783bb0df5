//! Messages with tags, which the receiver looks at before it decides where they go.

use std::time::Duration;

use super::Group;
use crate::call::{Call, Message};
use crate::element::ElementKind;
use crate::error::{CollectiveError, Result};

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
#[expect(clippy::missing_errors_doc, reason = "they fail like the calls of a group")]
pub trait Tagged {
    /// Sends a message to rank `to`. Returns once that rank has begun to receive it.
    fn send_tagged(&mut self, kind: ElementKind, bytes: &[u8], to: u32, tag: u32) -> Result<()>;

    /// Waits for the next message of rank `from`, which it does not receive, for at most `longest`.
    fn next_tagged(&mut self, from: u32, longest: Duration) -> Result<Announced>;

    /// Receives the next message of rank `from`. If it is another one than this, both ranks get an
    /// error.
    fn receive_tagged(
        &mut self,
        kind: ElementKind,
        bytes: &mut [u8],
        from: u32,
        tag: u32,
    ) -> Result<()>;
}

impl Tagged for Group {
    fn send_tagged(&mut self, kind: ElementKind, bytes: &[u8], to: u32, tag: u32) -> Result<()> {
        self.check_other("send", to)?;
        let message = Message::tagged_to(to, kind, bytes.len() / kind.size(), tag);
        self.transport.pass(Some((message, bytes)), None)
    }

    fn next_tagged(&mut self, from: u32, longest: Duration) -> Result<Announced> {
        self.check_other("receive", from)?;
        match self.transport.next_message(from, longest)? {
            Call { kind: Some(kind), count, root: tag, .. } => Ok(Announced { tag, kind, count }),
            other => {
                let reason = format!("it called {other}, which has no type");
                Err(self.transport.give_up_on(from, reason))
            }
        }
    }

    fn receive_tagged(
        &mut self,
        kind: ElementKind,
        bytes: &mut [u8],
        from: u32,
        tag: u32,
    ) -> Result<(), CollectiveError> {
        self.check_other("receive", from)?;
        let message = Message::tagged_from(from, kind, bytes.len() / kind.size(), tag);
        self.transport.pass(None, Some((message, bytes)))
    }
}
