//! A group of one rank.

use super::call::Call;
use super::element::{Numbers, Reduction};
use super::error::Result;
use super::transport::Transport;
use crate::value::rank::Rank;

/// The only rank of its group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone;

impl Transport for Alone {
    fn rank(&self) -> Rank {
        Rank::ALONE
    }

    fn describe(&self) -> String {
        "a single rank".to_owned()
    }

    fn all_reduce(&mut self, _numbers: Numbers<'_>, _by: Reduction) -> Result<()> {
        Ok(())
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![bytes.to_vec()])
    }

    fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
        Ok(parts.to_vec())
    }

    fn broadcast(&mut self, _bytes: &mut Vec<u8>, _root: u32) -> Result<()> {
        Ok(())
    }

    fn meet(&mut self, _call: Call) -> Result<()> {
        Ok(())
    }

    fn split(&mut self, _color: u32, _key: u32) -> Result<Box<dyn Transport>> {
        Ok(Box::new(Alone))
    }

    fn abort(&mut self, _code: u8, _last_words: &mut dyn FnMut()) {}

    fn bytes_sent(&self) -> Option<u64> {
        Some(0)
    }
}
