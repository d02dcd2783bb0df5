//! A group of one rank.

use mpienv::Rank;

use super::{Collective, CollectiveError};

/// The only rank of its group.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Collective for Alone {
    fn rank(&self) -> Rank {
        Rank::ALONE
    }

    fn all_reduce_sum(&mut self, _values: &mut [f32]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        Ok(vec![bytes.to_vec()])
    }

    fn broadcast(&mut self, _bytes: &mut Vec<u8>, _root: u32) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn split(&mut self, _color: u32, _key: u32) -> Result<Box<dyn Collective>, CollectiveError> {
        Ok(Box::new(Alone))
    }
}
