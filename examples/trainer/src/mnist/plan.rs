//! The plan that `--strategy` makes and `mnist plan` prints.

use crate::cli::{Cuts, Show};
use crate::model::Architecture;
use mpienv_sharding::assignment::Assignment;
use mpienv_sharding::number::as_written;
use mpienv_sharding::plan::{Plan, PlanError, Terms};

/// Plans a step of `world` ranks with `share` samples each. Without a strategy, the plan is data
/// parallel.
pub fn plan(
    model: Architecture,
    cuts: &Cuts,
    learning_rate: f32,
    world: u32,
    share: usize,
) -> Result<Plan, PlanError> {
    let mut network = model.network(share * world as usize);
    Assignment::apply(&cuts.strategies, &mut network).map_err(PlanError::Operator)?;
    let (learning_rate, collectives) = (as_written(learning_rate), cuts.collectives);
    Ok(Plan::new(
        &network,
        &Terms { world, data_cut: world, collectives, learning_rate, momentum: 0.0 },
    )?)
}

/// Returns a plan as text: the network, then the instructions of a rank.
pub fn text(show: &Show) -> Result<String, PlanError> {
    let Show { ref planned, model, batch_size, learning_rate, ref cuts } = *show;
    plan(model, cuts, learning_rate, planned.ranks, batch_size as usize)?.text(planned.rank)
}
