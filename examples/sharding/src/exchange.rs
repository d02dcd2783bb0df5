//! Moves parts of tensors between ranks.

use super::mesh::{Axis, Mesh};
use super::redistribute::Step;
use super::tensor::{Tensor, from_bytes, to_bytes};
use mpienv::collective::seam::other_length;
use mpienv::collective::{CollectiveError, Group};

/// A rank's groups for exchanging parts.
pub struct Exchange<'a> {
    mesh: &'a Mesh,
    rank: u32,
    /// This rank's group for each list of axes.
    groups: Vec<(Vec<Axis>, Group)>,
}

impl<'a> Exchange<'a> {
    /// Creates the groups for `steps`, which must be the same on all ranks. `mesh` must have as
    /// many ranks as `world`.
    pub fn new<'s>(
        mesh: &'a Mesh,
        steps: impl IntoIterator<Item = &'s Step>,
        world: &mut Group,
    ) -> Result<Exchange<'a>, CollectiveError> {
        let rank = world.rank().index();
        let mut groups: Vec<(Vec<Axis>, Group)> = Vec::new();
        for axes in steps.into_iter().map(Step::group) {
            if !axes.is_empty() && !groups.iter().any(|(known, _)| known == axes) {
                let group = world.split(mesh.origin(rank, axes), mesh.index(rank, axes))?;
                groups.push((axes.to_vec(), group));
            }
        }
        Ok(Exchange { mesh, rank, groups })
    }

    /// Runs one of the steps that the groups were created for. Overwrites `moved` with this rank's
    /// part of the result.
    pub fn apply(
        &mut self,
        step: &Step,
        value: &Tensor,
        moved: &mut Tensor,
    ) -> Result<(), CollectiveError> {
        let parts = self.mesh.size(step.group()) as usize;
        match step {
            Step::Slice { dim, axes } => {
                let (index, parts) = (self.mesh.index(self.rank, axes), self.mesh.size(axes));
                value.put_part(*dim, index as usize, parts as usize, moved);
            }
            Step::AllReduce { axes } => {
                moved.copy(value);
                self.add(axes, &mut moved.data)?;
            }
            Step::ReduceScatter { dim, axes } => {
                let split = value.split(*dim, parts);
                let shape = split[0].shape.clone();
                let flat: Vec<f32> = split.into_iter().flat_map(|part| part.data).collect();
                *moved = Tensor { shape, data: self.group(axes).reduce_scatter_sum(&flat)? };
            }
            Step::AllGather { dim, axes } => {
                let group = self.group(axes);
                let all = group.all_gather(&to_bytes(&value.data))?;
                *moved = joined(*dim, &value.shape, group.rank().index(), all)?;
            }
            Step::AllToAll { from, to, axes } => {
                let split = value.split(*to, parts);
                let bytes: Vec<_> = split.iter().map(|part| to_bytes(&part.data)).collect();
                let group = self.group(axes);
                let all = group.all_to_all(&bytes)?;
                *moved = joined(*from, &split[0].shape, group.rank().index(), all)?;
            }
        }
        Ok(())
    }

    /// Sums `numbers` over the ranks that differ only in `axes`, in one call.
    pub fn add(&mut self, axes: &[Axis], numbers: &mut [f32]) -> Result<(), CollectiveError> {
        self.group(axes).all_reduce_sum(numbers)
    }

    fn group(&mut self, axes: &[Axis]) -> &mut Group {
        let Some((_, group)) = self.groups.iter_mut().find(|(known, _)| known == axes) else {
            unreachable!("axes {axes:?}: there is a group for each step");
        };
        group
    }
}

/// Concatenates the ranks' parts, all of the same shape.
fn joined(
    dim: usize,
    shape: &[usize],
    own: u32,
    parts: Vec<Vec<u8>>,
) -> Result<Tensor, CollectiveError> {
    let tensor = |data| Tensor { shape: shape.to_vec(), data };
    let all = decoded(parts, own, shape.iter().product())?;
    Ok(Tensor::concat(dim, &all.into_iter().map(tensor).collect::<Vec<_>>()))
}

/// Returns the tensors of each rank, in rank order. All ranks must have the same number of tensors,
/// of the same shapes.
///
/// # Errors
/// If the ranks' tensors differ in size, or a rank is lost.
pub fn gather(own: &[Tensor], group: &mut Group) -> Result<Vec<Vec<Tensor>>, CollectiveError> {
    let bytes: Vec<u8> = own.iter().flat_map(|tensor| to_bytes(&tensor.data)).collect();
    let (all, expected) = (group.all_gather(&bytes)?, own.iter().map(|tensor| tensor.data.len()));
    let all = decoded(all, group.rank().index(), expected.sum())?;
    let tensors = |numbers: Vec<f32>| {
        let mut rest = numbers.into_iter();
        let tensor = |own: &Tensor| {
            Tensor::new(own.shape.clone(), rest.by_ref().take(own.data.len()).collect())
        };
        own.iter().map(tensor).collect()
    };
    Ok(all.into_iter().map(tensors).collect())
}

/// Decodes each rank's numbers, of which there must be `expected`, as of rank `own`.
fn decoded(
    parts: Vec<Vec<u8>>,
    own: u32,
    expected: usize,
) -> Result<Vec<Vec<f32>>, CollectiveError> {
    let decode = |(rank, bytes): (u32, Vec<u8>)| match from_bytes(&bytes) {
        numbers if numbers.len() == expected => Ok(numbers),
        numbers => Err(other_length(rank, numbers.len() as u64, own, expected as u64)),
    };
    (0..).zip(parts).map(decode).collect()
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
        assert!(errors.unwrap()[0].as_ref().unwrap_err().starts_with(
            "rank 1 called all_gather of 2 numbers, rank 0 all_gather of 1 numbers: "
        ));
    }
}
