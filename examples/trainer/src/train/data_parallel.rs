//! Data parallelism: every rank holds all parameters and computes the gradient of its own samples.
//! Each step needs one all-reduce, which begins while the gradient is computed.

use super::{Learner, Outcome, Share, TrainError};
use crate::batch::Batch;
use crate::model::{self, Evaluation, Model};
use crate::replicas::{self, Divergence};
use mpienv::collective::{CollectiveError, Group, Reduction};

pub(super) struct DataParallel<'a> {
    model: &'a mut dyn Model,
    parameters: &'a mut [f32],
    learning_rate: f32,
    batch: Batch,
    /// The gradient, loss and stop weight. One all-reduce sums them, so that all ranks stop after
    /// the same step.
    sum: Vec<f32>,
}

impl<'a> DataParallel<'a> {
    /// `batch` must have room for this rank's share of a step.
    pub(super) fn new(
        model: &'a mut dyn Model,
        parameters: &'a mut [f32],
        learning_rate: f32,
        batch: Batch,
    ) -> DataParallel<'a> {
        let sum = vec![0.0; parameters.len() + 2];
        DataParallel { model, parameters, learning_rate, batch, sum }
    }
}

impl Learner for DataParallel<'_> {
    fn step(&mut self, share: &Share<'_>, group: &mut Group) -> Result<Outcome, TrainError> {
        let &Share { data, own, whole, stop } = share;
        Batch::fetch(data, own.iter().copied());
        self.batch.gather(data, own.iter().copied());
        let (model, images, count) = (&mut *self.model, self.batch.images(), self.parameters.len());
        let loss = model.loss(self.parameters, images, self.batch.labels(), whole);
        let rest = [loss / whole as f32, stop];
        // A single rank has no time to gain.
        let part = if group.size() == 1 { self.sum.len() } else { model.part() };
        group.all_reduce_in_parts(&mut self.sum, Reduction::Sum, part, |first, part| {
            let left = count.saturating_sub(first).min(part.len());
            let (gradient, last) = part.split_at_mut(left);
            if !gradient.is_empty() {
                model.gradient_part(images, first, gradient);
            }
            last.copy_from_slice(&rest[first.saturating_sub(count)..][..last.len()]);
        })?;
        let (gradient, rest) = self.sum.split_at(self.parameters.len());
        model::sgd_step(self.parameters, gradient, self.learning_rate);
        let own = (!own.is_empty()).then(|| loss / own.len() as f32);
        Ok(Outcome { own, loss: rest[0], stop: rest[1] })
    }

    fn sync(&mut self, group: &mut Group) -> Result<Result<(), Divergence>, CollectiveError> {
        replicas::check(self.parameters, group)
    }

    fn parameters(&self) -> &[f32] {
        self.parameters
    }

    fn evaluate(&mut self, batch: &Batch) -> Evaluation {
        self.model.evaluate(self.parameters, batch.images(), batch.labels())
    }
}
