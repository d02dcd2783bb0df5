//! Operator sharding: the operators are cut over the ranks, and the sharding engine runs the steps.

use std::ops::Range;

use pulp::Arch;

use super::{Learner, Outcome, Share};
use crate::agreement;
use crate::batch::{self, Batch};
use crate::data::PIXELS;
use crate::model::Model;
use mpienv::collective::Group;
use mpienv_sharding::error::Error;
use mpienv_sharding::exchange::gather;
use mpienv_sharding::execute::{Executor, State, check_shape};
use mpienv_sharding::plan::{Feed, Plan};
use mpienv_sharding::tensor::{Tensor, places};

/// The label of an empty row.
const NO_SAMPLE: f32 = -1.0;

/// This rank's parts of the parameters, and the whole parameters as of the last sync.
pub(super) struct ShardedLearner<'a> {
    model: &'a mut dyn Model,
    plan: &'a Plan,
    executor: Executor<'a>,
    state: State,
    whole: &'a mut [f32],
    samples: Tensor,
    labels: Tensor,
}

impl<'a> ShardedLearner<'a> {
    /// Cuts this rank's parts from the model's parameters. All ranks of `group` must call this.
    pub(super) fn new(
        model: &'a mut dyn Model,
        plan: &'a Plan,
        whole: &'a mut [f32],
        group: &mut Group,
    ) -> Result<ShardedLearner<'a>, Error> {
        let executor = Executor::new(plan, "", group)?;
        let tensors: Vec<Tensor> = slices(plan)
            .zip(plan.parameters())
            .map(|(slice, (parameter, _))| to_tensor(&parameter.shape, &whole[slice]))
            .collect();
        let state = State::cut_from(plan, group.rank().index(), &tensors);
        let fed = |feed| Tensor::zeros(plan.fed(feed).local_shape(&plan.mesh));
        let (samples, labels) = (fed(Feed::Samples), fed(Feed::Labels));
        Ok(ShardedLearner { model, plan, executor, state, whole, samples, labels })
    }
}

impl Learner for ShardedLearner<'_> {
    fn step(&mut self, share: &Share<'_>, group: &mut Group) -> Result<Outcome, Error> {
        let &Share { data, own, whole, stop, .. } = share;
        if own.len() > self.labels.data.len() {
            check_shape(self.plan, Feed::Samples, &[own.len(), PIXELS])?;
        }
        Batch::fetch(data, own.iter().copied());
        let images = self.samples.data.as_chunks_mut::<PIXELS>().0;
        let arch = Arch::new();
        for (row, &index) in images.iter_mut().zip(own) {
            batch::normalize(arch, data.image(index), row);
        }
        images[own.len()..].as_flattened_mut().fill(0.0);
        self.labels.data.fill(NO_SAMPLE);
        for (label, &index) in self.labels.data.iter_mut().zip(own) {
            *label = data.labels()[index].into();
        }
        let loss = self.executor.step_of(whole, &mut self.state, &self.samples, &self.labels)?;
        // This needs its own all-reduce: under some strategies, the plan has none over all ranks.
        let mut stops = [stop];
        group.all_reduce_sum(&mut stops)?;
        Ok(Outcome { own: self.executor.own_loss, loss, stop: stops[0] })
    }

    fn sync(&mut self, group: &mut Group) -> Result<Result<(), String>, Error> {
        let all = gather(&self.state.parameters, group)?;
        for (number, (slice, (parameter, layout))) in
            slices(self.plan).zip(self.plan.parameters()).enumerate()
        {
            let (mesh, whole) = (&self.plan.mesh, &mut self.whole[slice]);
            for part in 0..layout.part(mesh, 0).1 {
                // The ranks that hold the part.
                let ranks = (0..).zip(&all).filter(|&(rank, _)| layout.part(mesh, rank).0 == part);
                let held: Vec<(usize, &[u8])> = ranks
                    .map(|(rank, parts)| (rank as usize, bytemuck::cast_slice(&parts[number].data)))
                    .collect();
                if let Err(divergence) = agreement::compare(&held) {
                    return Ok(Err(divergence));
                }
                let (rank, _) = held[0];
                let part = &all[rank][number];
                let offset = layout.offset(mesh, &parameter.shape, rank as u32);
                for (place, &number) in
                    places(&parameter.shape, &offset, &part.shape).zip(&part.data)
                {
                    whole[model_place(&parameter.shape, place)] = number;
                }
            }
        }
        Ok(Ok(()))
    }

    fn model(&mut self) -> (&mut dyn Model, &[f32]) {
        (self.model, self.whole)
    }
}

/// The range of each parameter in the model's slice.
fn slices(plan: &Plan) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    plan.parameters().map(move |(parameter, _)| {
        let end = start + parameter.shape.iter().product::<usize>();
        std::mem::replace(&mut start, end)..end
    })
}

/// Converts a parameter of the model to a parameter of the network.
fn to_tensor(shape: &[usize], parameter: &[f32]) -> Tensor {
    let data = (0..parameter.len()).map(|place| parameter[model_place(shape, place)]).collect();
    Tensor::new(shape.to_vec(), data)
}

/// Converts an index in a network's parameter to an index in the model's. Models store weights
/// output by output, networks input by input.
fn model_place(shape: &[usize], place: usize) -> usize {
    match shape {
        [inputs, outputs] => place % outputs * inputs + place / outputs,
        _ => place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cuts;
    use crate::model::Architecture;
    use mpienv::collective::threads;
    use mpienv_sharding::plan::Collectives;
    use std::time::Duration;

    #[test]
    fn a_models_weights_are_the_networks_transposed() {
        let tensor = to_tensor(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(tensor, Tensor::new(vec![2, 3], vec![1.0, 3.0, 5.0, 2.0, 4.0, 6.0]));
        assert_eq!(to_tensor(&[3], &[1.0, 2.0, 3.0]).data, [1.0, 2.0, 3.0]);
    }

    /// Syncs 4 ranks after `change` has modified their parts. Returns the whole parameters, or
    /// which rank differs.
    fn synced(
        strategy: &str,
        change: impl Fn(u32, &mut State) + Sync,
    ) -> Vec<Result<Vec<f32>, String>> {
        let cuts =
            Cuts { strategies: vec![strategy.parse().unwrap()], collectives: Collectives::Min };
        let plan = cuts.plan(Architecture::Mlp, 0.1, 4, 2).unwrap();
        threads::run(4, Duration::from_secs(1200), |rank| {
            let own = rank.rank().index();
            let mut model = Architecture::Mlp.model(1);
            let mut whole = model.initial_parameters(1);
            let mut learner = ShardedLearner::new(model.as_mut(), &plan, &mut whole, rank).unwrap();
            change(own, &mut learner.state);
            let synced = learner.sync(rank).unwrap();
            synced.map(|()| learner.whole.to_vec()).map_err(|error| error.to_string())
        })
        .unwrap()
    }

    #[test]
    fn parts_are_put_together_where_they_came_from() {
        let whole = Architecture::Mlp.model(1).initial_parameters(1);
        for strategy in ["((4,1),(1,1))", "((2,2),(2,1))", "((1,2),(2,2))"] {
            let synced = synced(strategy, |_, _| {});
            assert!(synced.iter().all(|found| found.as_ref() == Ok(&whole)), "{strategy}");
        }
    }

    #[test]
    fn of_ranks_that_hold_the_same_part_the_odd_one_is_named_by_all() {
        // The first weight's rows are cut in two: ranks 1 and 3 hold the second part.
        let synced = synced("((2,2),(2,1))", |rank, state| {
            if rank == 3 {
                state.parameters[0].data[7] += 1.0;
            }
        });
        let start = "rank 3 holds other parameters than rank 1: ";
        assert!(
            synced.iter().all(|found| found.as_ref().is_err_and(|error| error.starts_with(start))),
            "{synced:?}"
        );
    }
}
