//! A group of one rank.

use std::sync::Arc;

use super::call::{Call, Message};
use super::cancel::Cancel;
use super::error::{CollectiveError, OWN_HOST, Result};
use super::numbers::Numbers;
use super::reduction::Reduction;
use super::transport::Transport;
use crate::value::rank::Rank;

/// The only rank of its group.
#[derive(Clone, Debug, Default)]
pub(super) struct Alone {
    cancel: Arc<Cancel>,
}

impl Alone {
    fn check(&self) -> Result<()> {
        if self.cancel.is_set() { Err(CollectiveError::Canceled) } else { Ok(()) }
    }
}

impl Transport for Alone {
    fn rank(&self) -> Rank {
        Rank::ALONE
    }

    fn describe(&self) -> String {
        "a single rank".to_owned()
    }

    fn reduce(
        &mut self,
        _call: Call,
        _numbers: Numbers<'_>,
        _by: Reduction,
        _root: Option<u32>,
    ) -> Result<()> {
        self.check()
    }

    fn reduce_scatter(
        &mut self,
        _call: Call,
        values: &[u8],
        mut part: Numbers<'_>,
        _by: Reduction,
    ) -> Result<()> {
        part.bytes().copy_from_slice(values);
        self.check()
    }

    fn gather(
        &mut self,
        _call: Call,
        bytes: &[u8],
        into: &mut [&mut [u8]],
        _root: Option<u32>,
    ) -> Result<()> {
        into[0].copy_from_slice(bytes);
        self.check()
    }

    fn scatter(
        &mut self,
        _call: Call,
        parts: &[&[u8]],
        into: &mut [&mut [u8]],
        _root: Option<u32>,
    ) -> Result<()> {
        into[0].copy_from_slice(parts[0]);
        self.check()
    }

    fn broadcast(&mut self, _call: Call, _bytes: &mut [u8], _root: u32) -> Result<()> {
        self.check()
    }

    fn pass(
        &mut self,
        send: Option<(Message, &[u8])>,
        receive: Option<(Message, &mut [u8])>,
    ) -> Result<()> {
        // The group allows no other message to itself.
        if let (Some((_, bytes)), Some((_, into))) = (send, receive) {
            into.copy_from_slice(bytes);
        }
        self.check()
    }

    fn give_up_on(&mut self, rank: u32, reason: String) -> CollectiveError {
        CollectiveError::Lost { rank, host: OWN_HOST.to_owned(), reason }
    }

    fn meet(&mut self, _call: Call) -> Result<()> {
        self.check()
    }

    fn split(&mut self, _color: u32, _key: u32) -> Result<Box<dyn Transport>> {
        self.check()?;
        Ok(Box::new(self.clone()))
    }

    fn abort(&mut self, _code: u8, _reason: &str) {}

    fn cancel(&self) -> Arc<Cancel> {
        Arc::clone(&self.cancel)
    }

    fn bytes_sent(&self) -> Option<u64> {
        Some(0)
    }
}
