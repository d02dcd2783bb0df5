//! Gathers the parts of all ranks on every rank.

use super::number::{from_bytes, to_bytes};
use super::tensor::Tensor;
use mpienv::collective::seam::other_length;
use mpienv::collective::{CollectiveError, Group};

/// Returns the tensors of each rank, in rank order. All ranks must have the same number of tensors,
/// of the same shapes.
///
/// # Errors
/// If the ranks' tensors differ in size, or a rank is lost.
pub fn gather(own: &[Tensor], group: &mut Group) -> Result<Vec<Vec<Tensor>>, CollectiveError> {
    let bytes: Vec<u8> = own.iter().flat_map(|tensor| to_bytes(&tensor.data)).collect();
    let expected: usize = own.iter().map(|tensor| tensor.data.len()).sum();
    let all = group.all_gather(&bytes)?;
    let tensors = |(rank, bytes): (u32, Vec<u8>)| {
        let mut numbers = from_bytes(&bytes).into_iter();
        if numbers.len() != expected {
            return Err(other_length(rank, numbers.len() as u64, expected as u64));
        }
        let tensor = |own: &Tensor| {
            Tensor::new(own.shape.clone(), numbers.by_ref().take(own.data.len()).collect())
        };
        Ok(own.iter().map(tensor).collect())
    };
    (0..).zip(all).map(tensors).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpienv::collective::threads;
    use std::time::Duration;

    #[test]
    fn every_rank_has_the_tensors_of_all() {
        let of = |rank: u32| {
            let number = rank as f32;
            [Tensor::new(vec![1, 2], vec![number, 0.5]), Tensor::new(vec![1], vec![-number])]
        };
        let all = threads::run(3, Duration::from_secs(1200), |rank| {
            gather(&of(rank.rank().index()), rank).unwrap()
        });
        assert!(all.unwrap().iter().all(|all| *all == [of(0), of(1), of(2)]));
    }

    #[test]
    fn a_rank_with_other_shapes_is_named() {
        let errors = threads::run(2, Duration::from_secs(1200), |rank| {
            let own = [Tensor::zeros(vec![rank.rank().index() as usize + 1])];
            gather(&own, rank).map(drop).map_err(|error| error.to_string())
        });
        assert!(errors.unwrap()[0].as_ref().unwrap_err().starts_with("rank 1 brought 2 numbers"));
    }
}
