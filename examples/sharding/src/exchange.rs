//! Moves parts of tensors between ranks.

use super::mesh::{Axis, Mesh};
use super::redistribute::{Kind, Step};
use super::tensor::Tensor;
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
        let (axes, parts) = (step.axes.as_slice(), self.mesh.size(&step.axes) as usize);
        match step.kind {
            Kind::Slice { dim } => {
                let index = self.mesh.index(self.rank, axes) as usize;
                value.put_part(dim, index, parts, moved);
            }
            Kind::AllReduce => {
                moved.copy(value);
                self.add(axes, &mut moved.data)?;
            }
            Kind::ReduceScatter { dim } => {
                let (shape, flat) = cut(value, dim, parts);
                *moved = Tensor { shape, data: self.group(axes).reduce_scatter_sum(&flat)? };
            }
            Kind::AllGather { dim } => {
                let mut all = vec![0.0; parts * value.data.len()];
                self.group(axes).all_gather_into(&value.data, &mut all)?;
                *moved = Tensor::joined(dim, &value.shape, &all);
            }
            Kind::AllToAll { from, to } => {
                let (shape, flat) = cut(value, to, parts);
                let mut all = vec![0.0; flat.len()];
                self.group(axes).all_to_all_into(&flat, &mut all)?;
                *moved = Tensor::joined(from, &shape, &all);
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

/// The shape of each of `parts` equal parts along `dim`, and the numbers of one part after another.
fn cut(value: &Tensor, dim: usize, parts: usize) -> (Vec<usize>, Vec<f32>) {
    let (mut part, mut flat) = (Tensor::default(), Vec::with_capacity(value.data.len()));
    for index in 0..parts {
        value.put_part(dim, index, parts, &mut part);
        flat.extend_from_slice(&part.data);
    }
    (part.shape, flat)
}

/// Returns the tensors of each rank, in rank order. All ranks must have the same number of tensors,
/// of the same shapes.
///
/// # Errors
/// If the ranks' tensors differ in size, or a rank is lost.
pub fn gather(own: &[Tensor], group: &mut Group) -> Result<Vec<Vec<Tensor>>, CollectiveError> {
    let flat: Vec<f32> = own.iter().flat_map(|tensor| tensor.data.iter().copied()).collect();
    let mut all = vec![0.0; flat.len() * group.size() as usize];
    group.all_gather_into(&flat, &mut all)?;
    let mut rest = all.into_iter();
    let mut next =
        |own: &Tensor| Tensor::new(own.shape.clone(), rest.by_ref().take(own.data.len()).collect());
    Ok((0..group.size()).map(|_| own.iter().map(&mut next).collect()).collect())
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
            "rank 1 called all_gather_into of 2 f32 for each rank, rank 0 all_gather_into of 1 f32 for each rank: "
        ));
    }
}
