//! What the ranks of a data-parallel run report.

use std::io;
use std::time::Duration;

use mpienv::collective::{Group, threads};
use mpienv_sharding::error::Error;
use mpienv_trainer::batch::Order;
use mpienv_trainer::checkpoint::Checkpoints;
use mpienv_trainer::data::Datasets;
use mpienv_trainer::model::Architecture;
use mpienv_trainer::stop::{Signal, Stop};
use mpienv_trainer::train::{Epoch, Report, Step, TrainConfig, Training};

pub const TIMEOUT: Duration = Duration::from_secs(1200);

/// Records what is reported.
#[derive(Default)]
pub struct Curve {
    pub steps: Vec<Step>,
    pub epochs: Vec<Epoch>,
    /// Requested at step 10.
    pub stop: Option<Stop>,
}

impl Report for Curve {
    fn step(&mut self, step: &Step) -> io::Result<()> {
        self.steps.push(*step);
        if let Some(stop) = self.stop.as_ref().filter(|_| step.step == 10) {
            stop.raise(Signal::Terminate);
        }
        Ok(())
    }

    fn epoch(&mut self, epoch: &Epoch) -> io::Result<()> {
        self.epochs.push(*epoch);
        Ok(())
    }
}

/// A plan of two epochs.
pub fn plan(batch_size: usize) -> TrainConfig {
    TrainConfig { epochs: 2, batch_size, learning_rate: 0.01, seed: 5, order: Order::Shuffle }
}

/// Trains a model from its first parameters, and returns its last.
pub fn trained(
    architecture: Architecture,
    data: &Datasets,
    plan: &TrainConfig,
    group: &mut Group,
    report: &mut dyn Report,
) -> Result<Vec<f32>, Error> {
    let mut model = architecture.model(64);
    let mut parameters = model.initial_parameters(plan.seed);
    let checkpoints = &Checkpoints::default();
    let training = Training { data, config: plan, group, checkpoints, report };
    training.data_parallel(model.as_mut(), &mut parameters)?;
    Ok(parameters)
}

/// What each rank reports, and its last parameters.
pub fn data_parallel(
    architecture: Architecture,
    data: &Datasets,
    ranks: u32,
    plan: &TrainConfig,
) -> Vec<(Curve, Vec<f32>)> {
    threads::run(ranks, TIMEOUT, |rank| {
        let mut curve = Curve::default();
        let parameters = trained(architecture, data, plan, rank, &mut curve).unwrap();
        (curve, parameters)
    })
    .unwrap()
}
