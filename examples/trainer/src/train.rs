//! Data-parallel training: every rank its share of each batch, one sum of gradients a step.

use std::io;
use std::time::Instant;

use mpienv::Rank;
use serde::Serialize;

use crate::agreement::{self, Disagreement};
use crate::batch::Batch;
use crate::collective::{Collective, CollectiveError};
use crate::data::{Dataset, Datasets};
use crate::model::{self, Evaluation, Model};
use crate::shard::{self, Order};

/// Every how many steps a loss is reported.
pub const REPORT_EVERY: usize = 10;

/// How many samples the test set is gone through at a time.
const EVALUATION_BATCH: usize = 64;

/// How to train.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// How often to go through the training set.
    pub epochs: u32,
    /// Samples of a step, of each rank; at least 1.
    pub batch_size: usize,
    /// What a gradient is multiplied with before it moves the parameters.
    pub learning_rate: f32,
    /// What the order of the samples and the first parameters depend on.
    pub seed: u64,
    /// In what order an epoch goes through the samples.
    pub order: Order,
}

impl Plan {
    /// How many steps an epoch has.
    #[must_use]
    pub fn steps(&self, samples: usize, rank: Rank) -> usize {
        samples.div_ceil(self.batch_size.saturating_mul(rank.size() as usize))
    }

    /// How many samples a rank has in a step at most: the room that its model and batch need.
    #[must_use]
    pub fn largest_batch(&self, samples: usize, rank: Rank) -> usize {
        self.batch_size.min(samples.div_ceil(rank.size() as usize)).max(EVALUATION_BATCH)
    }
}

/// One step, as a rank saw it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// The epoch, counted from 0.
    pub epoch: u32,
    /// The step of the epoch, counted from 0.
    pub step: usize,
    /// The mean loss of this rank's own samples, before the step.
    pub loss: f32,
}

/// One epoch, as all ranks together saw it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Epoch {
    /// The epoch, counted from 0.
    pub epoch: u32,
    /// The mean loss over the epoch's samples, each before its step.
    pub train_loss: f64,
    /// The mean loss over the test set, after the epoch.
    pub test_loss: f64,
    /// The share of the test set that is classified rightly, after the epoch.
    pub test_accuracy: f64,
    /// Samples of all ranks, by the seconds of training.
    pub samples_per_second: f64,
    /// How long the training took, without the test.
    pub seconds: f64,
}

/// Where a rank reports to.
pub trait Report {
    /// Every [`REPORT_EVERY`] steps, on every rank that has samples in the step.
    ///
    /// # Errors
    /// When it cannot be written; the run then ends.
    fn step(&mut self, step: &Step) -> io::Result<()>;

    /// After every epoch, on every rank.
    ///
    /// # Errors
    /// As [`Report::step`].
    fn epoch(&mut self, epoch: &Epoch) -> io::Result<()>;
}

/// Why training ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The loss is NaN or infinite.
    #[error("epoch {epoch}, step {step}: the loss is {loss}: training diverged; try a smaller --lr")]
    Diverged {
        /// The epoch, counted from 0.
        epoch: u32,
        /// The step, counted from 0; the number of steps if it came out in the test.
        step: usize,
        /// The mean loss over the samples of all ranks.
        loss: f64,
    },
    /// The ranks are not about to do the same.
    #[error(transparent)]
    Disagreement(#[from] Disagreement),
    /// The ranks cannot exchange.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The reports cannot be written.
    #[error("the reports cannot be written: {0}")]
    Report(#[from] io::Error),
}

/// Trains `parameters` on the ranks of `group`, which all call this with the same plan and data.
///
/// Rank 0's parameters are taken by all. `model` has room for [`Plan::largest_batch`] samples.
///
/// # Errors
/// When the loss is no finite number, a rank is lost or has another plan, or a report cannot be written.
pub fn train(
    model: &mut dyn Model,
    parameters: &mut [f32],
    data: &Datasets,
    plan: &Plan,
    group: &mut dyn Collective,
    report: &mut dyn Report,
) -> Result<(), TrainError> {
    agreement::check(model.name(), plan, data, group)?;
    take_first_parameters(parameters, group)?;
    let rank = group.rank();
    let samples = data.train.count();
    let global_size = plan.batch_size.saturating_mul(rank.size() as usize);
    let mut batch = Batch::new(plan.largest_batch(samples, rank));
    let mut order = vec![0; samples];
    // The gradient, then the loss: one sum brings both, so that all ranks see a loss that is none in the same step.
    let mut sum = vec![0.0; parameters.len() + 1];

    for epoch in 0..plan.epochs {
        let start = Instant::now();
        let mut train_loss = 0.0;
        let mut steps = 0;
        plan.order.arrange(&mut order, plan.seed, epoch);
        for (step, positions) in shard::global_batches(samples, global_size).enumerate() {
            let whole = positions.len();
            Batch::fetch(&data.train, shard::share(positions.clone(), rank).map(|position| order[position]));
            batch.gather(&data.train, shard::share(positions, rank).map(|position| order[position]));
            let (gradient, loss) = sum.split_at_mut(parameters.len());
            let own = model.gradient(parameters, batch.images(), batch.labels(), whole, gradient);
            loss[0] = own / whole as f32;
            group.all_reduce_sum(&mut sum)?;
            let (gradient, loss) = sum.split_at(parameters.len());
            let loss = f64::from(loss[0]);
            if !loss.is_finite() {
                return Err(TrainError::Diverged { epoch, step, loss });
            }
            model::descend(parameters, gradient, plan.learning_rate);
            train_loss += loss * whole as f64;
            steps = step + 1;
            let count = batch.labels().len();
            if step % REPORT_EVERY == 0 && count > 0 {
                report.step(&Step { epoch, step, loss: own / count as f32 })?;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let test = evaluate(model, parameters, &data.test, &mut batch, group)?;
        let test_loss = test.loss / test.count as f64;
        if !test_loss.is_finite() {
            return Err(TrainError::Diverged { epoch, step: steps, loss: test_loss });
        }
        report.epoch(&Epoch {
            epoch,
            train_loss: train_loss / samples as f64,
            test_loss,
            test_accuracy: test.correct as f64 / test.count as f64,
            samples_per_second: samples as f64 / seconds,
            seconds,
        })?;
    }
    Ok(())
}

/// Evaluates all of `data`, every rank its share.
fn evaluate(
    model: &mut dyn Model,
    parameters: &[f32],
    data: &Dataset,
    batch: &mut Batch,
    group: &mut dyn Collective,
) -> Result<Evaluation, CollectiveError> {
    let mut own = Evaluation::default();
    let rank = group.rank();
    for positions in shard::global_batches(data.count(), EVALUATION_BATCH * rank.size() as usize) {
        batch.gather(data, shard::share(positions, rank));
        own.add(model.evaluate(parameters, batch.images(), batch.labels()));
    }
    let mut all = Evaluation::default();
    // Bytes, not a sum of f32, which cannot count beyond 2^24; and in rank order, the same on all.
    for bytes in group.all_gather(&own.to_bytes())? {
        all.add(Evaluation::from_bytes(&bytes));
    }
    Ok(all)
}

/// Puts rank 0's parameters in place of those of all others.
fn take_first_parameters(parameters: &mut [f32], group: &mut dyn Collective) -> Result<(), CollectiveError> {
    let mut bytes: Vec<u8> = parameters.iter().flat_map(|parameter| parameter.to_le_bytes()).collect();
    group.broadcast(&mut bytes, 0)?;
    for (parameter, &bytes) in parameters.iter_mut().zip(bytes.as_chunks().0) {
        *parameter = f32::from_le_bytes(bytes);
    }
    Ok(())
}
