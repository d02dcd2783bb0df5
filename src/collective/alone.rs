//! A group of one rank.

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

    fn broadcast(&mut self, _bytes: &mut Vec<u8>, _root: u32) -> Result<()> {
        Ok(())
    }

    fn barrier(&mut self) -> Result<()> {
        Ok(())
    }

    fn split(&mut self, _color: u32, _key: u32) -> Result<Box<dyn Transport>> {
        Ok(Box::new(Alone))
    }

    fn bytes_sent(&self) -> Option<u64> {
        Some(0)
    }
}
