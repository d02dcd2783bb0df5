//! Trains a model: every rank processes its share of each batch, data parallel or by a plan of the
//! sharding engine.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod data_parallel;
mod sharded;

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use mpienv::Rank;
use serde::Serialize;

use crate::agreement;
use crate::batch::{self, Batch, Order};
use crate::checkpoint::{Checkpoints, Position};
use crate::data::{Dataset, Datasets};
use crate::model::{Evaluation, Model};
use crate::stop::Signal;
use data_parallel::DataParallel;
use mpienv::collective::{CollectiveError, Group};
use mpienv_sharding::arguments::name_of;
use mpienv_sharding::error::{Error, Reach, SIGNALLED, TRAINING_FAILED};
use mpienv_sharding::plan::Plan;
use sharded::ShardedLearner;

/// The number of steps between reports of the loss.
pub const REPORT_EVERY: usize = 10;

/// Each rank's batch size for the test set.
const EVALUATION_BATCH: usize = 64;

/// How to train.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TrainConfig {
    pub epochs: u32,
    /// Samples per step on each rank; at least 1.
    pub batch_size: usize,
    pub learning_rate: f32,
    /// Determines the order of the samples and the initial parameters.
    pub seed: u64,
    pub order: Order,
}

impl TrainConfig {
    /// The number of steps in an epoch.
    pub fn steps(&self, samples: usize, ranks: u32) -> usize {
        samples.div_ceil(self.batch_size.saturating_mul(ranks as usize))
    }

    /// The largest number of samples that a rank has in a step.
    pub fn largest_share(&self, samples: usize, rank: Rank) -> usize {
        self.batch_size.min(samples.div_ceil(rank.size() as usize))
    }

    /// The batch capacity that a rank's model needs for training and testing.
    pub fn largest_batch(&self, samples: usize, rank: Rank) -> usize {
        self.largest_share(samples, rank).max(EVALUATION_BATCH)
    }
}

/// A step of one rank. Epochs and steps count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    pub epoch: u32,
    pub step: usize,
    /// The mean loss, before the step, of the rank's own samples. If the loss operator is not cut
    /// like the data set, this is the mean over the samples whose loss the rank computes.
    pub loss: f32,
}

/// The result of an epoch on all ranks together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Epoch {
    /// Counted from 0.
    pub epoch: u32,
    /// The mean loss over the epoch's samples, each computed before its step.
    pub train_loss: f64,
    /// The mean loss over the test set, after the epoch.
    pub test_loss: f64,
    /// The fraction of the test set that is classified correctly, after the epoch.
    pub test_accuracy: f64,
    /// The samples per second of all ranks. In a resumed epoch, only samples since the checkpoint
    /// count.
    pub samples_per_second: f64,
    /// The training time without the test. In a resumed epoch, only the time since the checkpoint
    /// counts.
    pub seconds: f64,
}

/// Receives a rank's progress.
pub trait Report {
    /// Called on every rank before the first step, once all ranks agree that the run begins at
    /// `start`.
    fn begin(&mut self, _start: Position) -> io::Result<()> {
        Ok(())
    }

    /// Called every [`REPORT_EVERY`] steps, on every rank that computes the loss of any samples.
    fn step(&mut self, step: &Step) -> io::Result<()>;

    /// Called after every epoch, on every rank.
    fn epoch(&mut self, epoch: &Epoch) -> io::Result<()>;

    /// Called on every rank if a resumed run has no epoch left, with the last epoch and the test
    /// accuracy after it.
    fn nothing_left(&mut self, _epoch: u32, _test_accuracy: f64) {}

    /// Called at the end of the run, even if the run fails.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Calls `write`, which prints a line, after clearing anything that this report has drawn on
    /// the terminal.
    fn aside(&mut self, write: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()> {
        write()
    }
}

/// A way to train on all ranks together. Every rank must make the same calls.
trait Learner {
    /// Called before the first step of an epoch, or of what a resumed epoch has left, with the
    /// epoch's samples in order.
    fn begin(&mut self, _order: &[usize]) -> Result<(), Error> {
        Ok(())
    }

    /// Trains on a batch.
    fn step(&mut self, share: &Share<'_>, group: &mut Group) -> Result<Outcome, Error>;

    /// Gathers the whole parameters on every rank, and checks that replicas are identical bit for
    /// bit.
    fn sync(&mut self, group: &mut Group) -> Result<Result<(), String>, Error>;

    /// Returns the model, to evaluate samples, and the whole parameters as of the last sync.
    fn model(&mut self) -> (&mut dyn Model, &[f32]);
}

/// A rank's share of a step.
struct Share<'a> {
    data: &'a Dataset,
    /// The indices of the rank's samples in `data`.
    own: &'a [usize],
    /// Those of its samples of the next step; none after the last step of an epoch.
    next: &'a [usize],
    /// The number of samples in the batch on all ranks together.
    whole: usize,
    /// The step's number in the epoch.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "CPUs take one step at a time"))]
    step: usize,
    /// The number of steps, with this one, after which the parameters are needed: at the next
    /// checkpoint, or the end of the epoch. Until then, a GPU may be ahead of what is reported.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "CPUs take one step at a time"))]
    left: usize,
    /// The rank's [`Stop::weight`](crate::stop::Stop::weight), to be summed over all ranks.
    stop: f32,
}

/// The result of a step.
struct Outcome {
    /// The loss for the rank's [`Step::loss`], if the rank computes the loss of any samples.
    own: Option<f32>,
    /// The mean loss of the whole batch.
    loss: f32,
    /// The sum of all ranks' [`Share::stop`].
    stop: f32,
}

/// What a run trains on, and where it reports. There are several ways to train, of which all ranks
/// of the group must choose the same, with the same configuration and data.
///
/// All ranks start with rank 0's parameters. The model must have room for
/// [`TrainConfig::largest_batch`] samples. The run begins at [`Checkpoints::start`]. If any rank's
/// [`Checkpoints::stop`] is raised, all ranks stop after the same step.
pub struct Training<'a> {
    pub data: &'a Datasets,
    pub config: &'a TrainConfig,
    pub group: &'a mut Group,
    pub checkpoints: &'a Checkpoints,
    pub report: &'a mut dyn Report,
}

impl Training<'_> {
    /// Trains `parameters` data parallel.
    pub fn data_parallel(
        mut self,
        model: &mut dyn Model,
        parameters: &mut [f32],
    ) -> Result<(), Error> {
        self.agree(model, agreement::DATA_PARALLEL, parameters)?;
        let largest = self.config.largest_share(self.data.train.count(), self.group.rank());
        let (learning_rate, batch) = (self.config.learning_rate, Batch::new(largest));
        self.train(&mut DataParallel::new(model, parameters, learning_rate, batch))
    }

    /// Trains `parameters` with the operators cut over the ranks. The losses agree to rounding.
    ///
    /// `plan` must be for the ranks of the group, with [`TrainConfig::largest_share`] rows on each.
    /// If the last batch of an epoch is smaller, some rows stay empty.
    ///
    /// # Errors
    /// If the run fails or is stopped.
    ///
    /// # Panics
    /// If the plan is not for the model's [network](crate::model::Architecture::network).
    pub fn sharded(
        mut self,
        model: &mut dyn Model,
        plan: &Plan,
        parameters: &mut [f32],
    ) -> Result<(), Error> {
        self.agree(model, &plan.named_strategies(), parameters)?;
        let mut learner = ShardedLearner::new(model, plan, parameters, self.group)?;
        self.train(&mut learner)
    }

    /// Checks that all ranks train the same, and gives them rank 0's parameters.
    fn agree(
        &mut self,
        model: &dyn Model,
        strategy: &str,
        parameters: &mut [f32],
    ) -> Result<(), Error> {
        let model = name_of(&model.architecture());
        agreement::check_config(&model, strategy, self.config, self.data, self.group)?;
        Ok(self.group.broadcast(parameters, 0)?)
    }

    fn train(self, learner: &mut dyn Learner) -> Result<(), Error> {
        let position = self.checkpoints.start();
        Progress { run: self, learner, position }.train()
    }
}

/// A run in progress.
struct Progress<'l, 'r> {
    run: Training<'r>,
    learner: &'l mut dyn Learner,
    position: Position,
}

impl Progress<'_, '_> {
    fn train(mut self) -> Result<(), Error> {
        let samples = self.run.data.train.count();
        self.run.report.begin(self.position).map_err(cannot_report)?;
        if let Some(last) = self.position.epoch.checked_sub(1)
            && last + 1 >= self.run.config.epochs
        {
            // A run that failed after its last epoch must not succeed when it is started again.
            let test = self.evaluate()?;
            self.run.report.nothing_left(last, test.correct as f64 / test.count as f64);
        }
        while self.position.epoch < self.run.config.epochs {
            let epoch = self.position.epoch;
            let start = Instant::now();
            let TrainConfig { order, seed, .. } = *self.run.config;
            let order = order.arrange(samples, seed, epoch);
            let seen = self.steps(&order)?;
            let seconds = start.elapsed().as_secs_f64();
            self.sync()?;
            let test = self.evaluate()?;
            let test_loss = test.loss / test.count as f64;
            if !test_loss.is_finite() {
                return Err(self.diverged(self.position.step, test_loss));
            }
            let epoch = Epoch {
                epoch,
                train_loss: self.position.loss_sum / samples as f64,
                test_loss,
                test_accuracy: test.correct as f64 / test.count as f64,
                samples_per_second: seen as f64 / seconds,
                seconds,
            };
            self.run.report.epoch(&epoch).map_err(cannot_report)?;
            self.position = Position { epoch: epoch.epoch + 1, ..Position::default() };
            self.save()?;
        }
        Ok(())
    }

    /// Trains on the samples that the epoch has left. Returns how many there were.
    fn steps(&mut self, order: &[usize]) -> Result<usize, Error> {
        let (rank, samples, epoch) = (self.run.group.rank(), order.len(), self.position.epoch);
        let global_size = self.run.config.batch_size.saturating_mul(rank.size() as usize);
        let epoch_steps = self.run.config.steps(samples, rank.size()) as u64;
        let first = usize::try_from(self.position.step).unwrap_or(usize::MAX);
        let share_of = |own: &mut Vec<usize>, positions: Range<usize>| {
            own.clear();
            own.extend(batch::share(positions, rank).map(|position| order[position]));
        };
        let largest = self.run.config.largest_share(samples, rank);
        let (mut own, mut next) = (Vec::with_capacity(largest), Vec::with_capacity(largest));
        let mut seen = 0;
        self.learner.begin(order)?;
        for (step, positions) in batch::global_batches(samples, global_size).enumerate().skip(first)
        {
            let (whole, end) = (positions.len(), positions.end);
            share_of(&mut own, positions);
            share_of(&mut next, end..samples.min(end.saturating_add(global_size)));
            let stop = self.run.checkpoints.stop.weight();
            let steps = self.position.steps(epoch_steps);
            let until_due = self.run.checkpoints.steps_until_due(steps);
            let is_due_after = until_due == Some(1);
            let left = until_due.unwrap_or(u64::MAX).min(epoch_steps - step as u64) as usize;
            let data = &self.run.data.train;
            let share = Share { data, own: &own, next: &next, whole, step, left, stop };
            let outcome = self.learner.step(&share, self.run.group)?;
            let (loss, signal) = (f64::from(outcome.loss), Signal::strongest(outcome.stop));
            if !loss.is_finite() {
                return Err(self.diverged(step as u64, loss));
            }
            self.position.loss_sum += loss * whole as f64;
            self.position.step += 1;
            seen += whole;
            if let Some(loss) = outcome.own.filter(|_| step % REPORT_EVERY == 0) {
                self.run.report.step(&Step { epoch, step, loss }).map_err(cannot_report)?;
            }
            if signal.is_none() && !is_due_after {
                continue;
            }
            self.sync()?;
            let path = self.save()?;
            if let Some(signal) = signal {
                return Err(self.stopped(signal, path.as_deref()));
            }
        }
        Ok(seen)
    }

    /// Saves the parameters as of the last sync.
    fn save(&mut self) -> Result<Option<PathBuf>, Error> {
        let (_, parameters) = self.learner.model();
        self.run.checkpoints.save(self.position, parameters, self.run.group)
    }

    /// Gathers the whole parameters on every rank. Fails if replicas differ.
    fn sync(&mut self) -> Result<(), Error> {
        let Position { epoch, step, .. } = self.position;
        let synced = self.learner.sync(self.run.group)?;
        synced.map_err(|divergence| {
            let text = format!("epoch {epoch}, step {step}: {divergence}");
            Error::new(TRAINING_FAILED, text).reaching(Reach::All)
        })
    }

    fn diverged(&self, step: u64, loss: f64) -> Error {
        let text = format!("epoch {}, step {step}: the loss is {loss}", self.position.epoch);
        let text = format!("{text}: training diverged; try a smaller --lr");
        Error::new(TRAINING_FAILED, text).reaching(Reach::All)
    }

    /// The end of a run that was stopped by `signal`; `path` is rank 0's last checkpoint.
    fn stopped(&self, signal: Signal, path: Option<&Path>) -> Error {
        if signal == Signal::Pipe {
            return Error::reader_gone();
        }
        let Position { epoch, step, .. } = self.position;
        let kept = match path {
            Some(path) => format!("{} was written: continue from it with --resume", path.display()),
            None if self.run.checkpoints.are_kept() => {
                "rank 0 has written a checkpoint: continue from it with --resume".to_owned()
            }
            None => "nothing is saved without --checkpoint-dir".to_owned(),
        };
        let text = format!("stopped by {signal} in epoch {epoch} after {step} steps; {kept}");
        Error::new(SIGNALLED + signal.number(), text).reaching(Reach::First)
    }

    /// Evaluates the test set. Every rank evaluates its share.
    fn evaluate(&mut self) -> Result<Evaluation, CollectiveError> {
        let (rank, data) = (self.run.group.rank(), &self.run.data.test);
        let mut batch = Batch::new(EVALUATION_BATCH);
        let mut own = Evaluation::default();
        let (model, parameters) = self.learner.model();
        let size = EVALUATION_BATCH * rank.size() as usize;
        for positions in batch::global_batches(data.count(), size) {
            batch.gather(data, batch::share(positions, rank));
            own.add(model.evaluate(parameters, batch.images(), batch.labels()));
        }
        let mut all = Evaluation::default();
        // An all-reduce of f32 cannot count beyond 2^24. Adding in rank order gives all ranks the
        // same bits.
        let mut numbers = vec![0; 3 * rank.size() as usize];
        self.run.group.all_gather_into(&own.to_numbers(), &mut numbers)?;
        for &numbers in numbers.as_chunks().0 {
            all.add(Evaluation::from_numbers(numbers));
        }
        Ok(all)
    }
}

/// A GPU that is ready to train, like [`Training::data_parallel`], with those of the other ranks.
/// The losses agree to rounding.
pub struct ReadyGpu {
    /// What rank 0 says of the devices before it trains.
    pub description: String,
    /// Trains with the configuration and the training set with which the GPU was opened.
    pub train: TrainOnGpu,
}

type TrainOnGpu = Box<dyn FnOnce(&mut dyn Model, &mut [f32], Training<'_>) -> Result<(), Error>>;

/// The error of an output that cannot be written.
pub(crate) fn cannot_report(error: io::Error) -> Error {
    Error::input(format!("cannot write the reports: {error}"))
}
