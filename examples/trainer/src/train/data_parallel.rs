//! Data parallelism: every rank holds all parameters and computes the gradient of its own samples.
//! Each step needs one all-reduce, which begins while the gradient is computed. A rank loads its
//! next samples while the other ranks complete theirs.

use std::cell::RefCell;

use super::{Learner, Outcome, Share};
use crate::agreement;
use crate::batch::Batch;
use crate::model::{self, Model};
use mpienv::collective::{Group, Reduction};
use mpienv_sharding::error::Error;

pub(super) struct DataParallel<'a> {
    model: &'a mut dyn Model,
    parameters: &'a mut [f32],
    learning_rate: f32,
    batch: Batch,
    /// The indices of the samples in `batch`.
    loaded: Vec<usize>,
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
        DataParallel { model, parameters, learning_rate, batch, loaded: Vec::new(), sum }
    }
}

impl Learner for DataParallel<'_> {
    fn step(&mut self, share: &Share<'_>, group: &mut Group) -> Result<Outcome, Error> {
        let &Share { data, own, next, whole, stop, .. } = share;
        let load = |batch: &mut Batch, samples: &[usize]| {
            Batch::fetch(data, samples.iter().copied());
            batch.gather(data, samples.iter().copied());
        };
        if self.loaded != own {
            load(&mut self.batch, own);
        }
        let (model, batch, count) = (&mut *self.model, &mut self.batch, self.parameters.len());
        let loss = model.loss(self.parameters, batch.images(), batch.labels(), whole);
        let rest = [loss / whole as f32, stop];
        // A single rank has no time to gain.
        let part = if group.size() == 1 { self.sum.len() } else { model.part() };
        // The next samples take the place of these once no part needs them: a second batch would push
        // other data out of the cache.
        let batch = RefCell::new(batch);
        let compute = |first: usize, part: &mut [f32]| {
            let left = count.saturating_sub(first).min(part.len());
            let (gradient, last) = part.split_at_mut(left);
            if !gradient.is_empty() {
                model.gradient_part(batch.borrow().images(), first, gradient);
            }
            last.copy_from_slice(&rest[first.saturating_sub(count)..][..last.len()]);
        };
        self.loaded.clear();
        let load_next = || load(&mut batch.borrow_mut(), next);
        group.all_reduce_in_parts_while(&mut self.sum, Reduction::Sum, part, compute, load_next)?;
        self.loaded.extend_from_slice(next);
        let (gradient, rest) = self.sum.split_at(self.parameters.len());
        model::sgd_step(self.parameters, gradient, self.learning_rate);
        let own = (!own.is_empty()).then(|| loss / own.len() as f32);
        Ok(Outcome { own, loss: rest[0], stop: rest[1] })
    }

    fn sync(&mut self, group: &mut Group) -> Result<Result<(), String>, Error> {
        Ok(agreement::check_replicas(self.parameters, group)?)
    }

    fn model(&mut self) -> (&mut dyn Model, &[f32]) {
        (self.model, self.parameters)
    }
}
